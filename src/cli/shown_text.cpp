#include "cli/shown_text.hpp"

#include <algorithm>
#include <cstddef>

#include "base/utf8.hpp"

namespace millpond::cli {

void shown_text::filter::pass_on(bool all) {
  std::size_t whole = waiting_.size();
  if (!all) {
    // A character has at most four bytes: its first may be among the last three.
    for (std::size_t back = 1; back <= std::min<std::size_t>(3, waiting_.size()); ++back) {
      const auto lead = static_cast<unsigned char>(waiting_[waiting_.size() - back]);
      if (lead < 0xc2 || lead > 0xf4) continue;
      const std::size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
      if (length > back) whole = waiting_.size() - back;
      break;
    }
  }
  if (whole == 0) return;
  to_ << printable(std::string_view(waiting_).substr(0, whole), line_ends::kept);
  waiting_.erase(0, whole);
}

std::streamsize shown_text::filter::xsputn(const char* text, std::streamsize length) {
  waiting_.append(text, static_cast<std::size_t>(length));
  pass_on(false);
  return to_ ? length : 0;
}

shown_text::filter::int_type shown_text::filter::overflow(int_type character) {
  if (traits_type::eq_int_type(character, traits_type::eof()))
    return traits_type::not_eof(character);
  waiting_ += traits_type::to_char_type(character);
  pass_on(false);
  return to_ ? character : traits_type::eof();
}

int shown_text::filter::sync() {
  pass_on(true);
  to_.flush();
  return to_ ? 0 : -1;
}

}  // namespace millpond::cli
