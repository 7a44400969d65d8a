// Sleep and wake: the memory is gone meanwhile, the addresses and the contents are not, and a
// driver call that fails changes nothing.
#include <atomic>
#include <climits>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "support/failing_driver.hpp"
#include "support/no_threads.hpp"
#include "support/pool_fixture.hpp"

namespace millpond {
namespace {

// The checker is informed of no blocks here: for it, memory that goes from under a live block is a
// fault, and here it is the point. It still watches that nothing is unmapped under work that may
// run.
class pool_sleep : public pool_test {
 protected:
  void begin(pool_options options = {}, const wrapper& wrap = {},
             simulated_gpu_options of_gpu = steady()) {
    start(std::move(options), std::move(of_gpu), wrap);
    void* host = nullptr;
    ok(gpu->host_allocate(&host, sizeof(identity_report), driver::host_flags::none));
    report = new (host) identity_report;
    s = stream();
  }
  void end() {
    for (const auto& [x, h] : live) p->deallocate(x, h.bytes, s);
    live.clear();
    store.reset();
    ok(gpu->host_free(report));
    end_pool();
  }
  void* put(std::uint64_t bytes) {
    const auto got = p->try_allocate(bytes, default_alignment, s);
    EXPECT_TRUE(got.has_value()) << got.error().message;
    if (!got) return nullptr;
    live[*got] = {bytes, ++identities};
    write(*got);
    return *got;
  }
  void write(void* x) {
    const identity_block block{reinterpret_cast<device_address>(x), live.at(x).bytes,
                               live.at(x).identity};
    ok(gpu->identity_write({&block, 1}, s));
  }
  void drop(void* x) {
    p->deallocate(x, live.at(x).bytes, s);
    live.erase(x);
  }
  // Words that are not what was written, over all live blocks but those in `except`.
  std::uint64_t wrong(const std::set<void*>& except = {}) {
    *report = {};
    for (const auto& [x, h] : live) {
      if (except.contains(x)) continue;
      const identity_block block{reinterpret_cast<device_address>(x), h.bytes, h.identity};
      ok(gpu->identity_check({&block, 1}, report, s));
    }
    ok(gpu->stream_synchronize(s));
    return report->mismatches;
  }
  // Blocks of many sizes with holes between them, and a span that is mapped a second time.
  std::vector<void*> fill() {
    std::vector<void*> out;
    for (std::uint64_t i = 0; i < 40; ++i) out.push_back(put((i % 7 + 1) * 150 * KiB + i));
    for (std::uint64_t i = 0; i < 10; ++i) out.push_back(put(3 * KiB + i));
    out.push_back(put(20 * MiB));
    for (std::size_t i = 0; i < 40; i += 3) {
      drop(out[i]);
      out[i] = nullptr;
    }
    ok(gpu->stream_synchronize(s));
    std::erase(out, nullptr);
    return out;
  }
  sleep_outcome sleep(sleep_options options = {}) {
    const simulated_gpu::library_scope library;
    const auto slept = p->sleep(options);
    EXPECT_TRUE(slept.has_value()) << slept.error().message;
    return slept ? *slept : sleep_outcome{};
  }
  wake_outcome wake() {
    const simulated_gpu::library_scope library;
    const auto woke = p->wake();
    EXPECT_TRUE(woke.has_value()) << woke.error().message;
    return woke ? *woke : wake_outcome{};
  }
  std::shared_ptr<pinned_store> pin(std::uint64_t bytes) {
    auto made = pinned_store::create(gpu, bytes, 2);
    EXPECT_TRUE(made.has_value()) << made.error().message;
    return made ? *made : nullptr;
  }

  struct held {
    std::uint64_t bytes;
    std::uint64_t identity;
  };
  std::map<void*, held> live;
  std::uint64_t identities = 0;
  identity_report* report = nullptr;
  stream_handle s = nullptr;
  std::shared_ptr<pinned_store> store;
};

TEST_F(pool_sleep, all_memory_is_gone_asleep_and_all_contents_are_there_awake) {
  begin();
  fill();
  store = pin(64 * MiB);
  const std::uint64_t before = now().reserved_bytes;
  const sleep_outcome slept = sleep({.host = store});
  EXPECT_TRUE(p->asleep());
  EXPECT_EQ(gpu->physical_bytes(), 0u);
  EXPECT_EQ(now().reserved_bytes, 0u);
  EXPECT_LE(slept.released_bytes, before);  // what nobody used went first
  EXPECT_EQ(now().asleep_bytes, slept.released_bytes);
  EXPECT_EQ(slept.dropped_bytes, 0u);
  EXPECT_EQ(slept.pinned_bytes, 0u);
  EXPECT_GT(slept.kept_bytes, 20 * MiB);
  const wake_outcome woke = wake();
  EXPECT_FALSE(p->asleep());
  EXPECT_EQ(woke.taken_bytes, slept.released_bytes);
  EXPECT_EQ(woke.restored_bytes, slept.kept_bytes);
  EXPECT_EQ(now().reserved_bytes, woke.taken_bytes);
  EXPECT_EQ(wrong(), 0u);
  put(30 * MiB);
  EXPECT_EQ(wrong(), 0u);
  end();
}

TEST_F(pool_sleep, spans_that_are_mapped_twice_come_back_at_both_addresses) {
  pool_options options;
  options.slack = 0;
  begin(options);
  // Large blocks come and go at sizes that do not fit the holes, until pages have moved.
  std::vector<void*> blocks;
  for (std::uint64_t i = 0; now().stitches == 0 && i < 200; ++i) {
    blocks.push_back(put((20 + 13 * (i % 7)) * MiB));
    if (blocks.size() > 4) {
      drop(blocks[i % 4]);
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i % 4));
    }
  }
  ASSERT_GT(now().stitches, 0u);
  for (int round = 0; round < 3; ++round) {
    sleep();
    EXPECT_EQ(gpu->physical_bytes(), 0u);
    wake();
    EXPECT_EQ(wrong(), 0u);
    p->check();
    for (std::uint64_t i = 0; i < 8; ++i) {
      blocks.push_back(put((20 + 13 * (i % 7)) * MiB));
      drop(blocks[i % 4]);
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i % 4));
    }
  }
  EXPECT_EQ(wrong(), 0u);
  end();
}

TEST_F(pool_sleep, contents_are_dropped_by_tag) {
  begin();
  void* const weights = put(20 * MiB);
  void* const cache = put(40 * MiB);
  void* const other = put(1 * MiB);
  ASSERT_TRUE(p->set_tag(weights, "weights"));
  ASSERT_TRUE(p->set_tag(cache, "cache"));
  sleep_outcome slept = sleep({.drop = {"cache"}});
  EXPECT_EQ(slept.dropped_bytes, 40 * MiB);
  EXPECT_EQ(slept.kept_bytes, 21 * MiB);
  EXPECT_GE(slept.pinned_bytes, 21 * MiB);
  wake();
  EXPECT_EQ(wrong({cache}), 0u);
  EXPECT_GT(wrong(), 0u) << "the cache has come back although it was dropped";
  ASSERT_TRUE(broken("read_of_unwritten")) << "the checker knows it too";
  gpu->clear_violations();
  write(cache);
  EXPECT_EQ(wrong(), 0u);
  // Untagged blocks too, where the program says so; a tag ends with its block.
  drop(weights);
  void* const again = put(20 * MiB);
  slept = sleep({.drop = {"weights"}});
  EXPECT_EQ(slept.dropped_bytes, 0u);
  wake();
  slept = sleep({.untagged = sleep_options::untagged_blocks::drop});
  EXPECT_EQ(slept.kept_bytes, 40 * MiB);
  wake();
  EXPECT_EQ(wrong({again, other}), 0u);
  EXPECT_EQ(p->set_tag(&slept, "x").error().code, error_code::foreign_pointer);
  end();
}

TEST_F(pool_sleep, asleep_it_refuses_allocation_and_takes_frees) {
  begin();
  const auto all = fill();
  auto cache = p->cache(s);
  void* const of_cache = cache.allocate(2 * MiB);
  sleep();
  EXPECT_EQ(p->try_allocate(1 * MiB, default_alignment, s).error().code, error_code::not_permitted);
  EXPECT_THROW(static_cast<void>(cache.allocate(100)), memory_error);
  EXPECT_EQ(p->sleep().error().code, error_code::not_permitted);
  EXPECT_EQ(p->reserve(1 * MiB).error().code, error_code::not_permitted);
  EXPECT_EQ(p->would_fit(1 * MiB).how, pool::fit::no);
  EXPECT_EQ(p->trim(), 0u);
  EXPECT_EQ(p->give_back(0), 0u);
  EXPECT_NE(to_text(p->explain()).find("asleep"), std::string::npos);
  const std::uint64_t blocks = now().live_blocks;
  for (std::size_t i = 0; i < all.size(); i += 2) drop(all[i]);
  cache.deallocate(of_cache, 2 * MiB);
  EXPECT_EQ(now().live_blocks, blocks - (all.size() + 1) / 2 - 1);
  p->deallocate(all[0], 0, s);
  EXPECT_EQ(only_error().code, error_code::double_free);
  const wake_outcome woke = wake();
  EXPECT_LT(woke.restored_bytes, 30 * MiB);
  EXPECT_EQ(wrong(), 0u);
  for (int i = 0; i < 30; ++i) put(2 * MiB);
  EXPECT_EQ(wrong(), 0u);
  EXPECT_EQ(p->wake().error().code, error_code::not_permitted);
  end();
}

TEST_F(pool_sleep, a_pool_that_ends_asleep_leaves_nothing) {
  begin();
  fill();
  sleep();
  for (const auto& [x, h] : live) p->deallocate(x, h.bytes, s);
  live.clear();
  ok(gpu->host_free(report));
  end_pool();
}

TEST_F(pool_sleep, work_that_is_pending_is_waited_for) {
  begin();
  void* const x = put(50 * MiB);
  kernel_description busy;
  busy.name = "busy";
  busy.duration_ns = 50 * millisecond;
  ok(gpu->launch(std::move(busy), s));
  write(x);
  sleep();
  EXPECT_GE(gpu->now_ns(), 50 * millisecond);
  wake();
  EXPECT_EQ(wrong(), 0u);
  end();
}

TEST_F(pool_sleep, a_running_capture_forbids_it) {
  begin();
  void* const x = put(5 * MiB);
  const stream_handle c = stream();
  ok(gpu->capture_begin(c, capture_mode::global));
  const auto inside = p->try_allocate(1 * MiB, default_alignment, c);
  ASSERT_TRUE(inside.has_value());
  EXPECT_EQ(p->sleep().error().code, error_code::not_permitted);
  EXPECT_FALSE(p->asleep());
  graph_handle graph = nullptr;
  ok(gpu->capture_end(c, &graph));
  static_cast<void>(p->try_allocate(512, default_alignment, c));  // the pool sees that it has ended
  // A graph's memory sleeps too, and its addresses stay the graph's.
  sleep();
  EXPECT_EQ(gpu->physical_bytes(), 0u);
  wake();
  EXPECT_EQ(wrong(), 0u);
  ok(gpu->graph_destroy(graph));
  drop(x);
  errors.clear();
  p.reset();  // with what the graph and the capture left
  errors.clear();
  ok(gpu->host_free(report));
  end_pool();
}

TEST_F(pool_sleep, a_store_that_is_too_small_or_taken_is_refused_before_anything_changes) {
  begin();
  fill();
  store = pin(1 * MiB);
  const auto refused = p->sleep({.host = store});
  EXPECT_EQ(refused.error().code, error_code::invalid_argument);
  EXPECT_NE(refused.error().message.find("1.00 MiB"), std::string::npos) << refused.error().message;
  EXPECT_FALSE(p->asleep());
  EXPECT_EQ(wrong(), 0u);

  store = pin(64 * MiB);
  auto second = pool::create(gpu, {});
  ASSERT_TRUE(second.has_value());
  void* const theirs = (*second)->allocate(1 * MiB, s);
  sleep({.host = store});
  const simulated_gpu::library_scope library;  // the second pool moves what was never written
  EXPECT_EQ((*second)->sleep({.host = store}).error().code, error_code::not_permitted);
  EXPECT_FALSE((*second)->asleep());
  wake();
  EXPECT_TRUE((*second)->sleep({.host = store}).has_value());
  EXPECT_TRUE((*second)->wake().has_value());
  (*second)->deallocate(theirs, 1 * MiB, s);
  second->reset();
  EXPECT_EQ(wrong(), 0u);
  end();
}

TEST_F(pool_sleep, where_another_process_has_the_memory_it_stays_asleep_and_wakes_later) {
  simulated_gpu_options of_gpu = steady();
  of_gpu.memory_bytes = 128 * MiB;
  begin({}, {}, of_gpu);
  fill();
  sleep();
  gpu->set_faults({.taken_bytes = 110 * MiB});
  for (int i = 0; i < 2; ++i) {
    const auto refused = p->wake();
    EXPECT_EQ(refused.error().code, error_code::out_of_memory);
    EXPECT_NE(refused.error().message.find("still sleeps"), std::string::npos)
        << refused.error().message;
    EXPECT_TRUE(p->asleep());
    EXPECT_EQ(gpu->physical_bytes(), 0u);
  }
  gpu->set_faults({});
  wake();
  EXPECT_EQ(wrong(), 0u);
  end();
}

TEST_F(pool_sleep, threads_that_call_meanwhile_are_served_or_refused_and_lose_nothing) {
  begin();
  fill();
  std::atomic<bool> ends{false};
  std::atomic<std::uint64_t> served{0}, refused{0}, wrong_answers{0};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      auto cache = p->cache(s);
      std::vector<std::pair<void*, std::uint64_t>> mine;
      for (std::uint64_t i = 0; !ends.load(); ++i) {
        const std::uint64_t bytes = (i * 7919 + t * 104729) % (3 * MiB) + 1;
        const auto got = p->try_allocate(bytes, default_alignment, s);
        if (got) {
          ++served;
          mine.emplace_back(*got, bytes);
        } else {
          ++refused;
          const bool expected = got.error().code == error_code::not_permitted ||
                                got.error().message.find("sleeps") != std::string::npos;
          if (!expected) ++wrong_answers;
        }
        if (mine.size() > 8 || (!got && !mine.empty())) {
          const auto [at, size] = mine[i % mine.size()];
          if (i % 2 == 0)
            p->deallocate(at, size, s);
          else
            cache.deallocate(at, size);
          mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(i % mine.size()));
        }
      }
      for (const auto& [at, size] : mine) p->deallocate(at, size, s);
    });
  }
  for (int round = 0; round < 15; ++round) {
    const std::uint64_t before = served.load();
    for (int i = 0; i < 1000 && served.load() < before + 50; ++i) std::this_thread::yield();
    const simulated_gpu::library_scope library;
    const auto slept = p->sleep();
    EXPECT_TRUE(slept.has_value()) << slept.error().message;
    const std::uint64_t seen = refused.load();
    for (int i = 0; i < 1000 && refused.load() < seen + 5; ++i) std::this_thread::yield();
    const auto woke = p->wake();
    EXPECT_TRUE(woke.has_value()) << woke.error().message;
  }
  ends.store(true);
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong_answers.load(), 0u);
  EXPECT_GT(served.load(), 0u);
  EXPECT_GT(refused.load(), 0u);
  EXPECT_EQ(wrong(), 0u);
  p->check();
  EXPECT_EQ(now().live_blocks, live.size());
  end();
}

TEST_F(pool_sleep, without_threads_it_sleeps_and_keeps_everything) {
  begin();
  fill();
  put(64 * MiB);  // which several threads would pin
  {
    const no_threads now;
    const sleep_outcome slept = sleep();
    EXPECT_GT(slept.pinned_bytes, 64 * MiB);
    EXPECT_EQ(gpu->physical_bytes(), 0u);
  }
  wake();
  EXPECT_EQ(wrong(), 0u);
  end();
}

TEST_F(pool_sleep, stores_of_any_size_and_any_number_of_threads_are_made_or_refused) {
  begin();
  store = pinned_store::create(gpu, 32 * MiB, UINT_MAX).value();
  for (const std::uint64_t bytes : {std::uint64_t{0}, UINT64_MAX, UINT64_MAX - 2 * MiB}) {
    EXPECT_EQ(pinned_store::create(gpu, bytes).error().code, error_code::invalid_argument);
  }
  end();
}

TEST_F(pool_sleep, other_kinds_of_pool_say_that_they_cannot) {
  pool_options options;
  options.kind = memory_kind::managed;
  begin(options);
  EXPECT_EQ(p->sleep().error().code, error_code::not_supported);
  EXPECT_FALSE(p->asleep());
  end();
}

// Every driver call of sleep, and of wake, fails in turn: once, and for good.
class pool_sleep_faults : public pool_sleep {
 protected:
  void sweep(std::uint64_t failing_calls, driver_status status) {
    bool slept_through = false;
    bool woke_through = false;
    std::set<std::string> failed_calls;
    for (std::uint64_t at = 1; at < 3000 && !woke_through; ++at) {
      std::shared_ptr<failing_driver> failing;
      begin({}, [&](std::shared_ptr<simulated_gpu> g) {
        return failing = std::make_shared<failing_driver>(std::move(g));
      });
      fill();
      p->trim();
      store = pin(64 * MiB);
      const std::uint64_t reserved = now().reserved_bytes;
      const std::uint64_t left = at;
      failing->fail(left, status, failing_calls);
      const auto slept = [&] {
        const simulated_gpu::library_scope library;
        return p->sleep({.host = store});
      }();
      if (!failing->failed().empty()) {
        failed_calls.insert(failing->failed());
        if (!slept) {
          if (failing_calls == 1) {
            EXPECT_NE(slept.error().message.find(failing->failed()), std::string::npos)
                << slept.error().message;
          }
          if (!p->asleep()) {
            EXPECT_LE(now().reserved_bytes, reserved);
            EXPECT_NE(slept.error().message.find("nothing changed"), std::string::npos)
                << slept.error().message;
          }
        }
        failing->fail(0, status);
        if (!slept && !p->asleep()) {
          EXPECT_EQ(wrong(), 0u) << "call " << at << " of sleep, " << slept.error().message;
          sleep({.host = store});
        }
      } else {
        slept_through = true;
        ASSERT_TRUE(slept.has_value());
        // The failing call is one of wake's.
        const std::uint64_t made = failing->calls();
        failing->fail(at - made, status, failing_calls);
        const auto woke = p->wake();
        if (failing->failed().empty())
          woke_through = true;
        else
          failed_calls.insert(failing->failed());
        if (!woke) {
          EXPECT_TRUE(p->asleep());
          if (failing_calls == 1) {
            EXPECT_NE(woke.error().message.find(failing->failed()), std::string::npos)
                << woke.error().message;
          }
        }
        failing->fail(0, status);
      }
      if (p->asleep()) wake();
      EXPECT_EQ(wrong(), 0u) << "call " << at;
      void* const fresh = put(40 * MiB);
      EXPECT_EQ(wrong(), 0u);
      drop(fresh);
      p->check();
      // Whatever happened, it sleeps and wakes again, and everything is given back.
      sleep({.host = store});
      EXPECT_EQ(gpu->physical_bytes(), 0u) << "call " << at;
      wake();
      EXPECT_EQ(wrong(), 0u) << "call " << at;
      // What the driver refuses to destroy twice over is its own: an event or a stream, never
      // memory.
      if (failing_calls > 1) {
        leak_check = false;
        for (const violation& v : gpu->violations()) ADD_FAILURE() << v.rule << ": " << v.text;
      }
      end();
      EXPECT_EQ(gpu->physical_bytes(), 0u) << "call " << at;
      EXPECT_EQ(gpu->leaks().handles + gpu->leaks().mappings + gpu->leaks().reservations, 0u)
          << "call " << at;
      if (HasFailure()) {
        ADD_FAILURE() << "first at call " << at;
        return;
      }
    }
    EXPECT_TRUE(slept_through);
    EXPECT_TRUE(woke_through);
    EXPECT_GE(failed_calls.size(), 10u);
  }
};

TEST_F(pool_sleep_faults, any_call_may_fail_once) {
  sweep(1, driver_status::unknown);
}
TEST_F(pool_sleep_faults, any_call_may_run_out_of_memory) {
  sweep(1, driver_status::out_of_memory);
}
TEST_F(pool_sleep_faults, any_call_and_those_that_undo_it_may_fail) {
  sweep(6, driver_status::unknown);
}

}  // namespace
}  // namespace millpond
