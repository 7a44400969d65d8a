#include "record/python_frames.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>

namespace millpond::record {
namespace {

template <class Value>
Value at(std::uintptr_t object, std::size_t offset) noexcept {
  Value made;
  std::memcpy(&made, reinterpret_cast<const void*>(object + offset), sizeof made);
  return made;
}
std::uintptr_t pointer(std::uintptr_t object, std::size_t offset) noexcept {
  return at<std::uintptr_t>(object, offset);
}

// The same in 3.11 to 3.13 (Include/cpython/object.h, code.h, bytesobject.h, unicodeobject.h).
constexpr std::size_t type_of = 8, size_of = 16, text_length = 16, text_state = 32,
                      bytes_begin = 32;
constexpr std::size_t code_file = 112, code_qualified_name = 128, code_lines = 136;
constexpr std::uint32_t state_compact = 0x20, state_ascii = 0x40, state_kind = 0x1c;
// Frames that belong to the interpreter's own C code (FRAME_OWNED_BY_CSTACK) run no line of Python.
constexpr std::uint8_t owned_by_c = 3;
constexpr std::size_t longest_text = 512, largest_table = 1u << 20;
constexpr std::uint64_t most_code_units = 1u << 22;

// What CPython 3.13 says of itself, at the begin of _PyRuntime, for tools that look from outside.
struct debug_offsets {
  char cookie[8];
  std::uint64_t version, free_threaded;
};

}  // namespace

constexpr python_frames::layout python_frames::layouts[] = {
    {.version = 0x030b,
     .thread_frame = 56,
     .through_c_frame = true,
     .c_frame_frame = 8,
     .code = 32,
     .previous = 48,
     .instruction = 56,
     .owner = 69,
     .first_line = 72,
     .code_begin = 184,
     .ascii_bytes = 48,
     .other_bytes = 72},
    {.version = 0x030c,
     .thread_frame = 56,
     .through_c_frame = true,
     .c_frame_frame = 0,
     .code = 0,
     .previous = 8,
     .instruction = 56,
     .owner = 70,
     .first_line = 68,
     .code_begin = 192,
     .ascii_bytes = 40,
     .other_bytes = 56},
    {.version = 0x030d,
     .thread_frame = 72,
     .through_c_frame = false,
     .c_frame_frame = 0,
     .code = 0,
     .previous = 8,
     .instruction = 56,
     .owner = 70,
     .first_line = 68,
     .code_begin = 200,
     .ascii_bytes = 40,
     .other_bytes = 56},
};

std::optional<python_frames> python_frames::find() noexcept {
  const auto* version =
      static_cast<const unsigned long*>(dlsym(RTLD_DEFAULT, "Py_Version"));  // since 3.11
  if (version == nullptr) return std::nullopt;
  python_frames made;
  for (const layout& each : layouts) {
    if (each.version == *version >> 16) made.at_ = &each;
  }
  made.this_thread_ =
      reinterpret_cast<void* (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState"));
  made.code_type_ = reinterpret_cast<std::uintptr_t>(dlsym(RTLD_DEFAULT, "PyCode_Type"));
  made.text_type_ = reinterpret_cast<std::uintptr_t>(dlsym(RTLD_DEFAULT, "PyUnicode_Type"));
  made.bytes_type_ = reinterpret_cast<std::uintptr_t>(dlsym(RTLD_DEFAULT, "PyBytes_Type"));
  if (made.at_ == nullptr || made.this_thread_ == nullptr || made.code_type_ == 0 ||
      made.text_type_ == 0 || made.bytes_type_ == 0) {
    return std::nullopt;
  }
  if (made.at_->version == 0x030d) {
    // Builds without the interpreter's lock have other structures.
    const auto* said = static_cast<const debug_offsets*>(dlsym(RTLD_DEFAULT, "_PyRuntime"));
    if (said == nullptr || std::memcmp(said->cookie, "xdebugpy", 8) != 0 ||
        said->free_threaded != 0)
      return std::nullopt;
  }
  return made;
}

std::string python_frames::unknown_interpreter() {
  if (find()) return {};
  if (const auto* version = static_cast<const unsigned long*>(dlsym(RTLD_DEFAULT, "Py_Version"))) {
    return "CPython " + std::to_string(*version >> 24 & 0xff) + '.' +
           std::to_string(*version >> 16 & 0xff);
  }
  return dlsym(RTLD_DEFAULT, "Py_GetVersion") == nullptr ? ""
                                                         : "an interpreter before CPython 3.11";
}

std::size_t python_frames::walk(std::span<python_call_site> into) const noexcept {
  auto from = reinterpret_cast<std::uintptr_t>(this_thread_());
  if (from == 0) return 0;
  from = pointer(from, at_->thread_frame);
  if (at_->through_c_frame && from != 0) from = pointer(from, at_->c_frame_frame);
  std::size_t count = 0;
  // A chain that does not end is none.
  for (int left = 4096; from != 0 && count < into.size() && left > 0; --left) {
    const std::uintptr_t code = pointer(from, at_->code);
    if (code != 0 && at<std::uint8_t>(from, at_->owner) < owned_by_c)
      into[count++] = {code, pointer(from, at_->instruction)};
    from = pointer(from, at_->previous);
  }
  return count;
}

std::uint64_t python_frames::identity(const python_call_site& call_site) const noexcept {
  std::uint64_t made = 0xcbf29ce484222325ULL;
  for (const std::uint64_t each :
       {std::uint64_t{call_site.code}, std::uint64_t{call_site.instruction},
        std::uint64_t{pointer(call_site.code, code_qualified_name)},
        std::uint64_t{pointer(call_site.code, code_lines)},
        std::uint64_t{at<std::uint32_t>(call_site.code, at_->first_line)}}) {
    made = (made ^ each) * 0x9e3779b97f4a7c15ULL;
    made ^= made >> 29;
  }
  return made;
}

std::optional<std::string> python_frames::text(std::uintptr_t object) const {
  if (object == 0 || pointer(object, type_of) != text_type_) return std::nullopt;
  const auto state = at<std::uint32_t>(object, text_state);
  if ((state & state_compact) == 0) return std::nullopt;
  const auto length = std::min<std::size_t>(at<std::size_t>(object, text_length), longest_text);
  const bool ascii = (state & state_ascii) != 0;
  const std::uintptr_t begin = object + (ascii ? at_->ascii_bytes : at_->other_bytes);
  const std::size_t width = (state & state_kind) >> 2;
  if (width != 1 && width != 2 && width != 4) return std::nullopt;
  std::string made;
  for (std::size_t n = 0; n < length; ++n) {
    std::uint32_t each = 0;
    std::memcpy(&each, reinterpret_cast<const void*>(begin + n * width), width);
    // To UTF-8.
    if (each < 0x80) {
      made += static_cast<char>(each);
    } else if (each < 0x800) {
      made += static_cast<char>(0xc0 | each >> 6);
      made += static_cast<char>(0x80 | (each & 0x3f));
    } else {
      if (each >= 0x10000) made += static_cast<char>(0xf0 | each >> 18);
      made += static_cast<char>(each >= 0x10000 ? 0x80 | (each >> 12 & 0x3f) : 0xe0 | each >> 12);
      made += static_cast<char>(0x80 | (each >> 6 & 0x3f));
      made += static_cast<char>(0x80 | (each & 0x3f));
    }
  }
  return made;
}

std::optional<python_line> python_frames::describe(const python_call_site& call_site) const {
  if (call_site.code == 0 || pointer(call_site.code, type_of) != code_type_) return std::nullopt;
  auto function = text(pointer(call_site.code, code_qualified_name)),
       file = text(pointer(call_site.code, code_file));
  const std::uintptr_t lines = pointer(call_site.code, code_lines);
  if (!function || !file || lines == 0 || pointer(lines, type_of) != bytes_type_)
    return std::nullopt;
  python_line made{std::move(*function), std::move(*file), 0};
  const auto first = static_cast<std::uint32_t>(at<std::int32_t>(call_site.code, at_->first_line));
  const std::uintptr_t begin = call_site.code + at_->code_begin;
  // Before its first instruction a frame is at the code unit before the code.
  const std::uint64_t unit =
      call_site.instruction < begin ? 0 : (call_site.instruction - begin) / 2;
  const auto size = at<std::size_t>(lines, size_of);
  if (unit > most_code_units || size > largest_table) return std::nullopt;
  made.line =
      line_of({reinterpret_cast<const std::uint8_t*>(lines + bytes_begin), size}, first, unit);
  return made;
}

std::uint32_t line_of(std::span<const std::uint8_t> table, std::uint32_t first_line,
                      std::uint64_t unit) noexcept {
  std::size_t next = 0;
  std::int64_t line = first_line;
  std::uint64_t end = 0;
  const auto number = [&] {
    std::uint64_t made = 0;
    for (unsigned shift = 0; next < table.size() && shift < 60; shift += 6) {
      const std::uint8_t each = table[next++];
      made |= static_cast<std::uint64_t>(each & 0x3f) << shift;
      if ((each & 0x40) == 0) break;
    }
    return made;
  };
  const auto signed_number = [&] {
    const std::uint64_t made = number();
    return (made & 1) != 0 ? -static_cast<std::int64_t>(made >> 1)
                           : static_cast<std::int64_t>(made >> 1);
  };
  while (next < table.size()) {
    const std::uint8_t first = table[next++];
    const unsigned form = first >> 3 & 15;
    end += (first & 7u) + 1;
    bool none = false;
    switch (form) {
      case 15: none = true; break;
      case 14:  // with ends of line and column
        line += signed_number();
        number();
        number();
        number();
        break;
      case 13: line += signed_number(); break;
      case 12:
      case 11:
      case 10:
        line += form - 10;
        next += 2;
        break;
      default: ++next; break;  // the same line, with columns
    }
    if (unit < end) return none || line < 0 ? 0 : static_cast<std::uint32_t>(line);
  }
  return 0;
}

}  // namespace millpond::record
