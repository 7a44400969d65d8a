#include "trace/input.hpp"

#include "base/quote.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace millpond::trace {
namespace {

constexpr std::size_t read_size = std::size_t{256} << 10;

class file_input final : public input {
 public:
  file_input(std::FILE* file, std::string name) : file_(file), name_(std::move(name)) {}
  ~file_input() override { std::fclose(file_); }
  result<std::size_t> read(std::span<std::byte> into) override {
    const std::size_t got = std::fread(into.data(), 1, into.size(), file_);
    if (got == 0 && std::ferror(file_) != 0) {
      return error{error_code::bad_input,
                   fmt::format("{}: cannot be read: {}", name_, std::strerror(errno))};
    }
    return got;
  }

 private:
  std::FILE* file_;
  std::string name_;
};

class memory_input final : public input {
 public:
  explicit memory_input(std::string bytes) : bytes_(std::move(bytes)) {}
  result<std::size_t> read(std::span<std::byte> into) override {
    const std::size_t count = std::min(into.size(), bytes_.size() - at_);
    std::memcpy(into.data(), bytes_.data() + at_, count);
    at_ += count;
    return count;
  }

 private:
  std::string bytes_;
  std::size_t at_ = 0;
};

// Undoes gzip, member after member (files made by appending are legal).
class gzip_input final : public input {
 public:
  explicit gzip_input(input_buffer from) : from_(std::move(from)) {
    ready_ = inflateInit2(&stream_, 15 + 16) == Z_OK;
  }
  ~gzip_input() override { inflateEnd(&stream_); }

  result<std::size_t> read(std::span<std::byte> into) override {
    if (!ready_) return error{error_code::out_of_memory, from_.name() + ": no memory to undo gzip"};
    if (into.empty()) return std::size_t{0};
    stream_.next_out = reinterpret_cast<Bytef*>(into.data());
    stream_.avail_out = static_cast<uInt>(std::min<std::size_t>(into.size(), 1u << 30));
    const std::size_t wanted = stream_.avail_out;
    while (stream_.avail_out == wanted) {
      auto there = from_.fill(1);
      if (!there) return there.error();
      if (*there == 0) {
        if (between_members_) return std::size_t{0};
        return bad_byte(from_.name(), from_.offset(), "more gzip data", "the end of the file");
      }
      if (auto done = step(); !done) return done.error();
    }
    return wanted - stream_.avail_out;
  }

 private:
  result<void> step() {
    const std::string_view source = from_.view();
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(source.data()));
    stream_.avail_in = static_cast<uInt>(std::min<std::size_t>(source.size(), 1u << 30));
    const uInt before = stream_.avail_in;
    between_members_ = false;
    const int status = inflate(&stream_, Z_NO_FLUSH);
    from_.consume(before - stream_.avail_in);
    if (status == Z_STREAM_END) {
      between_members_ = true;
      inflateReset(&stream_);
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      return bad_byte(from_.name(), from_.offset(), "gzip data",
                      stream_.msg != nullptr ? stream_.msg : "broken data");
    }
    return {};
  }

  input_buffer from_;
  z_stream stream_{};
  bool ready_ = false;
  bool between_members_ = false;
};

result<input_buffer> undo_gzip(input_buffer raw) {
  auto there = raw.fill(3);
  if (!there) return there.error();
  const std::string_view head = raw.view();
  // 1f 8b is gzip (RFC 1952), 08 its only method.
  if (head.substr(0, 3) != "\x1f\x8b\x08") return raw;
  const std::string name = raw.name();
  return input_buffer(std::make_unique<gzip_input>(std::move(raw)), name);
}

}  // namespace

input_buffer::input_buffer(std::unique_ptr<input> from, std::string name)
    : from_(std::move(from)), name_(std::move(name)) {}

result<std::size_t> input_buffer::fill(std::size_t wanted) {
  while (end_ - begin_ < wanted && !ended_) {
    if (begin_ > 0 && buffer_.size() - end_ < read_size) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    // Grown by what is really read, never by what a file claims: a false length costs nothing.
    if (buffer_.size() - end_ < read_size)
      buffer_.resize(std::max(end_ + read_size, end_ + end_ / 2));
    auto got = from_->read(std::span(buffer_).subspan(end_));
    if (!got) return got.error();
    if (*got == 0) ended_ = true;
    end_ += *got;
  }
  return end_ - begin_;
}

result<std::unique_ptr<input>> open_raw_input(const std::string& path, const std::string& name) {
  const std::string& shown = name.empty() ? path : name;
  const auto failed = [&](const char* why) {
    return error{error_code::bad_input, fmt::format("{}: cannot be opened: {}", shown, why)};
  };
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (file < 0) return failed(std::strerror(errno));
  struct stat found{};
  const bool known = fstat(file, &found) == 0;
  std::FILE* const stream = fdopen(file, "rb");
  if (stream == nullptr) {
    close(file);
    return failed(std::strerror(errno));
  }
  std::unique_ptr<input> made = std::make_unique<file_input>(stream, shown);
  // A device may never end (/dev/zero), or be somebody's keyboard.
  if (known && (S_ISDIR(found.st_mode) || S_ISCHR(found.st_mode) || S_ISBLK(found.st_mode)))
    return failed(S_ISDIR(found.st_mode) ? "it is a folder: expected a file"
                                         : "it is a device: expected a file or a pipe");
  return made;
}

result<input_buffer> open_input(const std::string& path, const std::string& name) {
  auto from = open_raw_input(path, name);
  if (!from) return from.error();
  return undo_gzip(input_buffer(std::move(*from), name.empty() ? path : name));
}

result<input_buffer> open_input_bytes(std::string name, std::string bytes) {
  return undo_gzip(input_buffer(std::make_unique<memory_input>(std::move(bytes)), std::move(name)));
}

error bad_line(const std::string& name, std::uint64_t line, std::string_view expected,
               std::string_view found) {
  return {error_code::bad_input, fmt::format("{}:{}: expected {}, found {}", name, line, expected,
                                             found.empty() ? "nothing" : in_quotes(found))};
}

error bad_byte(const std::string& name, std::uint64_t offset, std::string_view expected,
               std::string_view found) {
  return {error_code::bad_input,
          fmt::format("{}: at byte {}: expected {}, found {}", name, offset, expected, found)};
}

}  // namespace millpond::trace
