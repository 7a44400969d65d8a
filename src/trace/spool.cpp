#include "trace/spool.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace millpond::trace {
namespace {

class spool_sink final : public sink {
 public:
  explicit spool_sink(spool& into) : into_(into) {}
  result<void> write(std::span<const std::uint8_t> bytes) override { return into_.append(bytes); }

 private:
  spool& into_;
};

class spool_input final : public input {
 public:
  spool_input(const spool& from, std::uint64_t begin, std::uint64_t end)
      : from_(from), at_(begin), end_(end) {}
  result<std::size_t> read(std::span<std::byte> into) override {
    auto got = from_.read(at_, into.first(std::min<std::uint64_t>(into.size(), end_ - at_)));
    if (got) at_ += *got;
    return got;
  }

 private:
  const spool& from_;
  std::uint64_t at_;
  std::uint64_t end_;
};

}  // namespace

result<void> spool::append(std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const std::uint64_t held = in_memory();
    if (size_ == held && held + block_bytes <= most_in_memory_) {
      blocks_.push_back(std::make_unique_for_overwrite<std::uint8_t[]>(block_bytes));
      continue;
    }
    if (size_ < held) {
      const std::size_t within = size_ % block_bytes;
      const std::size_t part = std::min<std::size_t>(bytes.size(), block_bytes - within);
      std::copy_n(bytes.begin(), part, blocks_.back().get() + within);
      size_ += part;
      bytes = bytes.subspan(part);
      continue;
    }
    if (file_ == nullptr) file_.reset(std::tmpfile());
    const auto failed = [] {
      return error{
          error_code::output_failure,
          fmt::format("a temporary file for the events of a snapshot: {}", std::strerror(errno))};
    };
    if (file_ == nullptr) return failed();
    // Never through the stream's buffer: what is written is what read() sees, and a full disk is
    // reported here.
    const ssize_t written =
        pwrite(fileno(file_.get()), bytes.data(), bytes.size(), static_cast<off_t>(size_ - held));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return failed();
    size_ += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

result<std::size_t> spool::read(std::uint64_t from, std::span<std::byte> into) const {
  if (from >= size_ || into.empty()) return std::size_t{0};
  if (from < in_memory()) {
    const std::size_t within = from % block_bytes;
    const std::size_t part =
        std::min<std::size_t>({into.size(), block_bytes - within, size_ - from});
    std::memcpy(into.data(), blocks_[from / block_bytes].get() + within, part);
    return part;
  }
  for (;;) {
    const ssize_t got = pread(fileno(file_.get()), into.data(), into.size(),
                              static_cast<off_t>(from - in_memory()));
    if (got < 0 && errno == EINTR) continue;
    if (got > 0) return static_cast<std::size_t>(got);
    return error{
        error_code::bad_input,
        fmt::format("the temporary file with the events of a snapshot cannot be read back: {}",
                    got == 0 ? "it was cut" : std::strerror(errno))};
  }
}

std::unique_ptr<sink> make_spool_sink(spool& into) {
  return std::make_unique<spool_sink>(into);
}
std::unique_ptr<input> make_spool_input(const spool& from, std::uint64_t begin, std::uint64_t end) {
  return std::make_unique<spool_input>(from, begin, end);
}

}  // namespace millpond::trace
