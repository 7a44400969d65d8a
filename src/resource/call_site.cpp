#include "millpond/memory/call_site.hpp"

#include <string_view>

namespace millpond {
namespace {

// The thread's place: part of a call's arguments in spirit, kept here because the one interface of
// all memory has no room for it and most calls need none.
thread_local call_site thread_call_site;

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

std::string to_string(const call_site& at) {
  const bool located = at.where.line() != 0;
  if (at.text == nullptr) return located ? location_text(at.where) : "an unnamed call site";
  return located ? std::string(at.text) + " (" + location_text(at.where) + ")"
                 : std::string(at.text);
}

call_site current_call_site() noexcept {
  return thread_call_site;
}

scoped_call_site::scoped_call_site(call_site at) noexcept : before_(thread_call_site) {
  if (!at.known()) return;
  // An inner scope that adds only a location keeps the outer one's words.
  if (at.text == nullptr) at.text = before_.text;
  thread_call_site = at;
}

scoped_call_site::~scoped_call_site() {
  thread_call_site = before_;
}

}  // namespace millpond
