// Operands written by their names read back by their names.
#include "trace/event_views.hpp"

#include <gtest/gtest.h>

#include "trace/kernel_uses.hpp"

namespace millpond::trace {
namespace {

TEST(event_views, a_copy_keeps_direction_and_promise_apart) {
  for (const bool asynchronous : {false, true}) {
    for (int n = 0; n <= static_cast<int>(copy_direction::host_to_host); ++n) {
      event at{.what = action::copy};
      set_operands(at, copy_operands{.to = 7,
                                     .from = 9,
                                     .direction = static_cast<copy_direction>(n),
                                     .asynchronous = asynchronous});
      const copy_operands read = as_copy(at);
      EXPECT_EQ(read.to, 7u);
      EXPECT_EQ(read.from, 9u);
      EXPECT_EQ(static_cast<int>(read.direction), n);
      EXPECT_EQ(read.asynchronous, asynchronous);
    }
  }
}

TEST(event_views, what_files_hold_is_as_the_format_says) {
  event at{.what = action::copy};
  set_operands(at,
               copy_operands{.direction = copy_direction::device_to_host, .asynchronous = true});
  EXPECT_EQ(at.object, 0x102u);
  set_operands(at, pool_set_operands{5, pool_attribute::release_threshold, 6});
  EXPECT_EQ(at.address, 5u);
  EXPECT_EQ(at.object, 4u);
  EXPECT_EQ(at.other, 6u);
  set_operands(at, pages_operands{page_change::cpu_fault, page_cause::program});
  EXPECT_EQ(at.object, 2u);
  EXPECT_EQ(at.other, 1u);
  set_operands(at, advice_operands{memory_advice::set_preferred, page_side::host});
  EXPECT_EQ(at.object, 1u);
  EXPECT_EQ(at.other, 3u);
  set_operands(at, prefetch_operands{page_side::host});
  EXPECT_EQ(at.other, 1u);
  at.object = 1;
  EXPECT_FALSE(as_stream_create(at).waits_for_default_stream);
  at.object = 0;
  EXPECT_TRUE(as_stream_create(at).waits_for_default_stream);
}

TEST(event_views, a_name_is_that_of_actions_that_have_one) {
  event at{.object = 3};
  for (const action named : {action::allocate, action::free, action::kernel, action::mark}) {
    at.what = named;
    EXPECT_EQ(name_of(at), 3u) << to_string(named);
  }
  for (const action nameless : {action::copy, action::event_record, action::graph_launch}) {
    at.what = nameless;
    EXPECT_EQ(name_of(at), 0u) << to_string(nameless);
  }
}

TEST(kernel_uses, are_as_many_as_the_kernel_says_and_end_at_anything_else) {
  using place = kernel_uses::place;
  kernel_uses uses;
  const event use{.what = action::use}, other{.what = action::memset};
  event kernel{.what = action::kernel};
  set_operands(kernel, kernel_operands{.name = 1, .uses = 2});
  EXPECT_EQ(uses.see(use), place::elsewhere);
  EXPECT_EQ(uses.see(kernel), place::elsewhere);
  EXPECT_EQ(uses.see(use), place::of_kernel);
  EXPECT_EQ(uses.see(use), place::last_of_kernel);
  EXPECT_EQ(uses.see(use), place::elsewhere);
  EXPECT_EQ(uses.see(kernel), place::elsewhere);
  EXPECT_EQ(uses.see(other), place::elsewhere);
  EXPECT_EQ(uses.see(use), place::elsewhere);
  kernel.status = 1;
  EXPECT_EQ(uses.see(kernel), place::elsewhere);
  EXPECT_EQ(uses.see(use), place::of_refused);
  EXPECT_EQ(uses.see(use), place::of_refused);
  EXPECT_EQ(uses.see(use), place::elsewhere);
}

}  // namespace
}  // namespace millpond::trace
