// Bytes that somebody else wrote, as text that can be shown.
#include "base/utf8.hpp"

#include <gtest/gtest.h>

#include <string>

namespace millpond {
namespace {

TEST(utf8, what_a_terminal_obeys_is_shown_as_codes) {
  EXPECT_EQ(printable("a\x1b[2Jb"), "a\\x1b[2Jb");
  EXPECT_EQ(printable(std::string("\0\a\r\x7f", 4)), "\\x00\\x07\\x0d\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "\\xc2\\x9b2J")
      << "the same command in one character";
  EXPECT_EQ(printable("\x9b"), "\\x9b");
  EXPECT_EQ(printable("a\nb\tc"), "a\\x0ab\\x09c");
  EXPECT_EQ(printable("a\nb\tc\r", line_ends::kept), "a\nb\tc\\x0d");
}

TEST(utf8, text_of_any_language_stays_as_it_is) {
  const std::string text = "caf\xc3\xa9 \xe6\xb1\xa0 \xf0\x9f\xa6\x86 \xc2\xa0";
  EXPECT_EQ(printable(text), text);
  EXPECT_EQ(as_utf8(text), text);
}

TEST(utf8, bytes_in_no_character_are_replaced_one_by_one) {
  EXPECT_EQ(as_utf8("a\xff\xfe"
                    "b"),
            "a\xef\xbf\xbd\xef\xbf\xbd"
            "b");
  EXPECT_EQ(as_utf8("\xe6\xb1"), "\xef\xbf\xbd\xef\xbf\xbd") << "cut short";
  EXPECT_EQ(as_utf8("\xc0\xaf"), "\xef\xbf\xbd\xef\xbf\xbd") << "overlong";
  EXPECT_EQ(as_utf8("\xed\xa0\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd") << "a surrogate";
}

}  // namespace
}  // namespace millpond
