#include "record/settings.hpp"

#include <charconv>
#include <map>
#include <system_error>

namespace millpond::record {
namespace {

// Values may hold anything: what separates is escaped.
std::string escaped(std::string_view text) {
  std::string made;
  for (const char each : text) {
    if (each == ';' || each == '%' || each == '=') {
      constexpr char digits[] = "0123456789abcdef";
      made += '%';
      made += digits[(static_cast<unsigned char>(each) >> 4) & 15];
      made += digits[static_cast<unsigned char>(each) & 15];
    } else {
      made += each;
    }
  }
  return made;
}

std::optional<std::string> unescaped(std::string_view text) {
  std::string made;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      made += text[at];
      continue;
    }
    unsigned value = 0;
    if (at + 2 >= text.size()) return std::nullopt;
    const auto [end, fault] =
        std::from_chars(text.data() + at + 1, text.data() + at + 3, value, 16);
    if (fault != std::errc{} || end != text.data() + at + 3) return std::nullopt;
    made += static_cast<char>(value);
    at += 2;
  }
  return made;
}

bool number(const std::string& text, std::uint64_t& into) {
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), into);
  return fault == std::errc{} && end == text.data() + text.size();
}

}  // namespace

std::string format_settings(const settings& of) {
  std::string made;
  const auto add = [&made](const char* name, const std::string& value) {
    if (!made.empty()) made += ';';
    made += name;
    made += '=';
    made += escaped(value);
  };
  add("path", of.path);
  add("file_mode", std::to_string(of.file_mode));
  add("root", std::to_string(of.root));
  add("stacks", std::to_string(static_cast<int>(of.stacks)));
  add("frames", std::to_string(of.frames));
  add("most_bytes", std::to_string(of.most_bytes));
  add("most_ns", std::to_string(of.most_ns));
  add("last_events", std::to_string(of.last_events));
  add("ring_cells", std::to_string(of.ring_cells));
  add("cupti", of.cupti);
  add("recorded_by", of.recorded_by);
  add("python", of.python ? "1" : "0");
  add("kernels", of.kernels ? "1" : "0");
  add("count_calls", of.count_calls ? "1" : "0");
  return made;
}

std::optional<settings> parse_settings(std::string_view text) {
  settings made;
  std::uint64_t stacks = 1, python = 0, kernels = 1, count_calls = 0;
  const std::map<std::string_view, std::uint64_t*> numbers{{"root", &made.root},
                                                           {"file_mode", &made.file_mode},
                                                           {"stacks", &stacks},
                                                           {"frames", &made.frames},
                                                           {"most_bytes", &made.most_bytes},
                                                           {"most_ns", &made.most_ns},
                                                           {"last_events", &made.last_events},
                                                           {"ring_cells", &made.ring_cells},
                                                           {"python", &python},
                                                           {"kernels", &kernels},
                                                           {"count_calls", &count_calls}};
  const std::map<std::string_view, std::string*> texts{
      {"path", &made.path}, {"cupti", &made.cupti}, {"recorded_by", &made.recorded_by}};
  while (!text.empty()) {
    const std::string_view field = text.substr(0, text.find(';'));
    text.remove_prefix(std::min(text.size(), field.size() + 1));
    const std::size_t equals = field.find('=');
    if (equals == std::string_view::npos) return std::nullopt;
    const auto value = unescaped(field.substr(equals + 1));
    if (!value) return std::nullopt;
    const std::string_view name = field.substr(0, equals);
    if (const auto at = numbers.find(name); at != numbers.end()) {
      if (!number(*value, *at->second)) return std::nullopt;
    } else if (const auto where = texts.find(name); where != texts.end()) {
      *where->second = *value;
    } else {
      return std::nullopt;
    }
  }
  const std::uint64_t cells = made.ring_cells;
  if (made.path.empty() || made.file_mode > 0777 || stacks > 2 || cells < 16 ||
      cells > (1u << 24) || (cells & (cells - 1)) != 0)
    return std::nullopt;
  made.stacks = static_cast<stack_choice>(stacks);
  made.python = python != 0;
  made.kernels = kernels != 0;
  made.count_calls = count_calls != 0;
  return made;
}

std::string path_of_process(const settings& of, std::uint64_t process) {
  if (process == of.root) return of.path;
  const std::size_t slash = of.path.rfind('/');
  std::size_t dot = of.path.rfind('.');
  if (dot == std::string::npos || (slash != std::string::npos && dot < slash)) dot = of.path.size();
  std::string made(of.path, 0, dot);
  made += '.';
  made += std::to_string(process);
  return made.append(of.path, dot);
}

}  // namespace millpond::record
