// Every driver call of a pool's life fails once, each in turn. The pool stays usable, live blocks
// keep their contents, nothing is leaked, and whoever is refused is reported which call failed.
#include <array>
#include <map>
#include <set>

#include "support/failing_driver.hpp"
#include "support/pool_fixture.hpp"

namespace millpond {
namespace {

class pool_faults : public pool_test {
 protected:
  void begin(memory_kind kind, reuse_policy reuse) {
    make(steady());
    failing = std::make_shared<failing_driver>(gpu);
    options.kind = kind;
    options.reuse = reuse;
    options.max_wait_ns = 100 * millisecond;
    options.clock = [g = gpu] { return g->now_ns(); };
    void* host = nullptr;
    ok(gpu->host_allocate(&host, sizeof(identity_report), driver::host_flags::none));
    report = new (host) identity_report;
    for (stream_handle& s : streams) s = stream();
  }
  void end() {
    ok(gpu->host_free(report));
    report = nullptr;
    failing.reset();
    live.clear();
    end_pool();
  }

  void* put(std::uint64_t bytes, stream_handle s, std::uint64_t alignment = default_alignment) {
    void* const x = take(bytes, s, alignment);
    if (x == nullptr) {
      refusals.push_back(refusal);
      return nullptr;
    }
    live[x] = {bytes, ++identities, s};
    const identity_block block{reinterpret_cast<device_address>(x), bytes, identities};
    ok(gpu->identity_write({&block, 1}, s));
    return x;
  }
  void check(void* x) {
    const held& h = live.at(x);
    const identity_block block{reinterpret_cast<device_address>(x), h.bytes, h.identity};
    ok(gpu->identity_check({&block, 1}, report, h.stream));
  }
  void drop(void* x) {
    if (x == nullptr) return;
    check(x);
    const stream_handle s = live.at(x).stream;
    live.erase(x);
    give(x, s);
  }

  // A pool's life: growth, caches and stream caches, seals and polls, uses, dead streams, a
  // capture, trim.
  void workload() {
    const auto [a, b, c] = streams;
    std::vector<void*> kept;
    for (std::uint64_t i = 0; i < 6; ++i) kept.push_back(put(3 * KiB + i, a));
    kept.push_back(put(20 * MiB, a));
    kept.push_back(put(2 * MiB, b, max_alignment));
    std::vector<void*> round;
    for (std::uint64_t i = 1; i <= 6; ++i) round.push_back(put(i * 4 * MiB, i % 2 == 0 ? a : b));
    for (void* x : round) drop(x);
    gpu->advance(5 * millisecond);
    for (std::uint64_t i = 1; i <= 3; ++i) drop(put(i * 15 * MiB, i % 2 == 0 ? b : a));

    if (void* const used = put(1 * MiB, a)) {
      const identity_block block{reinterpret_cast<device_address>(used), live.at(used).bytes,
                                 live.at(used).identity};
      const auto reported = p->record_use(used, b);
      if (reported)
        gpu->note_use(block.address, b, "workload");
      else
        refusals.push_back(reported.error());
      const event_handle written = event();
      ok(gpu->event_record(written, a));
      ok(gpu->stream_wait_event(b, written));
      if (reported) ok(gpu->identity_check({&block, 1}, report, b));
      drop(used);
    }
    stream_handle dying = nullptr;
    ok(gpu->stream_create(&dying));
    drop(put(1 * MiB, dying));
    ok(gpu->stream_destroy(dying));
    ok(gpu->stream_create(&dying));
    drop(put(1 * MiB, dying));
    ok(gpu->stream_destroy(dying));

    ok(gpu->capture_begin(c, capture_mode::global));
    void* const inside = take(5 * MiB, c);
    if (inside != nullptr) {
      work(inside, c, 10 * microsecond);
      give(inside, c);
    } else {
      refusals.push_back(refusal);
    }
    drop(put(30 * MiB, a));
    graph_handle graph = nullptr;
    ok(gpu->capture_end(c, &graph));
    graph_exec_handle exec = nullptr;
    ok(gpu->graph_instantiate(&exec, graph));
    ok(gpu->graph_destroy(graph));
    ok(gpu->graph_launch(exec, c));
    ok(gpu->graph_exec_destroy(exec));

    gpu->advance(5 * millisecond);
    trim(32 * MiB);
    kept.push_back(put(64 * MiB, b));
    drop(kept[6]);
    kept[6] = nullptr;
    trim();
    for (void* x : kept) {
      if (x != nullptr) check(x);
    }
  }

  void sweep(memory_kind kind, reuse_policy reuse, driver_status status) {
    std::set<std::string> failed_calls;
    for (std::uint64_t at = 1; at < 2000; ++at) {
      begin(kind, reuse);
      failing->fail(at, status);
      auto made = pool::create(failing, options);
      if (!made) {
        EXPECT_NE(made.error().message.find(failing->failed()), std::string::npos)
            << made.error().message;
        EXPECT_EQ(gpu->leaks().mappings + gpu->leaks().handles + gpu->leaks().reservations, 0u)
            << failing->failed();
        end();
        continue;
      }
      p = std::move(made).value();
      p->set_error_sink([this](const error& e) { errors.push_back(e); });
      refusals.clear();
      workload();
      const std::string failed = failing->failed();
      for (const error& e : refusals) {
        EXPECT_NE(e.message.find(failed), std::string::npos)
            << "call " << at << ", " << failed << ": " << e.message;
      }
      EXPECT_LE(refusals.size(), 1u) << failed;
      p->check();
      // Healed: the same life once more, nothing refused.
      if (failed.empty()) {
        failing->fail(0, status);
      } else {
        refusals.clear();
        workload();
        EXPECT_TRUE(refusals.empty())
            << "after " << failed << " at " << at << ": " << refusals.front().message;
      }
      std::vector<void*> all;
      for (const auto& [x, h] : live) all.push_back(x);
      for (void* x : all) drop(x);
      gpu->drain();
      EXPECT_EQ(report->mismatches, 0u) << "call " << at << ", " << failed;
      EXPECT_EQ(now().live_blocks, 0u);
      EXPECT_TRUE(errors.empty()) << errors.front().message;
      end();
      if (HasFailure()) {
        ADD_FAILURE() << "first at call " << at << ": " << failed;
        return;
      }
      if (failed.empty()) {
        EXPECT_GT(at, 100u) << "the workload makes calls";
        EXPECT_GE(failed_calls.size(), 10u);
        return;
      }
      failed_calls.insert(failed);
    }
    FAIL() << "the workload makes too many calls to fail each";
  }
  // The calls of closing alone: each is tried again, so that nothing is left.
  void sweep_close(memory_kind kind) {
    for (std::uint64_t at = 1; at < 500; ++at) {
      begin(kind, reuse_policy::idle);
      add_pool(options, failing);
      workload();
      std::vector<void*> all;
      for (const auto& [x, h] : live) all.push_back(x);
      for (void* x : all) drop(x);
      failing->fail(at, driver_status::unknown);
      {
        const simulated_gpu::library_scope library;
        p.reset();
      }
      const bool done = failing->failed().empty();
      EXPECT_TRUE(errors.empty()) << errors.front().message;
      end();
      if (done) return;
    }
    FAIL();
  }

  pool_options options;
  std::shared_ptr<failing_driver> failing;
  std::array<stream_handle, 3> streams{};
  identity_report* report = nullptr;
  std::uint64_t identities = 0;
  struct held {
    std::uint64_t bytes;
    std::uint64_t identity;
    stream_handle stream;
  };
  std::map<void*, held> live;
  std::vector<error> refusals;
};

TEST_F(pool_faults, any_call_of_a_device_pool_may_fail) {
  sweep(memory_kind::device, reuse_policy::idle, driver_status::unknown);
}
TEST_F(pool_faults, any_call_of_a_device_pool_may_run_out_of_memory) {
  sweep(memory_kind::device, reuse_policy::idle, driver_status::out_of_memory);
}
TEST_F(pool_faults, any_call_of_a_device_pool_that_may_wait_may_fail) {
  sweep(memory_kind::device, reuse_policy::may_wait, driver_status::unknown);
}
TEST_F(pool_faults, any_call_of_a_pinned_pool_may_fail) {
  sweep(memory_kind::pinned, reuse_policy::idle, driver_status::unknown);
}
TEST_F(pool_faults, any_call_of_a_managed_pool_may_fail) {
  sweep(memory_kind::managed, reuse_policy::idle, driver_status::unknown);
}
TEST_F(pool_faults, any_call_of_closing_may_fail_once) {
  for (const memory_kind kind : {memory_kind::device, memory_kind::pinned, memory_kind::managed})
    sweep_close(kind);
}

TEST_F(pool_faults, a_lost_device_is_reported_and_closing_does_not_hang) {
  start();
  const stream_handle a = stream();
  static_cast<void>(take(10 * MiB, a));
  fault_plan plan;
  fault lost;
  lost.at = 1;
  lost.effect = fault::what::lose_device;
  lost.status = driver_status::launch_failed;
  plan.faults.push_back(lost);
  gpu->set_faults(plan);
  EXPECT_EQ(take(100 * MiB, a), nullptr);
  EXPECT_NE(refusal.message.find("CUDA_ERROR"), std::string::npos) << refusal.message;
  leak_check = false;
  p.reset();
  errors.clear();
}

}  // namespace
}  // namespace millpond
