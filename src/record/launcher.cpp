#include "record/launcher.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace millpond::record {
namespace {

namespace fs = std::filesystem;

// "server.1234.mpt" beside "server.mpt".
std::vector<std::string> traces_of_children(const std::string& path) {
  const fs::path whole(path);
  const std::string stem = whole.stem().string() + '.', ending = whole.extension().string();
  std::vector<std::string> made;
  std::error_code ignored;
  for (const auto& each : fs::directory_iterator(
           whole.has_parent_path() ? whole.parent_path() : fs::path("."), ignored)) {
    const std::string name = each.path().filename().string();
    if (!name.starts_with(stem) || !name.ends_with(ending) ||
        name.size() <= stem.size() + ending.size())
      continue;
    const std::string number = name.substr(stem.size(), name.size() - stem.size() - ending.size());
    if (std::ranges::all_of(number, [](char digit) { return digit >= '0' && digit <= '9'; }))
      made.push_back(each.path().string());
  }
  std::ranges::sort(made);
  return made;
}

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

// Earlier recordings under the name of the new one: out of the way while the program runs, gone
// when it has left a recording, back in their places when it has not.
class set_aside {
 public:
  explicit set_aside(const std::string& path) {
    std::error_code fault;
    for (const std::string& old : traces_of_children(path)) move(old);
    // Only a file: the output may be a device, which is nobody's to move.
    if (fs::is_regular_file(path, fault)) move(path);
  }
  ~set_aside() {
    std::error_code fault;
    for (const std::string& old : moved_) {
      if (replaced_)
        fs::remove(old + suffix, fault);
      else
        fs::rename(old + suffix, old, fault);
    }
  }
  set_aside(const set_aside&) = delete;
  set_aside& operator=(const set_aside&) = delete;
  void replaced() noexcept { replaced_ = true; }

 private:
  static constexpr const char* suffix = ".before";
  void move(const std::string& old) {
    std::error_code fault;
    fs::rename(old, old + suffix, fault);
    if (!fault) moved_.push_back(old);
  }
  std::vector<std::string> moved_;
  bool replaced_ = false;
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
  launch_request whole = request;
  std::error_code fault;
  whole.how.path = fs::absolute(request.how.path, fault).string();
  whole.library = fs::absolute(request.library, fault).string();
  if (const fs::path folder = fs::path(whole.how.path).parent_path();
      !fs::is_directory(folder, fault)) {
    return error{error_code::output_failure,
                 whole.how.path + ": there is no folder " + folder.string()};
  }
  set_aside earlier(whole.how.path);

  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0)
    return error{error_code::output_failure, "no pipe to the program"};
  const pid_t child = fork();
  if (child < 0)
    return error{error_code::output_failure,
                 std::string("the program could not be started: ") + std::strerror(errno)};
  if (child == 0) become(whole, report[1]);
  close(report[1]);
  int reason = 0;
  const bool failed = read(report[0], &reason, sizeof reason) == sizeof reason;
  close(report[0]);
  if (!failed && request.started) request.started(child);

  struct sigaction ignore{}, interrupt{}, quit{};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGINT, &ignore, &interrupt);
  sigaction(SIGQUIT, &ignore, &quit);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  sigaction(SIGINT, &interrupt, nullptr);
  sigaction(SIGQUIT, &quit, nullptr);
  if (failed)
    return error{error_code::bad_input, request.command.front() + ": " + std::strerror(reason)};

  launch_outcome made;
  if (WIFSIGNALED(status)) {
    made.signal = WTERMSIG(status);
  } else {
    made.exit_status = WEXITSTATUS(status);
  }
  const bool own = fs::is_regular_file(whole.how.path, fault);
  std::vector<std::string> children = traces_of_children(whole.how.path);
  if (!own && children.size() == 1) {
    fs::rename(children.front(), whole.how.path, fault);
    if (!fault) children.front() = whole.how.path;
  }
  if (own) made.traces.push_back(whole.how.path);
  made.traces.insert(made.traces.end(), children.begin(), children.end());
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
