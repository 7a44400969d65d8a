// The model against what is known of the C++ memory model: each shape of a few loads and stores,
// with the outcome that is allowed and the order that forbids it.
#include <memory>

#include "interleaving/checked_atomic.hpp"
#include "interleaving/expect.hpp"

namespace interleaving {
namespace {

using std::memory_order_acq_rel;
using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;
using std::memory_order_seq_cst;

struct words {
  millpond::atomic<int> x{0}, y{0};
  millpond::plain<int> data{0};
  int a = -1, b = -1, c = -1, d = -1;
};

options free_choice() {
  options out;
  out.preemptions = 8;
  return out;
}

std::function<program()> store_buffering(std::memory_order stores, std::memory_order loads,
                                         bool fences) {
  return [=] {
    auto w = std::make_shared<words>();
    return program{{[=] {
                      w->x.store(1, stores);
                      if (fences) millpond::thread_fence(memory_order_seq_cst);
                      w->a = w->y.load(loads);
                    },
                    [=] {
                      w->y.store(1, stores);
                      if (fences) millpond::thread_fence(memory_order_seq_cst);
                      w->b = w->x.load(loads);
                    }},
                   [=] { require(w->a != 0 || w->b != 0, "both read 0"); }};
  };
}

TEST(memory_model, each_of_two_threads_may_miss_the_others_store) {
  expect_found(free_choice(), "both read 0",
               store_buffering(memory_order_relaxed, memory_order_relaxed, false));
  expect_found(free_choice(), "both read 0",
               store_buffering(memory_order_release, memory_order_acquire, false));
}

TEST(memory_model, the_total_order_forbids_that_both_miss) {
  expect_right(free_choice(), store_buffering(memory_order_seq_cst, memory_order_seq_cst, false));
  expect_right(free_choice(), store_buffering(memory_order_relaxed, memory_order_relaxed, true));
}

// A barrier of all threads in one of them does for both.
TEST(memory_model, one_barrier_of_all_threads_forbids_that_both_miss) {
  expect_right(free_choice(), [] {
    auto w = std::make_shared<words>();
    return program{{[=] {
                      w->x.store(1, memory_order_relaxed);
                      w->a = w->y.load(memory_order_relaxed);
                    },
                    [=] {
                      w->y.store(1, memory_order_relaxed);
                      execution::current()->barrier_of_all();
                      w->b = w->x.load(memory_order_relaxed);
                    }},
                   [=] { require(w->a != 0 || w->b != 0, "both read 0"); }};
  });
}

std::function<program()> message(std::memory_order stores, std::memory_order loads, bool fences) {
  return [=] {
    auto w = std::make_shared<words>();
    return program{{[=] {
                      w->data = 1;
                      if (fences) millpond::thread_fence(memory_order_release);
                      w->x.store(1, stores);
                    },
                    [=] {
                      if (w->x.load(loads) == 0) return;
                      if (fences) millpond::thread_fence(memory_order_acquire);
                      require(w->data == 1, "the message is not there");
                    }},
                   {}};
  };
}

TEST(memory_model, a_message_needs_release_and_acquire) {
  expect_right(free_choice(), message(memory_order_release, memory_order_acquire, false));
  expect_right(free_choice(), message(memory_order_relaxed, memory_order_relaxed, true));
  expect_found(free_choice(), "nothing orders the two",
               message(memory_order_relaxed, memory_order_acquire, false));
  expect_found(free_choice(), "nothing orders the two",
               message(memory_order_release, memory_order_relaxed, false));
}

TEST(memory_model, a_stale_value_may_be_read_until_something_orders_it) {
  expect_found(free_choice(), "the older value", [] {
    auto w = std::make_shared<words>();
    return program{{[=] {
                      w->x.store(1, memory_order_relaxed);
                      w->y.store(1, memory_order_relaxed);
                    },
                    [=] {
                      const int y = w->y.load(memory_order_relaxed);
                      require(y == 0 || w->x.load(memory_order_relaxed) == 1, "the older value");
                    }},
                   {}};
  });
}

TEST(memory_model, one_atomic_never_goes_back) {
  expect_right(free_choice(), [] {
    auto w = std::make_shared<words>();
    return program{{[=] {
                      w->x.store(1, memory_order_relaxed);
                      w->x.store(2, memory_order_relaxed);
                    },
                    [=] {
                      const int first = w->x.load(memory_order_relaxed);
                      require(w->x.load(memory_order_relaxed) >= first, "it went back");
                    }},
                   {}};
  });
}

std::function<program()> two_readers(std::memory_order order) {
  return [=] {
    auto w = std::make_shared<words>();
    return program{{[=] {
                      w->x.store(1, order);
                      w->y.store(1, order);
                    },
                    [=] {
                      w->a =
                          w->y.load(order == memory_order_release ? memory_order_acquire : order);
                      w->b = w->x.load(memory_order_relaxed);
                    },
                    [=] { w->c = w->x.exchange(5, memory_order_relaxed); }},
                   [=] { require(w->a == 0 || w->b != 0, "a cause without its effect"); }};
  };
}

// The load may answer the other thread's later store, which is not played, and said.
TEST(memory_model, a_load_that_may_answer_a_later_store_is_found) {
  const auto loads_first = [](std::memory_order loads, std::memory_order stores) {
    return [=] {
      auto w = std::make_shared<words>();
      return program{{[=] {
                        w->a = w->x.load(loads);
                        w->y.store(1, stores);
                      },
                      [=] {
                        w->b = w->y.load(loads);
                        w->x.store(1, stores);
                      }},
                     {}};
    };
  };
  expect_found(free_choice(), "may answer what is stored later",
               loads_first(memory_order_relaxed, memory_order_relaxed));
  expect_right(free_choice(), loads_first(memory_order_acquire, memory_order_release));
}

TEST(memory_model, an_atomic_is_made_before_it_is_used) {
  const auto made_by_one = [](std::memory_order publishes) {
    return [=] {
      struct late {
        std::unique_ptr<millpond::atomic<int>> made;
        millpond::atomic<millpond::atomic<int>*> at{nullptr};
      };
      auto l = std::make_shared<late>();
      return program{{[=] {
                        l->made = std::make_unique<millpond::atomic<int>>(7);
                        l->at.store(l->made.get(), publishes);
                      },
                      [=] {
                        if (auto* const there = l->at.load(memory_order_acquire))
                          require(there->load(memory_order_relaxed) == 7, "not made");
                      }},
                     {}};
    };
  };
  expect_right(free_choice(), made_by_one(memory_order_release));
  expect_found(free_choice(), "its making", made_by_one(memory_order_relaxed));
}

TEST(memory_model, what_a_thread_read_before_its_release_goes_along) {
  expect_right(free_choice(), two_readers(memory_order_release));
  expect_found(free_choice(), "a cause without its effect", two_readers(memory_order_relaxed));
}

// What a release published stays so through others' read-modify-writes, and not through stores.
TEST(memory_model, a_read_modify_write_hands_on_what_was_released) {
  const auto through = [](bool modify) {
    return [=] {
      auto w = std::make_shared<words>();
      return program{{[=] {
                        w->data = 1;
                        w->x.store(1, memory_order_release);
                      },
                      [=] {
                        if (modify)
                          w->x.fetch_add(1, memory_order_relaxed);
                        else if (w->x.load(memory_order_relaxed) == 1)
                          w->x.store(2, memory_order_relaxed);
                      },
                      [=] {
                        if (w->x.load(memory_order_acquire) == 2) require(w->data == 1, "lost");
                      }},
                     {}};
    };
  };
  expect_right(free_choice(), through(true));
  expect_found(free_choice(), "nothing orders the two", through(false));
}

TEST(memory_model, read_modify_writes_lose_nothing_and_loads_with_stores_do) {
  const auto count = [](bool modify) {
    return [=] {
      auto w = std::make_shared<words>();
      const auto add = [=] {
        if (modify)
          w->x.fetch_add(1, memory_order_relaxed);
        else
          w->x.store(w->x.load(memory_order_relaxed) + 1, memory_order_relaxed);
      };
      return program{{add, add, add}, [=] { require(w->x.load() == 3, "a count is lost"); }};
    };
  };
  expect_right(free_choice(), count(true));
  expect_found(free_choice(), "a count is lost", count(false));
}

TEST(memory_model, threads_that_all_wait_are_found) {
  expect_found(free_choice(), "wait", [] {
    auto w = std::make_shared<words>();
    return program{{[=] { w->x.wait(0, memory_order_acquire); },
                    [=] { w->x.store(1, memory_order_release); }},  // and tells nobody
                   {}};
  });
  expect_right(free_choice(), [] {
    auto w = std::make_shared<words>();
    return program{{[=] { w->x.wait(0, memory_order_acquire); },
                    [=] {
                      w->x.store(1, memory_order_release);
                      w->x.notify_one();
                    }},
                   {}};
  });
  expect_found(free_choice(), "wait", [] {
    auto m = std::make_shared<std::array<millpond::usual_mutex, 2>>();
    const auto both = [=](std::size_t first) {
      (*m)[first].lock();
      (*m)[1 - first].lock();
      (*m)[1 - first].unlock();
      (*m)[first].unlock();
    };
    return program{{[=] { both(0); }, [=] { both(1); }}, {}};
  });
}

TEST(memory_model, a_loop_that_yields_ends_when_what_it_waits_for_was_stored) {
  expect_right(free_choice(), [] {
    auto w = std::make_shared<words>();
    return program{{[=] {
                      while (w->x.load(memory_order_acquire) == 0) millpond::yield_thread();
                      require(w->data == 7, "it came too early");
                    },
                    [=] {
                      w->data = 7;
                      w->x.store(1, memory_order_release);
                    }},
                   {}};
  });
}

// The same program has the same executions each time, and a lower bound leaves some out.
TEST(memory_model, the_bound_on_preemptions_is_one) {
  const auto make = store_buffering(memory_order_seq_cst, memory_order_seq_cst, false);
  std::uint64_t before = 0;
  for (unsigned most = 0; most <= 2; ++most) {
    options how;
    how.preemptions = most;
    const outcome first = explore(how, make), second = explore(how, make);
    EXPECT_EQ(first.executions, second.executions);
    EXPECT_GT(first.executions, before);
    before = first.executions;
  }
}

}  // namespace
}  // namespace interleaving
