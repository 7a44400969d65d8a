// Batches of one stream: a free that was given batch n is behind the event of n.
#include "order/stream_batches.hpp"

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "driver/null/null_driver.hpp"
#include "interleaving/expect.hpp"
#include "support/forwarding_driver.hpp"

namespace interleaving {
namespace {

using millpond::call_result;
using millpond::event_handle;
using millpond::stream_handle;
using millpond::order::seal_outcome;

// A stream on which the program enqueues work, and events that remember how much was there. The
// driver puts calls on one stream in an order, as CUDA's does; which one, the exploration chooses.
class counting_driver final : public millpond::forwarding_driver {
 public:
  counting_driver() : forwarding_driver(std::make_shared<millpond::null_driver>()) {}
  // How much work there is with this.
  std::uint64_t enqueue() noexcept { return work_.fetch_add(1, std::memory_order_acq_rel) + 1; }
  call_result event_record(event_handle event, stream_handle) noexcept override {
    covers[event] = work_.fetch_add(0, std::memory_order_acq_rel);
    order.push_back(event);
    return {};
  }
  call_result event_query(event_handle) noexcept override { return {}; }
  std::map<event_handle, std::uint64_t> covers;
  std::vector<event_handle> order;

 private:
  millpond::atomic<std::uint64_t> work_{0};
};

struct one_stream {
  counting_driver gpu;
  millpond::order::event_cache events{gpu};
  stream_handle handle = nullptr;
  std::unique_ptr<millpond::order::stream_batches> batches;
  struct freed {
    std::uint64_t batch, work;
  };
  std::vector<freed> frees;
  std::map<std::uint64_t, std::uint64_t> covered;  // by a batch's event

  one_stream() {
    std::uint64_t id = 0;
    static_cast<void>(gpu.stream_create(&handle));
    static_cast<void>(gpu.stream_id(handle, &id));
    batches = std::make_unique<millpond::order::stream_batches>(id, handle);
  }
  void free() {
    const std::uint64_t work = gpu.enqueue();
    frees.push_back({batches->join(512), work});
  }
  void seal() {
    call_result failure;
    const seal_outcome got = batches->seal(gpu, events, &failure);
    require(got == seal_outcome::sealed || got == seal_outcome::nothing, "it was not sealed");
  }
  // Every free is behind the event of its batch, or in the open batch, which is known to be dirty.
  void check() {
    for (const freed& each : frees) {
      if (each.batch == batches->open()) {
        require(batches->dirty(), "a free in a batch that nobody will seal");
        continue;
      }
      // One event a batch, in their order.
      require(each.batch <= gpu.order.size(), "a batch that is closed without an event");
      require(gpu.covers[gpu.order[each.batch - 1]] >= each.work, "a free before its event");
    }
  }
};

options bounded(unsigned preemptions) {
  options out;
  out.preemptions = preemptions;
  // The bytes of the open batch, by which a seal is thought worth its while.
  out.counts = {"stream_batches::join fetch_add"};
  // Whether there is a mark at all: it is cleaned by an exchange.
  out.hints = {"stream_batches::seal load"};
  return out;
}

std::function<program()> frees_beside_seals(unsigned frees) {
  return [=] {
    auto s = std::make_shared<one_stream>();
    return program{{[=] {
                      for (unsigned i = 0; i < frees; ++i) s->free();
                    },
                    [=] {
                      s->seal();
                      s->seal();
                    }},
                   [=] { s->check(); }};
  };
}

TEST(stream_batches_interleaved, a_free_is_behind_the_event_of_its_batch) {
  expect_right(bounded(3), frees_beside_seals(2));
}

TEST(stream_batches_interleaved, frees_of_two_threads_beside_a_seal) {
  expect_right(bounded(2), [] {
    auto s = std::make_shared<one_stream>();
    return program{{[=] { s->free(); }, [=] { s->free(); },
                    [=] {
                      s->seal();
                      s->seal();
                    }},
                   [=] { s->check(); }};
  });
}

TEST(stream_batches_interleaved, two_seals_at_once) {
  expect_right(bounded(2), [] {
    auto s = std::make_shared<one_stream>();
    const auto seal = [=] { s->seal(); };
    return program{{[=] { s->free(); }, seal, seal}, [=] { s->check(); }};
  });
}

// The mark is cleaned after the number is taken: a free between the two is in the next batch, and
// its mark is cleaned.
TEST(stream_batches_planted, a_mark_cleaned_after_the_next_number_was_given_is_found) {
  expect_found(bounded(2), "nobody will seal", [] {
    struct marks {
      millpond::atomic<std::uint64_t> open{1};
      millpond::atomic<bool> dirty{true};
      std::uint64_t batch = 0;
    };
    auto m = std::make_shared<marks>();
    return program{{[=] {
                      m->batch = m->open.load(std::memory_order_acquire);
                      m->dirty.store(true, std::memory_order_release);
                    },
                    [=] {
                      m->open.fetch_add(1, std::memory_order_acq_rel);
                      m->dirty.exchange(false, std::memory_order_acq_rel);
                    }},
                   [=] {
                     require(m->batch != m->open.load() || m->dirty.load(),
                             "a free in a batch that nobody will seal");
                   }};
  });
}

// Whoever sees that a batch has passed sees what the thread that asked has seen of it.
std::function<program()> completed_beside() {
  return [] {
    auto s = std::make_shared<one_stream>();
    auto seen = std::make_shared<millpond::plain<int>>(0);
    s->free();
    s->seal();
    return program{{[=] {
                      *seen = 1;
                      std::uint64_t queries = 0;
                      call_result failure;
                      s->batches->poll(s->gpu, s->events, &queries, &failure);
                    },
                    [=] {
                      if (s->batches->completed() >= 1) require(*seen == 1, "too early");
                    },
                    [=] { s->free(); }},
                   [=] { require(s->batches->completed() == 1, "not completed"); }};
  };
}

TEST(stream_batches_interleaved, who_sees_a_batch_completed_sees_what_completed_it) {
  expect_right(bounded(2), completed_beside());
}

TEST(stream_batches_orders, join_and_seal) {
  expect_orders(bounded(2), {"stream_batches"}, {frees_beside_seals(2)},
                {"stream_batches::join store release as relaxed",
                 "stream_batches::seal exchange acq_rel as relaxed",
                 "stream_batches::seal exchange acq_rel as release"},
                // The driver puts the calls of one stream in an order, and that does for these: who
                // enqueued behind an event sees the number that was given before it.
                {"stream_batches::join load acquire as relaxed",
                 "stream_batches::open load acquire as relaxed",
                 "stream_batches::seal exchange acq_rel as acquire",
                 "stream_batches::seal fetch_add acq_rel as acquire",
                 "stream_batches::seal fetch_add acq_rel as relaxed",
                 "stream_batches::seal fetch_add acq_rel as release",
                 "stream_batches::seal load acquire as relaxed"});
}

TEST(stream_batches_orders, completed) {
  expect_orders(bounded(2), {"stream_batches::completed", "raise_to"}, {completed_beside()},
                {"raise_to compare_exchange release as relaxed",
                 "stream_batches::completed load acquire as relaxed"},
                {});
}

}  // namespace
}  // namespace interleaving
