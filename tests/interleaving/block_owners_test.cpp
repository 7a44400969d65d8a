#include "pool/cache/block_owners.hpp"

#include <functional>
#include <memory>

#include "base/own_counter.hpp"
#include "base/raise_to.hpp"
#include "interleaving/expect.hpp"

namespace interleaving {
namespace {

using millpond::block_owners;
using millpond::heap::granule;

struct table {
  block_owners owners;
  millpond::atomic<int> passed_on{0};
};

constexpr std::uint64_t first = 5 * granule, second = 1000 * granule;

options bounded(unsigned preemptions, unsigned stale) {
  options out;
  out.preemptions = preemptions;
  out.stale_reads = stale;
  return out;
}
options four() {
  return bounded(4, 4);
}

// Opened while others note and ask: nothing or the whole table is seen.
std::function<program()> opened_beside() {
  return [] {
    auto t = std::make_shared<table>();
    return program{
        {[=] { require(t->owners.open(), "no host memory"); }, [=] { t->owners.note(first, 3); },
         [=] {
           const std::uint32_t owner = t->owners.owner_of(first);
           require(owner == 0 || owner == 3, "an owner that nobody noted");
         }},
        {}};
  };
}

TEST(block_owners_interleaved, it_is_opened_beside_notes_and_questions) {
  expect_right(four(), opened_beside());
}

// Whatever notes and forgets meet in a slot, none answers with another block's owner.
TEST(block_owners_interleaved, a_slot_never_answers_for_another_block) {
  expect_right(bounded(2, 1), [] {
    auto t = std::make_shared<table>();
    static_cast<void>(t->owners.open());
    // Four slots in the test: some of these share one.
    const auto ask = [=](std::uint64_t address, std::uint32_t its) {
      const std::uint32_t owner = t->owners.owner_of(address);
      require(owner == 0 || owner == its, "another block's owner");
    };
    return program{{[=] {
                      for (std::uint64_t i = 1; i <= 3; ++i)
                        t->owners.note(i * granule, static_cast<std::uint32_t>(i));
                    },
                    [=] {
                      for (std::uint64_t i = 1; i <= 2; ++i) t->owners.forget(i * granule);
                    },
                    [=] {
                      for (std::uint64_t i = 1; i <= 3; ++i)
                        ask(i * granule, static_cast<std::uint32_t>(i));
                    }},
                   {}};
  });
}

// A block is forgotten, then passed on: who frees it later looks at its record.
std::function<program()> forgotten_then_passed_on(std::memory_order passes) {
  return [=] {
    auto t = std::make_shared<table>();
    static_cast<void>(t->owners.open());
    t->owners.note(first, 3);
    return program{{[=] {
                      t->owners.forget(first);
                      t->passed_on.store(1, passes);
                    },
                    [=] {
                      if (t->passed_on.load(std::memory_order_acquire) == 0) return;
                      require(t->owners.owner_of(first) == 0, "it goes by the table");
                    },
                    [=] { t->owners.note(second, 4); }},
                   {}};
  };
}

TEST(block_owners_interleaved, what_was_forgotten_before_it_was_passed_on_is_not_found) {
  expect_right(bounded(3, 2), forgotten_then_passed_on(std::memory_order_release));
}

// The order comes from the program, which passes the block on: the table has none of its own.
TEST(block_owners_planted, a_block_passed_on_without_any_order_may_still_be_found) {
  expect_found(four(), "it goes by the table", forgotten_then_passed_on(std::memory_order_relaxed));
}

TEST(block_owners_orders, each) {
  expect_orders(
      bounded(3, 2), {"block_owners"}, {opened_beside()},
      {"block_owners::note load acquire as relaxed", "block_owners::open store release as relaxed",
       "block_owners::owner_of load acquire as relaxed"},
      {});
}

TEST(own_counter_interleaved, a_reader_never_sees_it_fall) {
  expect_right(four(), [] {
    auto count = std::make_shared<millpond::own_counter>();
    return program{{[=] {
                      count->add(1);
                      count->add(2);
                    },
                    [=] {
                      const std::uint64_t seen = count->get();
                      require(count->get() >= seen, "it fell");
                    }},
                   [=] { require(count->get() == 3, "counts are lost"); }};
  });
}

TEST(raise_to_interleaved, the_largest_of_three_stays) {
  expect_right(bounded(2, 2), [] {
    auto peak = std::make_shared<millpond::atomic<std::uint64_t>>(0);
    const auto raise = [=](std::uint64_t to) { return [=] { millpond::raise_to(*peak, to); }; };
    return program{{raise(1), raise(3), raise(2)},
                   [=] { require(peak->load() == 3, "a larger one was overwritten"); }};
  });
}

}  // namespace
}  // namespace interleaving
