#include <functional>
#include <memory>

#include "base/brief_mutex.hpp"
#include "interleaving/expect.hpp"
#include "pool/cache/biased_lock.hpp"

namespace interleaving {
namespace {

using millpond::biased_lock;

struct guarded {
  biased_lock lock;
  // Raced on where two are inside.
  millpond::plain<int> entries{0};
  void inside() { entries += 1; }
};

enum class owner_does : std::uint8_t { tries, enters };

std::function<program()> contest(barrier how, owner_does what, unsigned rounds,
                                 unsigned strangers) {
  return [=] {
    set_barrier(how);
    auto g = std::make_shared<guarded>();
    auto entered = std::make_shared<int>(0);
    program out;
    out.threads.push_back([=] {
      for (unsigned i = 0; i < rounds; ++i) {
        if (what == owner_does::enters) {
          const auto entry = g->lock.enter();
          g->inside();
          ++*entered;
          g->lock.leave(entry);
        } else if (g->lock.owner_lock()) {
          g->inside();
          ++*entered;
          g->lock.owner_unlock();
        }
      }
    });
    for (unsigned i = 0; i < strangers; ++i) {
      out.threads.push_back([=] {
        g->lock.foreign_lock();
        g->inside();
        g->lock.foreign_unlock();
      });
    }
    out.at_end = [=] {
      require(g->entries == *entered + static_cast<int>(strangers), "an entry is lost");
      require(g->lock.owner_lock(), "the lock is not free at the end");
    };
    return out;
  };
}

options with_preemptions(unsigned most) {
  options out;
  out.preemptions = most;
  return out;
}

class biased_lock_interleaved : public ::testing::TestWithParam<barrier> {};

TEST_P(biased_lock_interleaved, an_owner_and_a_stranger_are_never_both_inside) {
  expect_right(with_preemptions(3), contest(GetParam(), owner_does::tries, 2, 1));
}

TEST_P(biased_lock_interleaved, an_owner_that_waits_gets_in_and_never_with_a_stranger) {
  expect_right(with_preemptions(3), contest(GetParam(), owner_does::enters, 1, 1));
}

TEST_P(biased_lock_interleaved, an_owner_and_two_strangers_are_never_inside_together) {
  options how = with_preemptions(2);
  how.spurious_failures = 0;
  expect_right(how, contest(GetParam(), owner_does::tries, 1, 2));
}

INSTANTIATE_TEST_SUITE_P(barriers, biased_lock_interleaved,
                         ::testing::Values(barrier::of_all, barrier::of_this_thread,
                                           barrier::refused_later),
                         [](const auto& each) {
                           return std::string(each.param == barrier::of_all ? "membarrier"
                                              : each.param == barrier::of_this_thread
                                                  ? "owners_pay"
                                                  : "refused_later");
                         });

// Two locks and one barrier, as for a route between two caches.
TEST(biased_locks_interleaved, one_barrier_does_for_two_locks) {
  expect_right(with_preemptions(2), [] {
    set_barrier(barrier::of_all);
    auto one = std::make_shared<guarded>(), two = std::make_shared<guarded>();
    const auto own = [](const std::shared_ptr<guarded>& g) {
      return [g] {
        if (!g->lock.owner_lock()) return;
        g->inside();
        g->lock.owner_unlock();
      };
    };
    return program{{own(one), own(two),
                    [=] {
                      one->lock.foreign_begin();
                      two->lock.foreign_begin();
                      millpond::process_barrier();
                      one->lock.foreign_arrive();
                      two->lock.foreign_arrive();
                      one->inside();
                      two->inside();
                      two->lock.foreign_unlock();
                      one->lock.foreign_unlock();
                    }},
                   {}};
  });
}

// The barrier's answer thrown away: membarrier is refused, the stranger makes a fence of its own,
// and the owner, who pays nothing, does not see it.
TEST(biased_lock_planted, a_barrier_that_reaches_only_its_own_thread_is_found) {
  expect_found(with_preemptions(2), "nothing orders the two", [] {
    set_barrier(barrier::of_all);
    auto g = std::make_shared<guarded>();
    return program{{[=] {
                      if (!g->lock.owner_lock()) return;
                      g->inside();
                      g->lock.owner_unlock();
                    },
                    [=] {
                      g->lock.foreign_begin();
                      millpond::thread_fence(std::memory_order_seq_cst);
                      g->lock.foreign_arrive();
                      g->inside();
                      g->lock.foreign_unlock();
                    }},
                   {}};
  });
}

TEST(biased_lock_orders, with_membarrier) {
  options how = with_preemptions(2);
  expect_orders(how, {"biased_lock"}, {contest(barrier::of_all, owner_does::enters, 2, 1)},
                {"biased_lock::foreign_arrive load acquire as relaxed",
                 "biased_lock::foreign_begin compare_exchange seq_cst as relaxed",
                 "biased_lock::foreign_unlock store release as relaxed",
                 "biased_lock::owner_lock load acquire as relaxed",
                 "biased_lock::owner_lock store release as relaxed",
                 "biased_lock::owner_unlock store release as relaxed"},
                // The barrier behind it does for the total order.
                {"biased_lock::foreign_begin compare_exchange seq_cst as acq_rel"});
}

TEST(biased_lock_orders, where_owners_pay) {
  options how = with_preemptions(2);
  expect_orders(
      how, {"biased_lock", "process_barrier"},
      {contest(barrier::of_this_thread, owner_does::enters, 2, 1)},
      {"biased_lock::foreign_arrive load acquire as relaxed",
       "biased_lock::foreign_unlock store release as relaxed",
       "biased_lock::owner_lock exchange seq_cst as acq_rel",
       "biased_lock::owner_lock exchange seq_cst as relaxed",
       "biased_lock::owner_lock load seq_cst as acquire",
       "biased_lock::owner_lock load seq_cst as relaxed",
       "biased_lock::owner_lock store release as relaxed",
       "biased_lock::owner_unlock store release as relaxed",
       "process_barrier fence seq_cst as acq_rel", "process_barrier fence seq_cst as relaxed"},
      // The fence behind it does for both.
      {"biased_lock::foreign_begin compare_exchange seq_cst as acq_rel",
       "biased_lock::foreign_begin compare_exchange seq_cst as relaxed"});
}

TEST(brief_mutex_interleaved, two_are_never_inside_and_none_sleeps_for_ever) {
  const auto make = [] {
    struct state {
      millpond::brief_mutex mutex;
      millpond::plain<int> entries{0};
    };
    auto s = std::make_shared<state>();
    const auto body = [=] {
      for (int i = 0; i < 2; ++i) {
        s->mutex.lock();
        s->entries += 1;
        s->mutex.unlock();
      }
    };
    return program{{body, body}, [=] { require(s->entries == 4, "an entry is lost"); }};
  };
  expect_right(with_preemptions(2), make);
  expect_orders(with_preemptions(2), {"brief_mutex"}, {make},
                {"brief_mutex::try_lock compare_exchange acquire as relaxed",
                 "brief_mutex::unlock exchange release as relaxed",
                 "brief_mutex::wait_for_it exchange acquire as relaxed"},
                {});
}

}  // namespace
}  // namespace interleaving
