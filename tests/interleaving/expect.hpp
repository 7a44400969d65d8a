// What the tests here say of an exploration.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "interleaving/explore.hpp"

namespace interleaving {

inline std::string shown(const outcome& of) {
  return of.message + "\nafter " + std::to_string(of.executions) +
         " executions; MILLPOND_REPLAY=" + of.choices + " runs it again:\n" + of.steps;
}

inline void print_count(const outcome& of) {
  std::cout << "  explored " << of.executions << " executions"
            << (of.complete ? ""
                : of.failed ? ", the last of which fails"
                            : ", which are not all")
            << '\n';
}

inline void expect_right(const options& how, const std::function<program()>& make) {
  const outcome seen = explore(how, make);
  print_count(seen);
  EXPECT_FALSE(seen.failed) << shown(seen);
  EXPECT_TRUE(seen.complete || !how.replay.empty());
}

// A planted bug: some execution fails with these words, and its choices lead there again.
inline void expect_found(const options& how, const std::string& words,
                         const std::function<program()>& make) {
  const outcome seen = explore(how, make);
  print_count(seen);
  ASSERT_TRUE(seen.failed);
  EXPECT_THAT(seen.message, ::testing::HasSubstr(words));
  options again = how;
  again.replay = seen.choices;
  const outcome same = explore(again, make);
  EXPECT_EQ(same.executions, 1u);
  EXPECT_EQ(same.message, seen.message);
}

// Which orders of the code are needed: with each made weaker some execution must fail, or none.
inline void expect_orders(const options& how, const std::vector<std::string>& prefixes,
                          const std::vector<std::function<program()>>& makes,
                          const std::vector<std::string>& needed,
                          const std::vector<std::string>& not_needed) {
  const order_report seen = weaken_each(how, prefixes, makes);
  std::cout << "  explored " << seen.executions << " executions\n";
  EXPECT_THAT(seen.needed, ::testing::UnorderedElementsAreArray(needed));
  EXPECT_THAT(seen.not_needed, ::testing::UnorderedElementsAreArray(not_needed));
}

}  // namespace interleaving
