// Resources and adaptors beside captures, and after the streams that their blocks were for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "driver/sim_fixture.hpp"
#include "millpond/base/units.hpp"
#include "millpond/memory/adaptors.hpp"
#include "millpond/memory/kinds.hpp"
#include "support/dead_streams.hpp"
#include "support/others_capture.hpp"

namespace millpond {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint64_t millisecond = 1'000'000;
constexpr capture_mode every_mode[] = {capture_mode::global, capture_mode::thread_local_,
                                       capture_mode::relaxed};

class resources_in_order : public sim_test {
 protected:
  void SetUp() override {
    simulated_gpu_options options;
    options.times = simulated_gpu_options::call_times::median;
    make(std::move(options));
    watched = std::make_shared<dead_streams>(gpu);
    s = stream();
    t = stream();
  }
  void TearDown() override {
    EXPECT_THAT(watched->named(), IsEmpty());
    sim_test::TearDown();
  }
  void destroy(stream_handle one) {
    ok(watched->stream_destroy(one));
    forget(one);
  }
  void begin(stream_handle on) { ok(gpu->capture_begin(on, capture_mode::relaxed)); }
  void end(stream_handle on) {
    graph_handle graph = nullptr;
    ok(gpu->capture_end(on, &graph));
    ok(gpu->graph_destroy(graph));
  }
  void work(void* block, stream_handle on, std::uint64_t ns) {
    const auto at = reinterpret_cast<device_address>(block);
    ok(gpu->launch({"work", ns, {{at, 4096, access_kind::write}}}, on));
  }
  std::uint64_t used_of(const driver_pool_resource& of) {
    ok(gpu->context_synchronize());
    return of.driver_usage().value().used;
  }

  std::shared_ptr<dead_streams> watched;
  stream_handle s = nullptr, t = nullptr;
};

// --- trace_resource

using traced = resources_in_order;

TEST_F(traced, a_capturing_streams_events_have_its_number_and_the_capture_is_whole) {
  driver_pool_resource memory(gpu);
  std::vector<std::uint64_t> streams;
  trace_resource trace(memory, [&](const trace::event& e) { streams.push_back(e.stream); });
  std::uint64_t id = 0;
  ok(gpu->stream_id(s, &id));
  trace.deallocate(trace.allocate(MiB, s), MiB, s);
  begin(s);
  trace.deallocate(trace.allocate(MiB, s), MiB, s);
  end(s);
  EXPECT_THAT(streams, ElementsAre(id, id, id, id));
}

TEST_F(traced, a_stream_that_was_never_seen_outside_a_capture_has_a_number_that_no_stream_has) {
  driver_pool_resource memory(gpu);
  std::vector<std::uint64_t> streams;
  trace_resource trace(memory, [&](const trace::event& e) { streams.push_back(e.stream); });
  begin(s);
  trace.deallocate(trace.allocate(MiB, s), MiB, s);
  end(s);
  ASSERT_EQ(streams.size(), 2u);
  EXPECT_EQ(streams[0], streams[1]);
  EXPECT_NE(streams[0] >> 63, 0u);
}

TEST_F(traced, a_handle_that_came_back_has_the_new_streams_number) {
  driver_pool_resource memory(gpu);
  std::vector<std::uint64_t> streams;
  trace_resource trace(memory, [&](const trace::event& e) { streams.push_back(e.stream); });
  trace.deallocate(trace.allocate(MiB, s), MiB, s);
  ok(gpu->stream_destroy(s));
  forget(s);
  const stream_handle back = stream();
  ASSERT_EQ(back, s);
  std::uint64_t id = 0;
  ok(gpu->stream_id(back, &id));
  trace.deallocate(trace.allocate(MiB, back), MiB, back);
  begin(back);
  trace.deallocate(trace.allocate(MiB, back), MiB, back);
  end(back);
  ASSERT_EQ(streams.size(), 6u);
  EXPECT_NE(streams[0], id);
  EXPECT_THAT(std::vector(streams.begin() + 2, streams.end()), ElementsAre(id, id, id, id));
}

TEST_F(traced, events_on_the_default_stream_leave_captures_of_per_thread_streams_whole) {
  device_resource memory(gpu);
  std::vector<std::uint64_t> streams;
  trace_resource trace(memory, [&](const trace::event& e) { streams.push_back(e.stream); });
  others_capture capture(*gpu, capture_mode::relaxed, per_thread_stream);
  trace.deallocate(trace.allocate(MiB, legacy_stream), MiB, legacy_stream);
  trace.deallocate(trace.allocate(MiB, nullptr), MiB, nullptr);
  EXPECT_TRUE(capture.end().ok());
  ASSERT_EQ(streams.size(), 4u);
  EXPECT_EQ(streams[0], streams[1]);
  EXPECT_EQ(streams[2], 0u);
}

// --- guard_resource

class guarded : public resources_in_order {
 protected:
  void SetUp() override {
    resources_in_order::SetUp();
    below = std::make_unique<driver_pool_resource>(watched);
    memory = std::make_unique<guard_resource>(
        *below, nullptr, guard_options{.name = {}, .quarantine_bytes = 300 * MiB});
    memory->set_error_sink([](const error& e) { ADD_FAILURE() << e.message; });
  }
  void TearDown() override {
    memory.reset();
    EXPECT_EQ(below->usage().live_blocks, 0u);
    below.reset();
    resources_in_order::TearDown();
  }
  std::unique_ptr<driver_pool_resource> below;
  std::unique_ptr<guard_resource> memory;
};

TEST_F(guarded, a_block_freed_before_a_capture_never_becomes_its_graphs) {
  void* const a = memory->allocate(256 * MiB, s);
  void* const b = memory->allocate(64 * MiB, t);
  memory->deallocate(a, 256 * MiB, s);
  begin(s);
  memory->deallocate(b, 64 * MiB, t);  // pushes a out
  EXPECT_EQ(memory->quarantined_bytes(), 64 * MiB);
  end(s);
  EXPECT_EQ(used_of(*below), 64 * MiB) << "a is free, b is kept back";
}

TEST_F(guarded, what_a_capture_frees_goes_on_in_that_capture) {
  begin(s);
  void* const block = memory->allocate(MiB, s);
  memory->deallocate(block, MiB, s);
  EXPECT_EQ(memory->quarantined_bytes(), 0u);
  EXPECT_EQ(below->usage().live_blocks, 0u);
  end(s);
}

TEST_F(guarded, blocks_of_a_destroyed_stream_go_on_behind_its_work_and_do_not_name_it) {
  void* const block = memory->allocate(64 * MiB, s);
  gpu->note_allocate(reinterpret_cast<device_address>(block), 64 * MiB, s, "guarded");
  work(block, s, 5 * millisecond);
  gpu->note_free(reinterpret_cast<device_address>(block), 64 * MiB, s, "guarded");
  memory->deallocate(block, 64 * MiB, s);
  destroy(s);
  memory->flush();
  EXPECT_EQ(memory->quarantined_bytes(), 0u);
  void* const next = memory->allocate(64 * MiB, t);
  gpu->note_allocate(reinterpret_cast<device_address>(next), 64 * MiB, t, "next");
  work(next, t, 1);
  gpu->note_free(reinterpret_cast<device_address>(next), 64 * MiB, t, "next");
  memory->deallocate(next, 64 * MiB, t);
  memory->flush();
  EXPECT_EQ(used_of(*below), 0u);
}

// Another thread's handle 2 is another stream.
TEST_F(guarded, blocks_of_a_per_thread_stream_go_on_behind_that_stream) {
  simulated_gpu::set_thread(1'000'003);
  void* const block = memory->allocate(64 * MiB, per_thread_stream);
  gpu->note_allocate(reinterpret_cast<device_address>(block), 64 * MiB, per_thread_stream, "one");
  work(block, per_thread_stream, 5 * millisecond);
  gpu->note_free(reinterpret_cast<device_address>(block), 64 * MiB, per_thread_stream, "one");
  memory->deallocate(block, 64 * MiB, per_thread_stream);
  simulated_gpu::set_thread(1'000'004);
  memory->flush();
  void* const next = memory->allocate(64 * MiB, per_thread_stream);
  gpu->note_allocate(reinterpret_cast<device_address>(next), 64 * MiB, per_thread_stream, "next");
  work(next, per_thread_stream, 1);
  gpu->note_free(reinterpret_cast<device_address>(next), 64 * MiB, per_thread_stream, "next");
  memory->deallocate(next, 64 * MiB, per_thread_stream);
  ok(gpu->context_synchronize());
}

TEST_F(guarded, blocks_of_another_contexts_default_stream_go_on_at_once) {
  driver_pool_resource memory_of_ours(watched);
  guard_resource guard(memory_of_ours, nullptr, {.name = {}, .quarantine_bytes = 300 * MiB});
  const another_context other(*gpu);
  guard.deallocate(guard.allocate(MiB, nullptr), MiB, nullptr);
  EXPECT_EQ(guard.quarantined_bytes(), 0u);
  guard.deallocate(guard.allocate(MiB, s), MiB, s);
  EXPECT_EQ(guard.quarantined_bytes(), MiB);
}

TEST_F(guarded, its_leaks_are_given_back_behind_the_work_of_streams_that_are_gone) {
  pointer_registry::options quiet;
  quiet.leak_sink = [](const leak_report&) {};
  {
    guard_resource leaking(*below, std::make_shared<pointer_registry>(quiet));
    void* const block = leaking.allocate(MiB, s);
    work(block, s, 5 * millisecond);
    destroy(s);
  }
  EXPECT_EQ(below->usage().live_blocks, 0u);
  EXPECT_EQ(used_of(*below), 0u);
}

TEST_F(guarded, nothing_of_it_breaks_the_capture_of_another_thread) {
  for (const capture_mode mode : every_mode) {
    pointer_registry::options quiet;
    quiet.leak_sink = [](const leak_report&) {};
    others_capture capture(*gpu, mode);
    {
      guard_resource one(*below, std::make_shared<pointer_registry>(quiet),
                         {.name = {}, .quarantine_bytes = 4 * MiB});
      for (int i = 0; i < 6; ++i) one.deallocate(one.allocate(MiB, s), MiB, s);
      for (int i = 0; i < 6; ++i) one.deallocate(one.allocate(MiB, t), MiB, t);
      EXPECT_NE(one.allocate(MiB, t), nullptr);  // leaks
    }
    EXPECT_TRUE(capture.end().ok());
  }
}

// --- Kinds that end with blocks out

template <class Resource, class... Options>
void leak_beside(simulated_gpu& gpu, const std::shared_ptr<driver>& through, stream_handle on,
                 Options... options) {
  for (const capture_mode mode : every_mode) {
    pointer_registry::options quiet;
    quiet.leak_sink = [](const leak_report&) {};
    others_capture capture(gpu, mode);
    {
      Resource memory(through, std::make_shared<pointer_registry>(quiet), options...);
      EXPECT_NE(memory.allocate(MiB, on), nullptr);
      EXPECT_TRUE(gpu.spin(millisecond, on).ok());
    }
    EXPECT_TRUE(capture.end().ok()) << "mode " << static_cast<int>(mode);
    EXPECT_EQ(gpu.leaks().managed_allocations, 0u);
  }
}

TEST_F(resources_in_order, leaks_of_each_kind_are_given_back_beside_captures) {
  leak_beside<device_resource>(*gpu, watched, s);
  leak_beside<pinned_resource>(*gpu, watched, s);
  leak_beside<managed_resource>(*gpu, watched, s);
  leak_beside<pageable_resource>(*gpu, watched, s);
  for (const capture_mode mode : every_mode) {
    pointer_registry::options quiet;
    quiet.leak_sink = [](const leak_report&) {};
    others_capture capture(*gpu, mode, per_thread_stream);  // which keeps the default stream busy
    {
      driver_pool_resource memory(watched, {}, std::make_shared<pointer_registry>(quiet));
      managed_resource managed(watched, std::make_shared<pointer_registry>(quiet));
      EXPECT_NE(memory.allocate(MiB, s), nullptr);
      EXPECT_NE(managed.allocate(MiB, s), nullptr);
    }
    EXPECT_TRUE(capture.end().ok());
  }
}

}  // namespace
}  // namespace millpond
