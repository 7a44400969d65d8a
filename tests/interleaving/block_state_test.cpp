// Frees of one block by several threads: of what a block is while it is free or in use.
#include <functional>
#include <memory>

#include "interleaving/expect.hpp"
#include "pool/cache/thread_cache.hpp"

namespace interleaving {
namespace {

using millpond::block_state;
using millpond::heap::extent;

// The user's block, and how many frees of it said that they did it.
struct one_block {
  extent record;
  int freed = 0;  // one thread runs at a time
  millpond::atomic<int> handed_out{0};

  one_block() {
    record.requested = 1000;
    millpond::set_state(record, block_state::live);
  }
};

// As it was: looked at, then stored.
bool free_by_store(extent& record) {
  if (millpond::state_of(record) != block_state::live) return false;
  millpond::set_state(record, block_state::cached);
  record.link = nullptr;  // it goes into this thread's cache
  return true;
}

// The state first, and what the record says only for who won.
bool free_by_change(extent& record, std::uint64_t bytes) {
  if (!millpond::change_state(record, block_state::live, block_state::cached)) return false;
  if (record.requested != bytes) {
    millpond::set_state(record, block_state::live);
    return false;
  }
  record.link = nullptr;
  return true;
}

std::function<program()> freed_by(unsigned threads, const std::function<bool(extent&)>& how) {
  return [=] {
    auto b = std::make_shared<one_block>();
    program out;
    for (unsigned i = 0; i < threads; ++i)
      out.threads.push_back([=] { b->freed += how(b->record) ? 1 : 0; });
    out.at_end = [=] { require(b->freed == 1, "not one of the frees was the one"); };
    return out;
  };
}

TEST(block_state_planted, two_frees_that_look_and_then_store_both_succeed) {
  options how;
  expect_found(how, "nothing orders the two", freed_by(2, free_by_store));
  // And without the record's fields, by their answers.
  expect_found(how, "not one of the frees", freed_by(2, [](extent& record) {
                 if (millpond::state_of(record) != block_state::live) return false;
                 millpond::set_state(record, block_state::cached);
                 return true;
               }));
}

TEST(block_state_interleaved, of_two_frees_exactly_one_wins) {
  options how;
  how.preemptions = 6;
  expect_right(how, freed_by(2, [](extent& r) { return free_by_change(r, 1000); }));
  expect_right(how, freed_by(3, [](extent& r) { return free_by_change(r, 1000); }));
}

// A free that is refused for its size leaves the block to the user. While it looks, the right one
// may be refused: then too nobody has the block twice.
TEST(block_state_interleaved, a_free_of_another_size_never_wins) {
  options how;
  how.preemptions = 6;
  expect_right(how, [] {
    auto b = std::make_shared<one_block>();
    return program{{[=] { b->freed += free_by_change(b->record, 1000) ? 1 : 0; },
                    [=] { require(!free_by_change(b->record, 999), "it won"); }},
                   [=] {
                     const bool live = millpond::state_of(b->record) == block_state::live;
                     require(live == (b->freed == 0), "neither the user's nor freed");
                   }};
  });
}

// A free and the report of a use: the block ends as special, or as freed, and never as both.
TEST(block_state_interleaved, a_free_beside_a_reported_use) {
  options how;
  how.preemptions = 6;
  expect_right(how, [] {
    auto b = std::make_shared<one_block>();
    auto used = std::make_shared<bool>(false);
    return program{{[=] { b->freed += free_by_change(b->record, 1000) ? 1 : 0; },
                    [=] {
                      *used = millpond::change_state(b->record, block_state::live,
                                                     block_state::special);
                    }},
                   [=] { require((b->freed == 1) != *used, "both, or none"); }};
  });
}

// Frees that all hold the lock of the block's cache look and store. The first free that holds
// another one makes them check first, under that lock.
std::function<program()> checked_from(bool asks_for_checks) {
  return [=] {
    struct state {
      millpond::thread_cache own;
      one_block block;
    };
    set_barrier(barrier::of_all);
    auto s = std::make_shared<state>();
    extent& record = s->block.record;
    return program{
        {[=, &record] {
           const auto entered = s->own.lock.enter();
           if (s->own.has(millpond::thread_cache::checks_frees)) {
             s->block.freed +=
                 millpond::change_state(record, block_state::live, block_state::cached) ? 1 : 0;
           } else if (millpond::state_of(record) == block_state::live) {
             millpond::set_state(record, block_state::cached);
             ++s->block.freed;
           }
           s->own.lock.leave(entered);
         },
         [=, &record] {
           if (asks_for_checks) {
             s->own.lock.foreign_lock();
             s->own.set(millpond::thread_cache::checks_frees);
             s->own.lock.foreign_unlock();
           }
           s->block.freed +=
               millpond::change_state(record, block_state::live, block_state::cached) ? 1 : 0;
         }},
        [=] { require(s->block.freed == 1, "not one of the frees was the one"); }};
  };
}

TEST(block_state_interleaved, frees_check_from_the_first_that_holds_another_lock) {
  options how;
  how.preemptions = 3;
  expect_right(how, checked_from(true));
}

TEST(block_state_planted, a_free_under_another_lock_that_nobody_checks_for_succeeds_beside_one) {
  expect_found({}, "not one of the frees", checked_from(false));
}

// What set_state is for: whoever took the block from where it is kept has it to itself. A second
// free that comes late is refused, or frees the next user's block, which no state can tell.
TEST(block_state_interleaved, who_hands_a_block_out_may_store_its_state) {
  options how;
  how.preemptions = 6;
  expect_right(how, [] {
    auto b = std::make_shared<one_block>();
    millpond::set_state(b->record, block_state::cached);
    return program{{[=] {
                      b->record.requested = 2000;
                      millpond::set_state(b->record, block_state::live);
                      b->handed_out.store(1, std::memory_order_release);
                    },
                    [=] {
                      if (b->handed_out.load(std::memory_order_acquire) == 0) return;
                      b->freed += free_by_change(b->record, 2000) ? 1 : 0;
                      require(b->freed == 1, "the only free was refused");
                    }},
                   {}};
  });
}

}  // namespace
}  // namespace interleaving
