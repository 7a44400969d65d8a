// What every driver must do with streams, events and captures: part of driver_contract.hpp.
#pragma once
#include "driver/contract_fixture.hpp"

namespace millpond {

// --- Streams and events
// -------------------------------------------------------------------------------

TEST_P(driver_contract, a_stream_has_an_identity_of_its_own_and_a_device) {
  const stream_handle other = make_stream();
  std::uint64_t one = 0, two = 0, again = 0;
  OK(gpu_->stream_id(stream_, &one));
  OK(gpu_->stream_id(other, &two));
  OK(gpu_->stream_id(stream_, &again));
  EXPECT_NE(one, two);
  EXPECT_EQ(one, again);
  int ordinal = -1;
  OK(gpu_->stream_device(stream_, &ordinal));
  EXPECT_EQ(ordinal, gpu_->info().ordinal);
  std::uint64_t legacy = 0, per_thread = 0;
  OK(gpu_->stream_id(legacy_stream, &legacy));
  OK(gpu_->stream_id(per_thread_stream, &per_thread));
  EXPECT_NE(legacy, per_thread);
  EXPECT_NE(legacy, one);
}

TEST_P(driver_contract, a_new_stream_never_has_a_dead_ones_identity) {
  const stream_handle first = make_stream();
  std::uint64_t old_id = 0, new_id = 0;
  OK(gpu_->stream_id(first, &old_id));
  OK(gpu_->spin(ten_ms, first));
  OK(gpu_->stream_destroy(first));  // with its work pending
  forget(first);
  const stream_handle second = make_stream();
  OK(gpu_->stream_id(second, &new_id));
  EXPECT_NE(new_id, old_id);
  RecordProperty("same_handle_came_back", first == second ? "yes" : "no");
}

TEST_P(driver_contract, an_event_passes_when_the_work_before_it_is_done) {
  const event_handle event = make_event();
  OK(gpu_->event_query(event));  // never recorded: passed
  OK(gpu_->spin(3 * ten_ms, stream_));
  OK(gpu_->event_record(event, stream_));
  EXPECT_EQ(gpu_->event_query(event).status, driver_status::not_ready);
  EXPECT_EQ(gpu_->stream_query(stream_).status, driver_status::not_ready);
  OK(gpu_->event_synchronize(event));
  OK(gpu_->event_query(event));
  OK(gpu_->stream_query(stream_));
}

TEST_P(driver_contract, a_stream_that_waits_for_an_event_comes_after_it) {
  const stream_handle other = make_stream();
  const event_handle event = make_event();
  const event_handle after = make_event();
  OK(gpu_->spin(2 * ten_ms, stream_));
  OK(gpu_->event_record(event, stream_));
  OK(gpu_->stream_wait_event(other, event));
  OK(gpu_->event_record(after, other));
  EXPECT_EQ(gpu_->event_query(after).status, driver_status::not_ready);
  OK(gpu_->event_synchronize(after));
  OK(gpu_->event_query(event));
}

TEST_P(driver_contract, the_contexts_event_covers_a_destroyed_streams_work) {
  const stream_handle doomed = make_stream();
  const event_handle fence = make_event();
  OK(gpu_->spin(3 * ten_ms, doomed));
  OK(gpu_->stream_destroy(doomed));
  forget(doomed);
  OK(gpu_->context_record_event(fence));
  EXPECT_EQ(gpu_->event_query(fence).status, driver_status::not_ready);
  OK(gpu_->event_synchronize(fence));
  OK(gpu_->event_query(fence));
}

TEST_P(driver_contract, a_host_function_runs_in_its_place) {
  device_address at = no_address;
  OK(gpu_->memory_allocate(&at, MiB));
  void* pinned = nullptr;
  OK(gpu_->host_allocate(&pinned, 8, driver::host_flags::none));
  auto* word = static_cast<std::uint64_t*>(pinned);
  *word = 0;
  // The device writes 1s, the host function adds one byte, the device reads it back.
  OK(gpu_->set_async(address_of(word), 1, 1, stream_));
  OK(gpu_->host_function(stream_, [](void* w) { *static_cast<std::uint64_t*>(w) += 1; }, word));
  OK(gpu_->copy_async(at, address_of(word), 8, stream_));
  EXPECT_EQ(read(at, 1)[0], 2);
  OK(gpu_->host_free(pinned));
  OK(gpu_->memory_free(at));
}

// --- Capture
// ------------------------------------------------------------------------------------------

TEST_P(driver_contract, a_capture_is_known_by_its_id_and_replays) {
  constexpr std::uint64_t bytes = 100'000;
  device_address at = no_address;
  OK(gpu_->memory_allocate(&at, bytes));
  capture_info info;
  OK(gpu_->stream_capture(stream_, &info));
  EXPECT_EQ(info.status, capture_status::none);
  OK(gpu_->capture_begin(stream_, capture_mode::thread_local_));
  OK(gpu_->stream_capture(stream_, &info));
  EXPECT_EQ(info.status, capture_status::active);
  EXPECT_NE(info.graph, nullptr);
  const identity_block block{at, bytes, 101};
  OK(gpu_->identity_write({&block, 1}, stream_));
  OK(gpu_->set_async(at, 0, 1, stream_));
  graph_handle graph = nullptr;
  OK(gpu_->capture_end(stream_, &graph));
  ASSERT_NE(graph, nullptr);
  graph_exec_handle exec = nullptr;
  OK(gpu_->graph_instantiate(&exec, graph));
  for (int round = 0; round < 2; ++round) {
    OK(gpu_->set_async(at, 0xff, bytes, stream_));
    OK(gpu_->graph_launch(exec, stream_));
    EXPECT_EQ(mismatches(block), 1u) << "all written, and the first byte set to zero";
    EXPECT_EQ(report_->address, at);
  }
  OK(gpu_->graph_exec_destroy(exec));
  OK(gpu_->graph_destroy(graph));
  OK(gpu_->capture_begin(stream_, capture_mode::thread_local_));
  capture_info second;
  OK(gpu_->stream_capture(stream_, &second));
  EXPECT_NE(second.id, info.id);
  OK(gpu_->capture_end(stream_, &graph));
  OK(gpu_->graph_destroy(graph));
  OK(gpu_->memory_free(at));
}

TEST_P(driver_contract, what_a_graph_retains_is_destroyed_with_the_last_of_it) {
  std::atomic<int> destroyed{0};
  capture_info info;
  OK(gpu_->capture_begin(stream_, capture_mode::relaxed));
  OK(gpu_->stream_capture(stream_, &info));
  OK(gpu_->graph_retain(info.graph, count_up, &destroyed));
  OK(gpu_->spin(1000, stream_));
  graph_handle graph = nullptr;
  OK(gpu_->capture_end(stream_, &graph));
  graph_exec_handle exec = nullptr;
  OK(gpu_->graph_instantiate(&exec, graph));
  OK(gpu_->graph_destroy(graph));
  OK(gpu_->graph_launch(exec, stream_));
  wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(destroyed.load(), 0) << "what was made from the graph keeps it";
  OK(gpu_->graph_exec_destroy(exec));
  EXPECT_TRUE(becomes(destroyed, 1)) << destroyed.load();
}

TEST_P(driver_contract, what_an_aborted_capture_retained_is_destroyed) {
  std::atomic<int> destroyed{0};
  capture_info info;
  OK(gpu_->capture_begin(stream_, capture_mode::thread_local_));
  OK(gpu_->stream_capture(stream_, &info));
  OK(gpu_->graph_retain(info.graph, count_up, &destroyed));
  EXPECT_FALSE(gpu_->stream_synchronize(stream_)) << "a capturing stream cannot be waited for";
  OK(gpu_->stream_capture(stream_, &info));
  EXPECT_EQ(info.status, capture_status::invalidated);
  graph_handle graph = nullptr;
  const call_result ended = gpu_->capture_end(stream_, &graph);
  EXPECT_EQ(ended.status, driver_status::capture_invalidated) << to_string(ended);
  EXPECT_EQ(graph, nullptr);
  EXPECT_TRUE(becomes(destroyed, 1)) << destroyed.load();
  OK(gpu_->spin(1000, stream_));  // the stream is free again
  wait();
}

TEST_P(driver_contract, relaxed_mode_spares_another_threads_capture) {
  const std::uint64_t granule = gpu_->info().granularity;
  OK(gpu_->capture_begin(stream_, capture_mode::global));
  OK(gpu_->spin(1000, stream_));
  std::thread other([&] {
    OK(gpu_->bind_thread());
    const own_calls_scope own_calls(*gpu_);
    device_address at = no_address;
    OK(gpu_->memory_allocate(&at, MiB));
    OK(gpu_->memory_free(at));
    if (gpu_->info().virtual_memory) drop(make_mapping(granule, memory_location::device));
    const event_handle event = make_event();
    OK(gpu_->event_query(event));
  });
  other.join();
  graph_handle graph = nullptr;
  OK(gpu_->capture_end(stream_, &graph));
  OK(gpu_->graph_destroy(graph));
}

TEST_P(driver_contract, without_relaxed_mode_another_thread_is_refused_and_breaks_the_capture) {
  OK(gpu_->capture_begin(stream_, capture_mode::global));
  OK(gpu_->spin(1000, stream_));
  std::thread other([&] {
    OK(gpu_->bind_thread());
    device_address at = no_address;
    const call_result refused = gpu_->memory_allocate(&at, MiB);
    EXPECT_EQ(refused.status, driver_status::capture_unsupported) << to_string(refused);
  });
  other.join();
  graph_handle graph = nullptr;
  EXPECT_EQ(gpu_->capture_end(stream_, &graph).status, driver_status::capture_invalidated);
}

TEST_P(driver_contract, the_capture_mode_comes_back_by_a_second_exchange) {
  capture_mode mode = capture_mode::relaxed;
  OK(gpu_->exchange_capture_mode(&mode));
  EXPECT_EQ(mode, capture_mode::global) << "what a thread starts with";
  OK(gpu_->exchange_capture_mode(&mode));
  EXPECT_EQ(mode, capture_mode::relaxed);
}

}  // namespace millpond
