#include "record/recording_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "base/output_file.hpp"
#include "trace/source.hpp"

namespace millpond::record {
namespace {

namespace fs = std::filesystem;

bool number_in(std::string_view text, std::uint64_t& into) {
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), into);
  return fault == std::errc{} && end == text.data() + text.size();
}

bool is_file(const std::string& path, std::uint64_t* bytes = nullptr) {
  struct stat found{};
  if (lstat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) return false;
  if (bytes != nullptr) *bytes = static_cast<std::uint64_t>(found.st_size);
  return true;
}

error taken(const std::string& path) {
  return {error_code::output_failure,
          fmt::format("{}: is there already and is no recording of millpond, so it is not written "
                      "over: name another file (-o), or move it away",
                      path)};
}

}  // namespace

std::optional<recording_facts> read_recording_facts(const std::string& path) {
  if (!is_file(path)) return std::nullopt;
  auto source = trace::open_trace(path);
  if (!source || source->info().from != trace::format::mpt) return std::nullopt;
  // What it says of itself stands before its first event.
  trace::event first;
  static_cast<void>(source->read({&first, 1}));
  recording_facts made;
  for (const auto& [name, value] : source->info().meta.notes) {
    if (name == "process") static_cast<void>(number_in(value, made.process));
    if (name == "root_process") static_cast<void>(number_in(value, made.root));
  }
  return made;
}

std::vector<std::string> recordings_of_children(const std::string& path) {
  const fs::path whole(path);
  const std::string stem = whole.stem().string() + '.', ending = whole.extension().string();
  std::vector<std::string> made;
  std::error_code ignored;
  fs::directory_iterator each(whole.has_parent_path() ? whole.parent_path() : fs::path("."),
                              ignored);
  for (; !ignored && each != fs::directory_iterator(); each.increment(ignored)) {
    const std::string name = each->path().filename().string();
    if (!name.starts_with(stem) || !name.ends_with(ending) ||
        name.size() <= stem.size() + ending.size())
      continue;
    std::uint64_t process = 0;
    const std::string_view number(name.data() + stem.size(),
                                  name.size() - stem.size() - ending.size());
    if (!number_in(number, process)) continue;
    const auto facts = read_recording_facts(each->path().string());
    if (facts && facts->process == process) made.push_back(each->path().string());
  }
  std::ranges::sort(made);
  return made;
}

result<std::unique_ptr<trace::sink>> make_recording_sink(const std::string& path, unsigned mode) {
  struct stat found{};
  const bool there = lstat(path.c_str(), &found) == 0;
  int flags = O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY;
  if (!there || !S_ISCHR(found.st_mode)) flags |= O_CREAT | O_EXCL;
  if (there && S_ISREG(found.st_mode)) {
    // A program that became another one goes on under its own name.
    const auto facts = read_recording_facts(path);
    if (!facts || facts->process != static_cast<std::uint64_t>(getpid())) return taken(path);
    unlink(path.c_str());
  }
  const int file = open(path.c_str(), flags, mode);
  if (file < 0 && errno == EEXIST) return taken(path);
  if (file < 0) {
    return error{error_code::output_failure,
                 fmt::format("{}: cannot be made: {}", path, std::strerror(errno))};
  }
  return trace::make_descriptor_sink(file, path);
}

result<recording_place> find_recording_place(const std::string& path) {
  auto target = find_write_target(path);
  if (!target) return target.error();
  std::error_code fault;
  recording_place made{fs::absolute(target->path, fault).lexically_normal().string(), 0644};
  if (fault) made.path = target->path;
  if (target->what == write_target::sort::stream && fs::is_fifo(target->path, fault)) {
    return error{error_code::output_failure,
                 path +
                     ": is a pipe: a recording is read again when the program has ended, so it "
                     "needs a file"};
  }
  if (target->what != write_target::sort::file) return made;
  made.mode = target->mode & 0777;
  std::uint64_t bytes = 0;
  if (is_file(target->path, &bytes) && bytes > 0 && !read_recording_facts(target->path))
    return taken(path);
  return made;
}

earlier_recordings::earlier_recordings(const std::string& path) {
  for (const std::string& old : recordings_of_children(path)) move(old);
  std::uint64_t bytes = 0;
  if (is_file(path, &bytes) && (bytes == 0 || read_recording_facts(path))) move(path);
}

earlier_recordings::~earlier_recordings() {
  for (const moved& each : moved_) {
    if (replaced_)
      unlink(each.to.c_str());
    else
      static_cast<void>(rename_to_free_name(each.to, each.from));
  }
}

void earlier_recordings::move(const std::string& old) {
  for (int number = 1; number < 1000; ++number) {
    const std::string to = number == 1 ? old + ".before" : fmt::format("{}.before-{}", old, number);
    if (rename_to_free_name(old, to)) {
      moved_.push_back({old, to});
      return;
    }
    if (errno != EEXIST) return;
  }
}

}  // namespace millpond::record
