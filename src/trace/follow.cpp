#include "trace/follow.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "base/quote.hpp"
#include "trace/input.hpp"
#include "trace/reader.hpp"

namespace millpond::trace {
namespace {

class growing_input final : public input {
 public:
  growing_input(std::FILE* file, std::string name, std::function<bool()> wait)
      : file_(file), name_(std::move(name)), wait_(std::move(wait)) {}
  ~growing_input() override { std::fclose(file_); }

  result<std::size_t> read(std::span<std::byte> into) override {
    for (bool last = false;;) {
      const std::size_t got = std::fread(into.data(), 1, into.size(), file_);
      if (got > 0) return got;
      if (std::ferror(file_) != 0) {
        return error{error_code::bad_input,
                     fmt::format("{}: cannot be read: {}", name_, std::strerror(errno))};
      }
      // One look more after the word that nothing comes: it may have been written just before.
      if (last) return std::size_t{0};
      last = !wait_();
      std::clearerr(file_);
    }
  }

 private:
  std::FILE* file_;
  std::string name_;
  std::function<bool()> wait_;
};

}  // namespace

result<trace_source> follow_trace(const std::string& path, std::function<bool()> wait) {
  // A pipe is opened at once, and refused; it would be waited for.
  const int opened = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  std::FILE* file = opened < 0 ? nullptr : fdopen(opened, "rb");
  if (file == nullptr) {
    return error{error_code::bad_input,
                 fmt::format("{}: cannot be opened: {}", path, std::strerror(errno))};
  }
  struct stat found{};
  if (fstat(fileno(file), &found) != 0 || !S_ISREG(found.st_mode)) {
    std::fclose(file);
    return error{error_code::bad_input, path +
                                            ": expected a trace's file, found a folder, a "
                                            "device or a pipe"};
  }
  // Buffered, a read that came to the end in the middle would not be tried again.
  std::setvbuf(file, nullptr, _IONBF, 0);
  open_options options;
  options.behind_the_end = open_options::rest::not_looked_at;
  input_buffer from(std::make_unique<growing_input>(file, path, std::move(wait)), path);
  if (const auto head = from.fill(8); !head) {
    return head.error();
  } else if (*head > 0 && !is_mpt(from.view())) {
    return bad_byte(path, 0, "a trace of millpond (.mpt)", in_quotes(from.view().substr(0, 24)));
  }
  auto reader = read_mpt(std::move(from), options);
  if (!reader) return reader.error();
  return trace_source(std::move(*reader));
}

}  // namespace millpond::trace
