#include "record/lines.hpp"

#include <elf.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <vector>

#include "base/output_file.hpp"
#include "record/symbols.hpp"
#include "trace/source.hpp"
#include "trace/writer.hpp"

namespace millpond::record {
namespace {

struct line {
  std::string symbol, file;
  std::uint32_t number = 0;
};
// Innermost first: what was inlined there, then the function itself.
using addresses = std::map<std::uint64_t, std::vector<line>>;

// The address that frames_of wrote behind a symbol, or nothing.
bool address_of(std::string_view symbol, std::uint64_t& address) {
  const auto at = symbol.rfind(" (+0x");
  if (at == std::string_view::npos || !symbol.ends_with(')')) return false;
  const std::string_view digits = symbol.substr(at + 5, symbol.size() - at - 6);
  const auto [end, fault] =
      std::from_chars(digits.data(), digits.data() + digits.size(), address, 16);
  return fault == std::errc{} && end == digits.data() + digits.size();
}

// Wrappers that the toolkit's headers inline into the program.
bool is_cuda_file(const std::string& path) {
  return path.ends_with("/cuda_runtime.h") || path.ends_with("/cuda_runtime_api.h");
}

// addr2line over a module, with these lines as its input; nothing where it cannot be started. The
// list is memory without a name: nothing is left of it whatever ends us.
class addr2line {
 public:
  addr2line(const std::string& module, const std::string& list) {
    const int input = memfd_create("addresses", MFD_CLOEXEC);
    int output[2];
    if (input < 0 || pipe2(output, O_CLOEXEC) != 0) {
      if (input >= 0) close(input);
      return;
    }
    const bool written =
        write(input, list.data(), list.size()) == static_cast<ssize_t>(list.size()) &&
        lseek(input, 0, SEEK_SET) == 0;
    if (written) start(module, input, output[1]);
    close(input);
    close(output[1]);
    rows_ = fdopen(output[0], "r");
    if (rows_ == nullptr) close(output[0]);
  }
  ~addr2line() {
    std::free(row_);
    if (rows_ != nullptr) std::fclose(rows_);
    int ignored = 0;
    while (process_ > 0 && waitpid(process_, &ignored, 0) < 0 && errno == EINTR) {
    }
  }
  addr2line(const addr2line&) = delete;
  addr2line& operator=(const addr2line&) = delete;
  // The next line of its answer, without its end.
  bool next(std::string& into) {
    const ssize_t got = rows_ == nullptr ? 0 : getline(&row_, &room_, rows_);
    if (got <= 0) return false;
    into.assign(row_, static_cast<std::size_t>(got));
    while (!into.empty() && into.back() == '\n') into.pop_back();
    return true;
  }

 private:
  void start(const std::string& module, int input, int output) {
    const char* const words[] = {"addr2line", "-a", "-i",           "-f",
                                 "-C",        "-e", module.c_str(), nullptr};
    posix_spawn_file_actions_t files;
    if (posix_spawn_file_actions_init(&files) != 0) return;
    posix_spawn_file_actions_adddup2(&files, input, 0);
    posix_spawn_file_actions_adddup2(&files, output, 1);
    posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    if (posix_spawnp(&process_, words[0], &files, nullptr, const_cast<char* const*>(words),
                     environ) != 0)
      process_ = 0;
    posix_spawn_file_actions_destroy(&files);
  }
  pid_t process_ = 0;
  std::FILE* rows_ = nullptr;
  char* row_ = nullptr;
  std::size_t room_ = 0;
};

void resolve(const std::string& module, addresses& wanted) {
  std::string list;
  for (const auto& [address, ignored] : wanted) {
    char digits[24];
    std::snprintf(digits, sizeof digits, "0x%llx\n", static_cast<unsigned long long>(address));
    list += digits;
  }
  addr2line answer(module, list);
  std::string row, place;
  auto into = wanted.begin();
  bool first = true, more = answer.next(row);
  while (more) {
    // The next address; pairs of lines follow, one for each inlined function.
    if (row.starts_with("0x")) {
      if (!first && ++into == wanted.end()) break;
      first = false;
      more = answer.next(row);
      continue;
    }
    if (first || !answer.next(place)) break;
    line found;
    if (row != "??") found.symbol = row;
    if (const auto note = place.find(" (discriminator"); note != std::string::npos)
      place.resize(note);
    const auto colon = place.rfind(':');
    if (colon != std::string::npos && !place.starts_with("??")) {
      std::from_chars(place.data() + colon + 1, place.data() + place.size(), found.number);
      found.file = place.substr(0, colon);
    }
    into->second.push_back(std::move(found));
    more = answer.next(row);
  }
}

}  // namespace

bool has_line_table(const std::string& path) {
  // The name comes from a recording: a pipe there would be waited for.
  std::error_code fault;
  if (!std::filesystem::is_regular_file(path, fault)) return false;
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header{};
  if (!file.read(reinterpret_cast<char*>(&header), sizeof header)) return false;
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_shoff == 0)
    return false;
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  file.seekg(static_cast<std::streamoff>(header.e_shoff));
  if (!file.read(reinterpret_cast<char*>(sections.data()),
                 static_cast<std::streamsize>(sections.size() * sizeof(Elf64_Shdr))))
    return false;
  if (header.e_shstrndx >= sections.size()) return false;
  std::string names(std::min<std::size_t>(sections[header.e_shstrndx].sh_size, 1u << 20), '\0');
  file.seekg(static_cast<std::streamoff>(sections[header.e_shstrndx].sh_offset));
  if (!file.read(names.data(), static_cast<std::streamsize>(names.size()))) return false;
  for (const Elf64_Shdr& each : sections) {
    if (each.sh_name < names.size() &&
        std::strcmp(names.c_str() + each.sh_name, ".debug_line") == 0)
      return true;
  }
  return false;
}

std::vector<source_frame> with_lines(const std::vector<source_frame>& frames) {
  std::map<std::string, addresses> modules;
  for (const source_frame& each : frames) {
    std::uint64_t address = 0;
    if (each.line == 0 && address_of(each.symbol, address)) modules[each.file][address];
  }
  for (auto& [module, wanted] : modules) {
    if (!module.empty() && has_line_table(module)) resolve(module, wanted);
  }
  std::vector<source_frame> made;
  for (const source_frame& each : frames) {
    std::uint64_t address = 0;
    const std::vector<line>* found = nullptr;
    if (each.line == 0 && address_of(each.symbol, address)) found = &modules[each.file][address];
    if (found == nullptr || found->empty()) {
      if (!made.empty() || !is_cuda_symbol(each.symbol)) made.push_back(each);
      continue;
    }
    for (const line& one : *found) {
      if (made.empty() && (is_cuda_symbol(one.symbol) || is_cuda_file(one.file))) continue;
      source_frame named = each;
      if (!one.symbol.empty()) named.symbol = one.symbol;
      if (one.number != 0) {
        named.file = one.file;
        named.line = one.number;
      }
      made.push_back(std::move(named));
    }
  }
  return made;
}

namespace {

using module_addresses = std::map<std::string, addresses>;

// The addresses that have no line yet, by the module that they lie in.
module_addresses without_lines(const trace::trace_info& of) {
  module_addresses made;
  for (std::uint32_t id = 1; id < of.stacks.size(); ++id) {
    for (const trace::frame& each : of.stacks.at(id)) {
      std::uint64_t address = 0;
      if (each.line == 0 && address_of(of.strings.at(each.symbol), address))
        made[std::string(of.strings.at(each.file))][address];
    }
  }
  return made;
}

line_report resolve_all(module_addresses& modules) {
  line_report made;
  for (auto& [module, wanted] : modules) {
    made.frames += wanted.size();
    if (module.empty() || !has_line_table(module)) continue;
    ++made.modules;
    resolve(module, wanted);
    for (const auto& [address, found] : wanted)
      made.resolved += !found.empty() && found.front().number != 0 ? 1u : 0u;
  }
  return made;
}

// A stack's frames with the lines that were found for them.
std::vector<trace::frame> with_lines(std::span<const trace::frame> stack,
                                     const trace::trace_info& before, module_addresses& modules,
                                     trace::string_table& strings) {
  std::vector<trace::frame> frames;
  for (const trace::frame& each : stack) {
    std::uint64_t address = 0;
    const std::string_view symbol = before.strings.at(each.symbol);
    const std::vector<line>* found = nullptr;
    if (address_of(symbol, address))
      found = &modules[std::string(before.strings.at(each.file))][address];
    if (found == nullptr || found->empty()) {
      if (!frames.empty() || !is_cuda_symbol(symbol)) frames.push_back(each);
      continue;
    }
    for (const line& one : *found) {
      if (frames.empty() && (is_cuda_symbol(one.symbol) || is_cuda_file(one.file))) continue;
      trace::frame named = each;
      if (!one.symbol.empty()) named.symbol = strings.intern(one.symbol);
      if (one.number != 0) {
        named.file = strings.intern(one.file);
        named.line = one.number;
      }
      frames.push_back(named);
    }
  }
  return frames;
}

// The events of the file at `path`, with these tables, in its place.
result<void> write_again(const std::string& path, const trace::trace_info& before,
                         const trace::string_table& strings, const trace::stack_table& stacks) {
  auto file = output_file::create(path);
  if (!file) return file.error();
  trace::trace_writer writer(trace::make_sink(*file), before.meta);
  if (auto tables = writer.add_new_of(strings, stacks); !tables) return tables;
  auto events = trace::open_trace(path);
  if (!events) return events.error();
  result<void> copied;
  const auto read = events->for_each([&](const trace::event& each) {
    if (copied) copied = writer.add(each);
  });
  if (copied) copied = before.status == trace::read_status::cut ? writer.flush() : writer.close();
  if (!read) return read.error();
  if (!copied) return copied;
  return file->put_in_place();
}

}  // namespace

result<line_report> add_lines(const std::string& path) {
  // First reading: which stacks there are.
  auto first = trace::open_trace(path);
  if (!first) return first.error();
  if (auto read = first->for_each([](const trace::event&) {}); !read) return read.error();
  const trace::trace_info before = first->take_info();
  module_addresses modules = without_lines(before);
  const line_report made = resolve_all(modules);
  // Second: the same events, with the stacks made anew under the same numbers. Strings keep theirs
  // too.
  trace::string_table strings;
  for (std::uint32_t id = 1; id < before.strings.size(); ++id)
    strings.append(before.strings.at(id));
  trace::stack_table stacks;
  for (std::uint32_t id = 1; id < before.stacks.size(); ++id)
    stacks.append(with_lines(before.stacks.at(id), before, modules, strings));
  if (auto done = write_again(path, before, strings, stacks); !done) return done.error();
  return made;
}

}  // namespace millpond::record
