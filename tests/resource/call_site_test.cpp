// Call sites: what is said, and whose words a thread speaks.
#include "millpond/memory/call_site.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace millpond {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(call_sites, say_what_they_know) {
  EXPECT_EQ(to_string(call_site()), "an unnamed call site");
  EXPECT_FALSE(call_site().known());
  EXPECT_EQ(to_string(call_site("weights", {})), "weights");
  const auto here = std::source_location::current();
  const std::string text = to_string(call_site(here));
  EXPECT_THAT(text, StartsWith("call_site_test.cpp:" + std::to_string(here.line())));
  EXPECT_THAT(text, Not(HasSubstr("/")));  // the file's folders say little and are long
  EXPECT_THAT(to_string(call_site("weights", here)), StartsWith("weights (call_site_test.cpp:"));
}

TEST(call_sites, are_the_threads_own_and_end_with_their_scope) {
  EXPECT_FALSE(current_call_site().known());
  {
    const scoped_call_site outer("outer");
    std::thread([] { EXPECT_FALSE(current_call_site().known()); }).join();
    {
      const scoped_call_site inner("inner");
      EXPECT_STREQ(current_call_site().text, "inner");
    }
    EXPECT_STREQ(current_call_site().text, "outer");
  }
  EXPECT_FALSE(current_call_site().known());
}

TEST(call_sites, an_inner_location_keeps_the_outer_words) {
  const scoped_call_site outer("the encoder");
  const auto here = std::source_location::current();
  const scoped_call_site inner{call_site(here)};
  EXPECT_STREQ(current_call_site().text, "the encoder");
  EXPECT_EQ(current_call_site().where.line(), here.line());
}

TEST(call_sites, one_that_knows_nothing_changes_nothing) {
  const scoped_call_site outer("the encoder");
  const scoped_call_site inner{call_site()};
  EXPECT_STREQ(current_call_site().text, "the encoder");
  EXPECT_NE(current_call_site().where.line(), 0u);
}

}  // namespace
}  // namespace millpond
