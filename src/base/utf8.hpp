// Bytes that came from elsewhere, as text that can be shown: UTF-8, and nothing that a terminal
// obeys.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace millpond {

// The length of the UTF-8 character at the front of `text`, which is not empty; 0 where there is
// none: cut short, overlong, a surrogate or past U+10FFFF.
[[nodiscard]] std::size_t utf8_character_bytes(std::string_view text) noexcept;

// With U+FFFD for each byte that is in no character.
[[nodiscard]] std::string as_utf8(std::string_view text);

// What may be shown in a terminal: control characters (but line ends and tabs, where `lines` says
// so) and bytes that are in no character are shown as \xNN.
enum class line_ends : bool { shown_as_codes, kept };
void append_printable(std::string& to, std::string_view text, line_ends how);
[[nodiscard]] std::string printable(std::string_view text,
                                    line_ends how = line_ends::shown_as_codes);

}  // namespace millpond
