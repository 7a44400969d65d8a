#include "cli/top_target.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "record/settings.hpp"
#include "trace/reader.hpp"

namespace millpond::cli {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> whole_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string command_of(int process) {
  std::string text = whole_file(fmt::format("/proc/{}/cmdline", process)).value_or("");
  while (!text.empty() && text.back() == '\0') text.pop_back();
  std::ranges::replace(text, '\0', ' ');
  return text;
}

// The value that a variable had when the process began.
std::optional<std::string> variable_of(const std::string& environment, std::string_view name) {
  for (std::size_t at = 0; at < environment.size();) {
    const std::size_t end = std::min(environment.find('\0', at), environment.size());
    const std::string_view entry(environment.data() + at, end - at);
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=')
      return std::string(entry.substr(name.size() + 1));
    at = end + 1;
  }
  return std::nullopt;
}

result<top_target> process_target(const std::string& word) {
  top_target made;
  made.what = top_target::sort::process;
  made.process = word.size() > 9 ? 0 : std::stoi(word);
  if (made.process == 0 || !process_runs(made.process))
    return error{error_code::bad_input, fmt::format("there is no process {}", word)};
  const auto environment = whole_file(fmt::format("/proc/{}/environ", word));
  if (!environment) {
    return error{
        error_code::bad_input,
        fmt::format("what process {} was started with cannot be read: is it another user's?",
                    word)};
  }
  const std::string command = command_of(made.process);
  const auto text = variable_of(*environment, record::settings_variable);
  if (!text) {
    return error{error_code::bad_input,
                 fmt::format("process {} ({}) is not being recorded, and nobody can look into it "
                             "from outside. Start it with `millpond top -- "
                             "PROGRAM` or `millpond record -- PROGRAM`",
                             word, command.substr(0, 60))};
  }
  const auto how = record::parse_settings(*text);
  if (!how)
    return error{error_code::bad_input,
                 fmt::format("process {} is recorded by another version of millpond", word)};
  if (how->last_events != 0) {
    return error{error_code::bad_input, fmt::format("process {} is recorded with --last: its trace "
                                                    "is only written as a whole, now and then",
                                                    word)};
  }
  made.trace = record::path_of_process(*how, static_cast<std::uint64_t>(made.process));
  made.title = fmt::format("{} (process {})", command.substr(0, 48), made.process);
  return made;
}

}  // namespace

bool process_runs(int process) {
  if (kill(process, 0) != 0 && errno == ESRCH) return false;
  // One that has ended and was not waited for yet writes nothing any more.
  const std::string state = whole_file(fmt::format("/proc/{}/stat", process)).value_or("");
  const std::size_t name_end = state.rfind(')');
  return name_end == std::string::npos || name_end + 2 >= state.size() ||
         state[name_end + 2] != 'Z';
}

result<top_target> find_top_target(const std::vector<std::string>& words) {
  if (words.empty() || words.front().empty())
    return error{error_code::invalid_argument,
                 "expected a process id, a trace, or a program behind `--`"};
  const std::string& first = words.front();
  if (words.size() == 1 &&
      std::ranges::all_of(first, [](char each) { return each >= '0' && each <= '9'; }))
    return process_target(first);
  std::error_code fault;
  if (words.size() == 1 && fs::is_regular_file(first, fault)) {
    std::string head(8, '\0');
    std::ifstream file(first, std::ios::binary);
    file.read(head.data(), 8);
    head.resize(static_cast<std::size_t>(file.gcount()));
    if (trace::is_mpt(head)) return top_target{top_target::sort::trace, first, first, 0};
    const auto mode = fs::status(first, fault).permissions();
    if ((mode & fs::perms::owner_exec) == fs::perms::none) {
      return error{error_code::bad_input,
                   fmt::format("{}: expected a trace of millpond (.mpt) or a program; `millpond "
                               "report` reads other traces",
                               first)};
    }
  }
  return top_target{top_target::sort::program, first.substr(first.rfind('/') + 1), {}, 0};
}

}  // namespace millpond::cli
