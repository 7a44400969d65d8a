#include "millpond/memory/call_site.hpp"

#include <string_view>

namespace millpond {
namespace {

// The thread's place: part of a call's arguments in spirit, kept here because the one interface of
// all memory has no room for it and most calls need none.
thread_local place thread_place;

std::string location_text(const std::source_location& where) {
  std::string_view file = where.file_name();
  if (const auto slash = file.rfind('/'); slash != std::string_view::npos)
    file.remove_prefix(slash + 1);
  std::string text(file);
  text += ':';
  text += std::to_string(where.line());
  const std::string_view function = where.function_name();
  if (!function.empty()) {
    text += ", ";
    text += function;
  }
  return text;
}

}  // namespace

std::string to_string(const place& at) {
  const bool located = at.where.line() != 0;
  if (at.text == nullptr) return located ? location_text(at.where) : "a place not told";
  return located ? std::string(at.text) + " (" + location_text(at.where) + ")"
                 : std::string(at.text);
}

place current_place() noexcept {
  return thread_place;
}

scoped_place::scoped_place(place at) noexcept : before_(thread_place) {
  if (!at.known()) return;
  // An inner scope that adds only a location keeps the outer one's words.
  if (at.text == nullptr) at.text = before_.text;
  thread_place = at;
}

scoped_place::~scoped_place() {
  thread_place = before_;
}

}  // namespace millpond
