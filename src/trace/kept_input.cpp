#include "trace/kept_input.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "trace/input.hpp"

namespace millpond::trace {

result<kept_input> kept_input::take(const std::string& path) {
  kept_input made;
  made.path_ = made.name_ = path;
  struct stat found{};
  if (stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode)) return made;
  auto from = open_raw_input(path);
  if (!from) return from.error();
  made.copy_.reset(std::tmpfile());
  const auto failed = [&](int reason) {
    return error{error_code::output_failure,
                 fmt::format("{}: can be read only once, and its copy in a temporary file could "
                             "not be written: {}",
                             path, std::strerror(reason))};
  };
  if (made.copy_ == nullptr) return failed(errno);
  std::vector<std::byte> part(std::size_t{256} << 10);
  for (;;) {
    const auto got = (*from)->read(part);
    if (!got) return got.error();
    if (*got == 0) break;
    if (std::fwrite(part.data(), 1, *got, made.copy_.get()) != *got) return failed(errno);
  }
  if (std::fflush(made.copy_.get()) != 0) return failed(errno);
  made.path_ = fmt::format("/proc/self/fd/{}", fileno(made.copy_.get()));
  return made;
}

}  // namespace millpond::trace
