#include "plan/csv.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millpond::plan {
namespace {

using testing::HasSubstr;

std::string message_of(std::string_view text) {
  const auto read = parse_csv(text, "in.csv");
  return read ? "no error" : read.error().message;
}

TEST(plan_csv, reads_columns_in_any_order_with_all_their_names) {
  const auto read = parse_csv(
      "size,upper,buffer_id,start,alignment,gaps,fixed\n10,9,a,1,2,3-4 6-8,\n7,5,b,-2,1,,14\n",
      "x");
  ASSERT_TRUE(read) << read.error().message;
  const auto& buffers = read->instance.buffers;
  ASSERT_EQ(buffers.size(), 2u);
  EXPECT_EQ(buffers[0].id, "a");
  EXPECT_EQ(buffers[0].lower, 1);
  EXPECT_EQ(buffers[0].upper, 9);
  EXPECT_EQ(buffers[0].size, 10u);
  EXPECT_EQ(buffers[0].alignment, 2u);
  EXPECT_EQ(buffers[0].gaps, (std::vector<interval>{{3, 4}, {6, 8}}));
  EXPECT_FALSE(buffers[0].fixed);
  EXPECT_EQ(buffers[1].lower, -2);
  EXPECT_EQ(buffers[1].fixed, 14u);
  EXPECT_FALSE(read->plan);
}

TEST(plan_csv, other_columns_are_left_out_and_named_and_files_of_other_tools_are_read) {
  const auto read = parse_csv(
      "\xef\xbb\xbf\"id\",hint,upper,lower,\"size\",alignment,colour\r\n\"a\",5,9,1,10,,"
      "red\r\n\r\n",
      "x");
  ASSERT_TRUE(read) << read.error().message;
  ASSERT_EQ(read->instance.buffers.size(), 1u);
  EXPECT_EQ(read->instance.buffers[0].id, "a");
  EXPECT_EQ(read->instance.buffers[0].alignment, 1u);
  EXPECT_EQ(read->other_columns, (std::vector<std::string>{"'hint'", "'colour'"}));
}

TEST(plan_csv, offsets_in_every_row_are_a_plan_and_in_some_rows_are_given) {
  const auto plan = parse_csv("id,lower,upper,size,offset\na,0,4,1,7\nb,0,4,1,0\n", "x");
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->plan, (offsets{7, 0}));
  EXPECT_FALSE(plan->instance.buffers[0].fixed);
  const auto given = parse_csv("id,lower,upper,size,offset\na,0,4,1,7\nb,0,4,1,\n", "x");
  ASSERT_TRUE(given);
  EXPECT_FALSE(given->plan);
  EXPECT_EQ(given->without_offset, 1u);
  EXPECT_EQ(given->instance.buffers[0].fixed, 7u);
  EXPECT_FALSE(given->instance.buffers[1].fixed);
}

TEST(plan_csv, a_column_named_end_is_inclusive) {
  const auto read = parse_csv("id,start,end,size,gaps\r\n1,0,4,8,1-2\r\n", "x");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->instance.buffers[0].upper, 5);
  EXPECT_EQ(read->instance.buffers[0].gaps[0].upper, 3);
}

TEST(plan_csv, what_is_written_reads_back_the_same) {
  problem of;
  of.buffers.push_back({"a", 0, 5, 16, 4, {{1, 2}}, std::nullopt});
  of.buffers.push_back({"b", -3, 5, 9, 1, {}, 20});
  const offsets at{4, 20};
  const auto read = parse_csv(format_csv(of, &at), "x");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->plan, at);
  EXPECT_EQ(format_csv(read->instance, &at), format_csv(of, &at));
}

TEST(plan_csv, errors_give_the_place_what_was_expected_and_what_was_found) {
  const std::string head = "id,lower,upper,size\n";
  EXPECT_THAT(message_of(""), HasSubstr("in.csv:1: expected a header line, found an empty file"));
  EXPECT_THAT(message_of("id,lower,size\n"),
              HasSubstr("in.csv:1: expected a header with a column upper"));
  EXPECT_THAT(message_of("id,lower,upper,size,id\n"), HasSubstr("each column once"));
  EXPECT_THAT(message_of(head + "a,5,4,1\n"),
              HasSubstr("in.csv:2: expected upper >= lower (5), found upper 4"));
  EXPECT_THAT(message_of(head + "a,0,4,1\nb,0,4,1\na,0,4,1\n"),
              HasSubstr("in.csv:4: expected each id once, found 'a', which line 2 has"));
  EXPECT_THAT(message_of(head + "a,0,4,0\n"),
              HasSubstr("expected a size of 1 to 2^63 - 1 bytes, found '0'"));
  EXPECT_THAT(message_of(head + "a,0,4,9223372036854775808\n"),
              HasSubstr("found '9223372036854775808'"));
  EXPECT_THAT(message_of(head + "a,0,4,-1\n"), HasSubstr("found '-1'"));
  EXPECT_THAT(message_of(head + "a,0,4,1.5\n"), HasSubstr("found '1.5'"));
  EXPECT_THAT(message_of(head + "a,x,4,1\n"),
              HasSubstr("expected lower as a 64-bit integer, found 'x'"));
  EXPECT_THAT(message_of(head + "a,0,4\n"), HasSubstr("in.csv:2: expected 4 fields, found 3"));
  EXPECT_THAT(message_of(head + "a,0,4,1\n\nb,0,4,1\n"),
              HasSubstr("in.csv:3: expected a buffer, found an empty line"));
  EXPECT_THAT(message_of("id,lower,upper,size,gaps\na,0,4,1,2-9\n"),
              HasSubstr("a gap inside the lifetime [0, 4)"));
  EXPECT_THAT(message_of("id,lower,upper,size,gaps\na,0,4,1,1-3@0:1\n"),
              HasSubstr("a gap without a window"));
  EXPECT_THAT(message_of("id,lower,upper,size,offset\na,0,4,1,x\nb,0,4,1,\n"),
              HasSubstr("in.csv:2: expected an offset below 2^63"));
  EXPECT_THAT(message_of("id,lower,upper,size,alignment,offset\na,0,4,1,2,7\nb,0,4,1,,\n"),
              HasSubstr("in.csv:2: expected a fixed offset aligned to 2, found '7'"));
  EXPECT_THAT(message_of("id,lower,upper,size,fixed,offset\na,0,4,1,4,7\nb,0,4,1,,\n"),
              HasSubstr("in.csv:2: expected the fixed offset 4 or none, found 7"));
}

TEST(plan_csv, a_cut_file_is_an_error_wherever_the_cut_is) {
  const std::string whole = "id,lower,upper,size\na,0,4,100\nb,1,5,2048\n";
  for (std::size_t length = 1; length + 1 < whole.size(); ++length) {
    const auto read = parse_csv(std::string_view(whole).substr(0, length), "x");
    const bool at_line_end = whole[length - 1] == '\n';
    const bool header_alone = whole.substr(0, length) == "id,lower,upper,size";
    EXPECT_EQ(read.has_value(), at_line_end || header_alone) << length;
  }
  EXPECT_THAT(message_of("id,lower,upper,size\na,0,4,10"),
              HasSubstr("in.csv:2: expected a whole line, found 'a,0,4,10' and the end"));
}

TEST(plan_csv, a_missing_file_is_named) {
  const auto read = read_csv("/nonexistent/in.csv");
  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().message, HasSubstr("/nonexistent/in.csv"));
}

}  // namespace
}  // namespace millpond::plan
