#include "record/launcher.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>

#include "base/output_file.hpp"
#include "record/recording_file.hpp"

namespace millpond::record {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void become(const launch_request& request, int report) {
  settings how = request.how;
  how.root = static_cast<std::uint64_t>(getpid());
  setenv("CUDA_INJECTION64_PATH", request.library.c_str(), 1);
  setenv(settings_variable, format_settings(how).c_str(), 1);
  if (!how.cupti.empty()) setenv("NVTX_INJECTION64_PATH", how.cupti.c_str(), 0);
  std::vector<char*> arguments;
  arguments.reserve(request.command.size() + 1);
  for (const std::string& each : request.command)
    arguments.push_back(const_cast<char*>(each.c_str()));
  arguments.push_back(nullptr);
  if (request.output >= 0) {
    const int nothing = open("/dev/null", O_RDONLY);
    if (nothing < 0 || dup2(nothing, 0) < 0 || dup2(request.output, 1) < 0 ||
        dup2(request.output, 2) < 0)
      _exit(126);
  }
  execvp(arguments[0], arguments.data());
  const int reason = errno;
  if (write(report, &reason, sizeof reason) < 0) _exit(126);
  _exit(127);
}

// Signals that come while the program runs are the program's: it ends as it would have, and what it
// recorded is finished. What a terminal sends goes to the program by itself; what another process
// sends goes to us alone.
class passed_signals {
 public:
  // Until begin() they wait.
  passed_signals() {
    sigset_t these;
    sigemptyset(&these);
    for (const int each : all) sigaddset(&these, each);
    pthread_sigmask(SIG_BLOCK, &these, &mask_);
  }
  void begin(pid_t program) {
    to_.store(program);
    struct sigaction how{};
    how.sa_sigaction = [](int signal, siginfo_t* from, void*) {
      const int before = errno;
      if (from->si_code <= 0) kill(to_.load(), signal);
      errno = before;
    };
    how.sa_flags = SA_SIGINFO | SA_RESTART;
    for (std::size_t n = 0; n < all.size(); ++n) {
      sigaction(all[n], nullptr, &before_[n]);
      if (before_[n].sa_handler != SIG_IGN) sigaction(all[n], &how, nullptr);
    }
    begun_ = true;
    pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  }
  // The child's own: as it was before.
  [[nodiscard]] const sigset_t& mask() const noexcept { return mask_; }
  ~passed_signals() {
    if (begun_) {
      for (std::size_t n = 0; n < all.size(); ++n) sigaction(all[n], &before_[n], nullptr);
    } else {
      pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
    }
  }
  passed_signals(const passed_signals&) = delete;
  passed_signals& operator=(const passed_signals&) = delete;

 private:
  static constexpr std::array all{SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
  static inline std::atomic<pid_t> to_{0};
  std::array<struct sigaction, all.size()> before_{};
  sigset_t mask_;
  bool begun_ = false;
};

// Where pip puts packages: beside this command where it came by pip, then the active environment's,
// the user's and the system's.
std::vector<fs::path> python_packages() {
  std::vector<fs::path> out;
  std::error_code fault;
  if (const fs::path self = fs::read_symlink("/proc/self/exe", fault); !fault) {
    for (fs::path up = self.parent_path(); up != up.root_path(); up = up.parent_path()) {
      if (up.filename() == "site-packages" || up.filename() == "dist-packages") out.push_back(up);
    }
  }
  std::vector<fs::path> prefixes;
  if (const char* environment = std::getenv("VIRTUAL_ENV"))
    prefixes.emplace_back(fs::path(environment) / "lib");
  if (const char* home = std::getenv("HOME")) prefixes.emplace_back(fs::path(home) / ".local/lib");
  prefixes.emplace_back("/usr/local/lib");
  prefixes.emplace_back("/usr/lib");
  for (const fs::path& prefix : prefixes) {
    for (const auto& each :
         fs::directory_iterator(prefix, fs::directory_options::skip_permission_denied, fault)) {
      if (each.path().filename().string().rfind("python3", 0) != 0) continue;
      out.push_back(each.path() / "site-packages");
      out.push_back(each.path() / "dist-packages");
    }
  }
  return out;
}

// Of this run: whatever was there before is out of the way. A trace of a child alone takes the name
// that was asked for.
std::vector<std::string> recordings_left(const std::string& path, std::uint64_t root) {
  std::error_code fault;
  const bool own = fs::is_regular_file(fs::symlink_status(path, fault));
  std::vector<std::string> children;
  for (const std::string& each : recordings_of_children(path)) {
    const auto facts = read_recording_facts(each);
    if (facts && facts->root == root) children.push_back(each);
  }
  if (!own && children.size() == 1 && rename_to_free_name(children.front(), path))
    children.front() = path;
  std::vector<std::string> made;
  if (own) made.push_back(path);
  made.insert(made.end(), children.begin(), children.end());
  return made;
}

}  // namespace

result<launch_outcome> launch(const launch_request& request) {
  if (request.library.empty() || access(request.library.c_str(), R_OK) != 0) {
    return error{error_code::not_supported,
                 "libmillpond_record.so was not found beside the command; --library names it"};
  }
  if (const char* other = std::getenv("CUDA_INJECTION64_PATH");
      other != nullptr && *other != '\0') {
    return error{error_code::not_permitted,
                 std::string("CUDA_INJECTION64_PATH is set to ") + other +
                     ": another tool is injected already, and there can be only one"};
  }
  const auto place = find_recording_place(request.how.path);
  if (!place) return place.error();
  launch_request whole = request;
  std::error_code fault;
  whole.how.path = place->path;
  if (request.keeps_mode) whole.how.file_mode = place->mode;
  whole.library = fs::absolute(request.library, fault).string();
  if (const fs::path folder = fs::path(whole.how.path).parent_path();
      !fs::is_directory(folder, fault)) {
    return error{error_code::output_failure,
                 whole.how.path + ": there is no folder " + folder.string()};
  }
  earlier_recordings earlier(whole.how.path);

  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0)
    return error{error_code::output_failure, "no pipe to the program"};
  std::optional<passed_signals> signals;
  if (request.passes_signals) signals.emplace();
  const pid_t child = fork();
  if (child < 0)
    return error{error_code::output_failure,
                 std::string("the program could not be started: ") + std::strerror(errno)};
  if (child == 0) {
    if (signals) pthread_sigmask(SIG_SETMASK, &signals->mask(), nullptr);
    become(whole, report[1]);
  }
  if (signals) signals->begin(child);
  close(report[1]);
  int reason = 0;
  const bool failed = read(report[0], &reason, sizeof reason) == sizeof reason;
  close(report[0]);
  if (!failed && request.started) request.started(child);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  signals.reset();
  if (failed)
    return error{error_code::bad_input, request.command.front() + ": " + std::strerror(reason)};

  launch_outcome made;
  if (WIFSIGNALED(status)) {
    made.signal = WTERMSIG(status);
  } else {
    made.exit_status = WEXITSTATUS(status);
  }
  made.traces = recordings_left(whole.how.path, static_cast<std::uint64_t>(child));
  if (!made.traces.empty()) earlier.replaced();
  return made;
}

std::string find_own_library(const char* file) {
  std::error_code fault;
  const fs::path self = fs::read_symlink("/proc/self/exe", fault);
  if (fault) return {};
  // A build folder has them beside the command or in lib, an installation in one of lib's names.
  for (const char* place : {".", "lib", "../lib", "../lib/x86_64-linux-gnu", "../lib64"}) {
    const fs::path library = self.parent_path() / place / file;
    if (fs::exists(library, fault)) return fs::weakly_canonical(library, fault).string();
  }
  return {};
}

std::string find_recorder_library() {
  return find_own_library("libmillpond_record.so");
}

std::string find_cupti() {
  std::vector<fs::path> folders{"/usr/local/cuda/extras/CUPTI/lib64", "/usr/local/cuda/lib64",
                                "/usr/local/cuda/lib", "/usr/local/cuda/targets/x86_64-linux/lib"};
  if (const char* home = std::getenv("CUDA_HOME"))
    folders.insert(folders.begin(),
                   {fs::path(home) / "extras/CUPTI/lib64", fs::path(home) / "lib64"});
  for (const fs::path& packages : python_packages()) {
    for (const char* part : {"nvidia/cu13/lib", "nvidia/cuda_cupti/lib"})
      folders.push_back(packages / part);
  }
  for (const fs::path& folder : folders) {
    for (const char* name : {"libcupti.so.13", "libcupti.so.12", "libcupti.so"}) {
      std::error_code fault;
      if (fs::exists(folder / name, fault)) return (folder / name).string();
    }
  }
  return {};
}

}  // namespace millpond::record
