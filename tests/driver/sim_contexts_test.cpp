// Several contexts of one device, as cuCtxCreate and cuGreenCtxCreate make them, and threads that
// have none: what each call that asks for the current context then answers. Measured on an H200,
// driver 580.159, 2026-12-01, but for what a test says is CUDA's documentation.
#include <gtest/gtest.h>

#include <thread>

#include "driver/sim_fixture.hpp"
#include "millpond/base/units.hpp"

namespace millpond {
namespace {

constexpr std::uint64_t two_seconds = 2'000'000'000;
constexpr auto context_is_destroyed = static_cast<driver_status>(709);

class sim_contexts : public sim_test {
 protected:
  void SetUp() override {
    simulated_gpu::set_thread(1);
    make();
    ours = stream();
  }
  void TearDown() override {
    simulated_gpu::set_thread(1);
    ok(gpu->bind_thread());
    sim_test::TearDown();
  }
  // A second context, current no longer.
  simulated_gpu::context second() {
    simulated_gpu::context made = nullptr, popped = nullptr;
    ok(gpu->context_create(&made));
    ok(gpu->context_pop(&popped));
    EXPECT_EQ(popped, made);
    return made;
  }
  simulated_gpu::context green() {
    simulated_gpu::context made = nullptr;
    ok(gpu->green_context_create(&made));
    return made;
  }
  template <class What>
  auto in(simulated_gpu::context which, What&& what) {
    ok(gpu->context_push(which));
    auto answer = what();
    ok(gpu->context_pop(nullptr));
    return answer;
  }
  stream_handle stream_in(simulated_gpu::context which) {
    return in(which, [&] { return stream(); });
  }
  std::uint64_t id_of(stream_handle s) {
    std::uint64_t id = 0;
    ok(gpu->stream_id(s, &id));
    return id;
  }
  stream_handle ours = nullptr;
};

TEST_F(sim_contexts, a_thread_has_a_stack_of_them) {
  const simulated_gpu::context primary = gpu->primary_context();
  EXPECT_EQ(gpu->current_context(), primary);
  simulated_gpu::context made = nullptr, popped = nullptr;
  ok(gpu->context_create(&made));
  EXPECT_NE(made, primary);
  EXPECT_EQ(gpu->current_context(), made) << "cuCtxCreate makes it current";
  simulated_gpu::set_thread(2);
  EXPECT_EQ(gpu->current_context(), primary) << "on its own thread alone";
  simulated_gpu::set_thread(1);
  ok(gpu->context_set_current(primary));  // in place of the last
  EXPECT_EQ(gpu->current_context(), primary);
  ok(gpu->context_pop(&popped));
  EXPECT_EQ(popped, primary);
  ok(gpu->context_pop(&popped));
  EXPECT_EQ(gpu->current_context(), nullptr);
  const call_result none = gpu->context_pop(&popped);
  EXPECT_EQ(to_string(none), "cuCtxPopCurrent: CUDA_ERROR_INVALID_CONTEXT (201)");
  EXPECT_EQ(gpu->context_push(nullptr).status, driver_status::invalid_context);
  ok(gpu->context_push(made));
  EXPECT_EQ(gpu->current_context(), made);
  ok(gpu->context_set_current(nullptr));
  EXPECT_EQ(gpu->current_context(), nullptr);
  ok(gpu->bind_thread());
  EXPECT_EQ(gpu->current_context(), primary);
}

TEST_F(sim_contexts, a_thread_without_one_is_refused_but_for_capture_modes) {
  event_handle e = nullptr;
  stream_handle s = nullptr;
  device_address d = 0;
  std::uint64_t number = 0;
  physical_handle h = 0;
  ok(gpu->context_pop(nullptr));
  EXPECT_EQ(to_string(gpu->context_synchronize()),
            "cuCtxSynchronize: CUDA_ERROR_INVALID_CONTEXT (201)");
  EXPECT_EQ(gpu->event_create(&e).status, driver_status::invalid_context);
  EXPECT_EQ(gpu->stream_create(&s).status, driver_status::invalid_context);
  EXPECT_EQ(gpu->memory_allocate(&d, 4096).status, driver_status::invalid_context);
  EXPECT_EQ(
      gpu->physical_create(&h, 2 * MiB, memory_location::device, driver::shareable::no).status,
      driver_status::invalid_context);
  EXPECT_EQ(gpu->stream_id(nullptr, &number).status, driver_status::invalid_context);
  capture_mode mode = capture_mode::relaxed;
  ok(gpu->exchange_capture_mode(&mode));
  ok(gpu->exchange_capture_mode(&mode));
  gpu->note_allocate(4096, 4096, nullptr, "nobody's stream");  // tells nothing
  ok(gpu->bind_thread());
  ok(gpu->context_synchronize());
}

TEST_F(sim_contexts, threads_may_begin_without_one_as_on_a_card) {
  simulated_gpu_options options;
  options.threads = simulated_gpu_options::new_threads::have_no_context;
  const auto other = simulated_gpu::create(options);
  ASSERT_TRUE(other.has_value());
  EXPECT_TRUE((*other)->context_synchronize()) << "the thread that made it has the primary";
  simulated_gpu::set_thread(2);
  EXPECT_EQ((*other)->context_synchronize().status, driver_status::invalid_context);
  ok((*other)->bind_thread());
  ok((*other)->context_synchronize());
}

TEST_F(sim_contexts, a_synchronise_waits_for_the_current_context_alone) {
  const simulated_gpu::context other = second();
  ok(gpu->spin(two_seconds, ours));
  in(other, [&] {
    ok(gpu->context_synchronize());
    EXPECT_EQ(gpu->stream_query(ours).status, driver_status::not_ready);
    return 0;
  });
  ok(gpu->context_synchronize());
  ok(gpu->stream_query(ours));
}

TEST_F(sim_contexts, what_another_contexts_synchronise_has_not_seen_orders_nothing) {
  device_address d = 0;
  ok(gpu->memory_allocate(&d, 4096));
  const simulated_gpu::context other = second();
  const stream_handle b = stream();
  gpu->note_allocate(d, 4096, ours, "one");
  ok(gpu->set_async(d, 1, 4096, ours));
  gpu->note_free(d, 4096, ours, "two");
  in(other, [&] {
    ok(gpu->context_synchronize());
    return 0;
  });
  gpu->note_allocate(d, 4096, b, "three");
  expect_only("reuse_before_order", "two", "three");
  gpu->note_free(d, 4096, b, "four");
  ok(gpu->context_synchronize());
  gpu->note_allocate(d, 4096, ours, "five");
  gpu->note_free(d, 4096, ours, "six");
  ok(gpu->memory_free(d));
}

// CUDA's documentation: the primary context's synchronise is its green parts' too.
TEST_F(sim_contexts, the_primarys_synchronise_is_that_of_its_green_parts) {
  const simulated_gpu::context part = green();
  const stream_handle theirs = stream_in(part);
  ok(gpu->spin(two_seconds, theirs));
  ok(gpu->spin(2 * two_seconds, ours));
  in(part, [&] {
    ok(gpu->context_synchronize());
    ok(gpu->stream_query(theirs));
    EXPECT_EQ(gpu->stream_query(ours).status, driver_status::not_ready);
    return 0;
  });
  ok(gpu->spin(two_seconds, theirs));
  ok(gpu->context_synchronize());
  ok(gpu->stream_query(theirs));
  ok(gpu->stream_query(ours));
}

TEST_F(sim_contexts, an_event_is_of_the_context_that_was_current_when_it_was_made) {
  const simulated_gpu::context other = second();
  const event_handle mine = event();
  const event_handle foreign = in(other, [&] { return event(); });
  const stream_handle theirs = stream_in(other);
  EXPECT_EQ(to_string(gpu->event_record(foreign, ours)),
            "cuEventRecord: CUDA_ERROR_INVALID_HANDLE (400)");
  EXPECT_EQ(gpu->event_record(mine, theirs).status, driver_status::invalid_handle);
  EXPECT_EQ(gpu->context_record_event(foreign).status, driver_status::invalid_handle);
  ok(gpu->event_record(foreign, theirs));  // whichever is current
  ok(gpu->stream_wait_event(ours, foreign));
  ok(gpu->event_record(mine, ours));
}

TEST_F(sim_contexts, a_primarys_event_is_recorded_on_a_green_stream) {
  const simulated_gpu::context part = green();
  const stream_handle theirs = stream_in(part);
  const event_handle e = event();
  ok(gpu->spin(two_seconds, theirs));
  ok(gpu->event_record(e, theirs));
  EXPECT_EQ(gpu->event_query(e).status, driver_status::not_ready);
  ok(gpu->event_synchronize(e));
  ok(gpu->stream_query(theirs));
}

TEST_F(sim_contexts, a_context_event_covers_green_parts_and_no_other_context) {
  const simulated_gpu::context other = second(), part = green();
  const stream_handle theirs = stream_in(other), green_stream = stream_in(part);
  const event_handle e = event();
  ok(gpu->spin(two_seconds, theirs));
  ok(gpu->context_record_event(e));
  ok(gpu->event_query(e));
  EXPECT_EQ(gpu->stream_query(theirs).status, driver_status::not_ready);
  ok(gpu->spin(2 * two_seconds, green_stream));
  ok(gpu->context_record_event(e));
  EXPECT_EQ(gpu->event_query(e).status, driver_status::not_ready);
  ok(gpu->event_synchronize(e));
  ok(gpu->stream_query(green_stream));
  // It is the primary's, whichever is current.
  ok(gpu->spin(two_seconds, theirs));
  in(other, [&] {
    ok(gpu->context_record_event(e));
    return 0;
  });
  ok(gpu->event_query(e));
  ok(gpu->stream_synchronize(theirs));
}

TEST_F(sim_contexts, what_a_context_event_does_not_cover_is_in_no_order) {
  device_address d = 0;
  ok(gpu->memory_allocate(&d, 4096));
  const simulated_gpu::context other = second();
  const stream_handle theirs = stream_in(other);
  const event_handle e = event();
  gpu->note_allocate(d, 4096, theirs, "one");
  ok(gpu->set_async(d, 1, 4096, theirs));
  gpu->note_free(d, 4096, theirs, "two");
  ok(gpu->context_record_event(e));
  ok(gpu->event_synchronize(e));
  gpu->note_allocate(d, 4096, ours, "three");
  expect_only("reuse_before_order", "two", "three");
  gpu->note_free(d, 4096, ours, "four");
  ok(gpu->memory_free(d));
}

TEST_F(sim_contexts, the_default_streams_are_the_current_contexts) {
  const simulated_gpu::context other = second(), part = green();
  for (const stream_handle handle : {stream_handle{nullptr}, legacy_stream, per_thread_stream}) {
    const std::uint64_t mine = id_of(handle);
    const std::uint64_t theirs = in(other, [&] { return id_of(handle); });
    const std::uint64_t green_one = in(part, [&] { return id_of(handle); });
    EXPECT_NE(mine, theirs);
    EXPECT_NE(mine, green_one);
    EXPECT_NE(theirs, green_one);
    EXPECT_EQ(id_of(handle), mine);
    EXPECT_EQ(in(other, [&] { return id_of(handle); }), theirs);
  }
  ok(gpu->spin(two_seconds, nullptr));
  EXPECT_EQ(gpu->stream_query(per_thread_stream).status, driver_status::not_ready);
  in(other, [&] {
    ok(gpu->stream_query(nullptr));  // nothing runs on this one
    ok(gpu->stream_query(per_thread_stream));
    return 0;
  });
  ok(gpu->stream_synchronize(nullptr));
}

TEST_F(sim_contexts, the_checker_knows_the_default_streams_apart) {
  device_address d = 0;
  ok(gpu->memory_allocate(&d, 4096));
  const simulated_gpu::context other = second();
  gpu->note_allocate(d, 4096, nullptr, "one");
  in(other, [&] {
    ok(gpu->set_async(d, 1, 4096, nullptr));
    gpu->note_free(d, 4096, nullptr, "freed on the other's");
    return 0;
  });
  gpu->note_allocate(d, 4096, nullptr, "two");
  expect_only("reuse_before_order", "freed on the other's", "two");
  gpu->note_free(d, 4096, nullptr, "end");
  ok(gpu->memory_free(d));
}

TEST_F(sim_contexts, a_stream_of_another_context_is_known_by_its_handle) {
  const simulated_gpu::context other = second();
  const stream_handle theirs = stream_in(other);
  EXPECT_NE(id_of(theirs), id_of(ours));
  int ordinal = -1;
  ok(gpu->stream_device(theirs, &ordinal));
  EXPECT_EQ(ordinal, gpu->info().ordinal);
}

TEST_F(sim_contexts, another_contexts_capture_is_not_broken_by_ours) {
  const simulated_gpu::context other = second();
  const stream_handle theirs = stream_in(other);
  const event_handle e = event();
  ok(gpu->capture_begin(theirs, capture_mode::relaxed));
  ok(gpu->context_record_event(e));  // CUDA's documentation: of the context that it is asked for
  graph_handle graph = nullptr;
  ok(gpu->capture_end(theirs, &graph));
  ok(gpu->graph_destroy(graph));
  const stream_handle green_stream = stream_in(green());
  ok(gpu->capture_begin(green_stream, capture_mode::relaxed));
  EXPECT_EQ(gpu->context_record_event(e).status, driver_status::capture_unsupported);
  expect_only("forbidden_in_capture", "capture 2", "cuCtxRecordEvent");
  EXPECT_EQ(gpu->capture_end(green_stream, &graph).status, driver_status::capture_invalidated);
}

TEST_F(sim_contexts, a_destroyed_context_takes_its_streams_and_events_along) {
  simulated_gpu::context other = nullptr;
  ok(gpu->context_create(&other));
  const stream_handle theirs = stream();
  const event_handle foreign = event();
  forget(theirs);
  forget(foreign);
  ok(gpu->spin(two_seconds, theirs));
  ok(gpu->event_record(foreign, theirs));
  ok(gpu->context_pop(nullptr));
  simulated_gpu::set_thread(2);
  ok(gpu->context_push(other));
  simulated_gpu::set_thread(1);
  ok(gpu->context_destroy(other));
  EXPECT_GE(gpu->now_ns(), two_seconds);
  std::uint64_t id = 0;
  EXPECT_EQ(gpu->stream_id(theirs, &id).status, driver_status::invalid_handle);
  EXPECT_EQ(gpu->event_query(foreign).status, driver_status::invalid_handle);
  EXPECT_EQ(gpu->context_push(other).status, driver_status::invalid_context);
  EXPECT_EQ(gpu->context_destroy(other).status, driver_status::invalid_context);
  EXPECT_EQ(gpu->context_destroy(gpu->primary_context()).status, driver_status::invalid_context);
  simulated_gpu::set_thread(2);  // where it is still current
  const call_result refused = gpu->context_synchronize();
  EXPECT_EQ(refused.status, context_is_destroyed);
  EXPECT_EQ(to_string(refused), "cuCtxSynchronize: CUDA_ERROR_CONTEXT_IS_DESTROYED (709)");
  ok(gpu->bind_thread());
  ok(gpu->context_synchronize());
}

}  // namespace
}  // namespace millpond
