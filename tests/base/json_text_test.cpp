// JSON that a parser takes, whatever bytes the texts hold.
#include "base/json_text.hpp"

#include <gtest/gtest.h>

namespace millpond {
namespace {

TEST(json_text, commas_stand_between_members_and_nowhere_else) {
  json_text out;
  out.open('{');
  out.number("a", 1);
  out.key("list");
  out.open('[');
  out.element("x");
  out.element(2);
  out.open('{');
  out.close('}');
  out.close(']');
  out.string("b", "y");
  out.close('}');
  EXPECT_EQ(std::move(out).take(), R"({"a":1,"list":["x",2,{}],"b":"y"})");
}

TEST(json_text, quotes_backslashes_and_control_bytes_are_escaped) {
  EXPECT_EQ(json_string("a\"b\\c\nd\x01"), R"("a\"b\\c\nd\u0001")");
}

TEST(json_text, what_is_no_utf_8_is_replaced_and_what_is_stays) {
  EXPECT_EQ(json_string("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x90\xb8"),
            "\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x90\xb8\"");
  const std::string lost = "\xef\xbf\xbd";
  EXPECT_EQ(json_string("a\xff"), "\"a" + lost + "\"");
  EXPECT_EQ(json_string("\xc3"), "\"" + lost + "\"");                        // cut short
  EXPECT_EQ(json_string("\xc0\xaf"), "\"" + lost + lost + "\"");             // overlong
  EXPECT_EQ(json_string("\xe0\x80\xaf"), "\"" + lost + lost + lost + "\"");  // overlong
  EXPECT_EQ(json_string("\xed\xa0\x80"), "\"" + lost + lost + lost + "\"");  // a surrogate
  EXPECT_EQ(json_string("\xf4\x90\x80\x80"),
            "\"" + lost + lost + lost + lost + "\"");  // past the last
}

}  // namespace
}  // namespace millpond
