#include "base/output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <utility>

namespace millpond {
namespace {

constexpr unsigned permission_bits = 07777;
// What ends a process and can be caught.
constexpr std::array ending_signals{SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE};

// Names that a signal removes. A slot is taken, filled and emptied by its file alone; a handler
// only reads.
constexpr int most_names = 16;
std::array<std::atomic<const char*>, most_names> unfinished{};

int remember(const std::string& name) {
  char* const copy = strdup(name.c_str());
  for (int slot = 0; copy != nullptr && slot < most_names; ++slot) {
    const char* nothing = nullptr;
    if (unfinished[static_cast<std::size_t>(slot)].compare_exchange_strong(nothing, copy))
      return slot;
  }
  free(copy);
  return -1;
}

void forget_name(int slot) noexcept {
  // Never freed: a handler on another thread may be reading it. It is one short text a file.
  if (slot >= 0) unfinished[static_cast<std::size_t>(slot)].store(nullptr);
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// A new file beside `path` that nobody else can open, under a name that nobody can guess; -1 with
// errno.
int make_beside(const std::string& path, std::string& name) {
  name = folder_of(path) + "/.millpond-XXXXXX";
  return mkostemp(name.data(), O_CLOEXEC);
}

unsigned umask_of_process() {
  // umask() itself changes what other threads make.
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Umask:"))
      return static_cast<unsigned>(std::strtoul(line.c_str() + 6, nullptr, 8)) & 0777;
  }
  return 022;
}

error cannot(const std::string& path, const char* doing, int reason) {
  return {error_code::output_failure,
          fmt::format("{}: {}: {}", path, doing, std::strerror(reason))};
}

std::string whole_path(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> made(realpath(path.c_str(), nullptr), free);
  return made == nullptr ? path : std::string(made.get());
}

// Signals stay away while a file has a name that is not its own.
class no_signals {
 public:
  no_signals() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~no_signals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  no_signals(const no_signals&) = delete;
  no_signals& operator=(const no_signals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

result<write_target> find_write_target(const std::string& path) {
  constexpr int most_links = 40;
  std::string at = path;
  for (int links = 0; links <= most_links; ++links) {
    struct stat found{};
    if (stat(at.c_str(), &found) == 0) {
      if (S_ISREG(found.st_mode) && access(at.c_str(), W_OK) != 0)
        return cannot(path, "cannot be written", errno);
      if (S_ISREG(found.st_mode))
        return write_target{whole_path(at), write_target::sort::file,
                            found.st_mode & permission_bits};
      if (S_ISCHR(found.st_mode) || S_ISFIFO(found.st_mode))
        return write_target{at, write_target::sort::stream, 0};
      return error{error_code::output_failure,
                   fmt::format("{}: is {}: expected a file's name", path,
                               S_ISDIR(found.st_mode) ? "a folder" : "no file")};
    }
    if (errno == ELOOP) break;
    if (errno != ENOENT) return cannot(path, "cannot be written", errno);
    char to[4096];
    const ssize_t length = readlink(at.c_str(), to, sizeof to);
    if (length < 0) return write_target{at, write_target::sort::nothing, 0};
    const std::string next(to, static_cast<std::size_t>(length));
    at = next.starts_with('/') ? next : folder_of(at) + '/' + next;
  }
  return error{error_code::output_failure,
               fmt::format("{}: its links lead in a circle: name the file itself", path)};
}

output_file::output_file(int file, write_target target, std::string beside, int slot)
    : file_(file), target_(std::move(target)), beside_(std::move(beside)), slot_(slot) {}

output_file::output_file(output_file&& from) noexcept
    : file_(std::exchange(from.file_, -1)),
      target_(std::move(from.target_)),
      beside_(std::exchange(from.beside_, {})),
      slot_(std::exchange(from.slot_, -1)),
      written_(from.written_) {}

output_file::~output_file() {
  if (!beside_.empty()) unlink(beside_.c_str());
  forget();
}

void output_file::forget() noexcept {
  forget_name(std::exchange(slot_, -1));
  beside_.clear();
  if (file_ >= 0) close(file_);
  file_ = -1;
}

result<output_file> output_file::create(const std::string& path, unsigned mode) {
  auto target = find_write_target(path);
  if (!target) return target.error();
  if (target->what == write_target::sort::stream) {
    const int file = open(target->path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (file < 0) return cannot(path, "cannot be written", errno);
    return output_file(file, std::move(*target), {}, -1);
  }
  const bool replaces = target->what == write_target::sort::file;
  // Without a name nobody else can open it, and it goes with the process however that ends. It
  // gets one through /proc.
  if (access("/proc/self/fd", X_OK) == 0) {
    const int file =
        open(folder_of(target->path).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, mode & 0777);
    if (file >= 0) return output_file(file, std::move(*target), {}, -1);
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)
      return cannot(path, "cannot be written", errno);
  }
  if (!replaces) target->mode = mode & ~umask_of_process();
  const no_signals quiet;
  std::string beside;
  const int file = make_beside(target->path, beside);
  if (file < 0) return cannot(path, "cannot be written", errno);
  const int slot = remember(beside);
  return output_file(file, std::move(*target), std::move(beside), slot);
}

result<void> output_file::failed(const char* doing) const {
  return cannot(target_.path, doing, errno);
}

result<void> output_file::write(std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(file_, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      return error{error_code::output_failure,
                   fmt::format("{}: {} bytes could not be written after {}: {}", target_.path,
                               bytes.size(), written_, std::strerror(wrote == 0 ? ENOSPC : errno))};
    }
    written_ += static_cast<std::uint64_t>(wrote);
    bytes = bytes.subspan(static_cast<std::size_t>(wrote));
  }
  return {};
}

result<void> output_file::put_in_place() {
  if (target_.what == write_target::sort::stream) return {};
  const bool named = !beside_.empty();
  if ((named || target_.what == write_target::sort::file) && fchmod(file_, target_.mode) != 0)
    return failed("the mode of the old file could not be kept");
  const no_signals quiet;
  if (!named) {
    const std::string self = fmt::format("/proc/self/fd/{}", file_);
    const auto link_as = [&](const std::string& name) {
      return linkat(AT_FDCWD, self.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
    };
    if (target_.what == write_target::sort::nothing && link_as(target_.path)) {
      forget();
      return {};
    }
    if (target_.what == write_target::sort::nothing && errno != EEXIST)
      return failed("cannot be written");
    // A name that was free a moment ago; whoever takes it in between is not overwritten.
    const int taken = make_beside(target_.path, beside_);
    if (taken < 0) {
      beside_.clear();
      return failed("cannot be put in its place");
    }
    close(taken);
    unlink(beside_.c_str());
    slot_ = remember(beside_);
    if (!link_as(beside_)) {
      beside_.clear();
      return failed("cannot be put in its place");
    }
  }
  if (rename(beside_.c_str(), target_.path.c_str()) != 0)
    return failed("cannot be put in its place");
  forget();
  return {};
}

bool rename_to_free_name(const std::string& from, const std::string& to) noexcept {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return true;
  if (errno != EINVAL && errno != ENOSYS) return false;
  // File systems without that: a second name is refused where one is, then the first one goes.
  return link(from.c_str(), to.c_str()) == 0 && unlink(from.c_str()) == 0;
}

void remove_unfinished_files() noexcept {
  for (const auto& each : unfinished) {
    if (const char* const name = each.load()) unlink(name);
  }
}

void remove_unfinished_files_at_signals() noexcept {
  for (const int each : ending_signals) {
    struct sigaction before{}, how{};
    if (sigaction(each, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) continue;
    how.sa_handler = [](int signal) {
      remove_unfinished_files();
      // The handler was for once: the signal ends the process as it would have.
      raise(signal);
    };
    how.sa_flags = static_cast<int>(SA_RESETHAND);
    sigaction(each, &how, nullptr);
  }
}

}  // namespace millpond
