// Each function of the table calls the CUDA function that it is named after, with the right
// arguments, and carries its answer and its name back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "driver/cuda/cuda_driver.hpp"
#include "driver/cuda/kernels.hpp"
#include "driver/scripted_libcuda.hpp"

namespace millpond::cuda {
namespace {

class cuda_calls : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = open_driver(0, scripted_options());
    ASSERT_TRUE(opened) << opened.error().message;
    gpu_ = *opened;
  }
  fake_libcuda_script& script_ = scripted_libcuda();
  std::shared_ptr<driver> gpu_;
};

struct call_case {
  const char* name;  // the last CUDA function that it calls
  std::function<call_result(driver&)> call;
};

void ignore_destroy(void*) {}

// One of each function in the table.
std::vector<call_case> every_call() {
  static device_address address = 0;
  static void* host = nullptr;
  static std::uint64_t number = 0;
  static std::uint64_t other = 0;
  static int small = 0;
  static capture_info capture;
  static capture_mode mode = capture_mode::relaxed;
  static identity_report report;
  static driver::pool_usage usage;
  static driver::pointer_facts facts;
  static stream_handle stream = nullptr;
  static event_handle event = nullptr;
  static graph_handle graph = nullptr;
  static graph_exec_handle exec = nullptr;
  static pool_handle pool = nullptr;
  static const identity_block block{0x1000, 64, 1};
  constexpr auto device = memory_location::device;
  return {
      {"cuCtxSetCurrent", [](driver& d) { return d.bind_thread(); }},
      {"cuMemGetInfo", [](driver& d) { return d.memory_info(&number, &other); }},
      {"cuCtxSynchronize", [](driver& d) { return d.context_synchronize(); }},
      {"cuMemAlloc", [](driver& d) { return d.memory_allocate(&address, 1); }},
      {"cuMemFree", [](driver& d) { return d.memory_free(1); }},
      {"cuMemHostAlloc",
       [](driver& d) { return d.host_allocate(&host, 1, driver::host_flags::none); }},
      {"cuMemFreeHost", [](driver& d) { return d.host_free(nullptr); }},
      {"cuMemHostRegister", [](driver& d) { return d.host_register(nullptr, 1); }},
      {"cuMemHostUnregister", [](driver& d) { return d.host_unregister(nullptr); }},
      {"cuMemAllocManaged", [](driver& d) { return d.managed_allocate(&address, 1); }},
      {"cuPointerGetAttributes", [](driver& d) { return d.pointer_info(1, &facts); }},
      {"cuMemPoolCreate", [](driver& d) { return d.pool_create(&pool, device, 0); }},
      {"cuMemPoolDestroy", [](driver& d) { return d.pool_destroy(nullptr); }},
      {"cuMemPoolSetAttribute", [](driver& d) { return d.pool_set_release_threshold(nullptr, 1); }},
      {"cuMemPoolGetAttribute", [](driver& d) { return d.pool_get_usage(nullptr, &usage); }},
      {"cuMemPoolTrimTo", [](driver& d) { return d.pool_trim(nullptr, 1); }},
      {"cuMemAllocFromPoolAsync",
       [](driver& d) { return d.pool_allocate(&address, 1, nullptr, nullptr); }},
      {"cuMemFreeAsync", [](driver& d) { return d.pool_free(1, nullptr); }},
      {"cuMemAddressReserve", [](driver& d) { return d.address_reserve(&address, 1, 1); }},
      {"cuMemAddressFree", [](driver& d) { return d.address_free(1, 1); }},
      {"cuMemCreate",
       [](driver& d) { return d.physical_create(&number, 1, device, driver::shareable::no); }},
      {"cuMemRelease", [](driver& d) { return d.physical_release(1); }},
      {"cuMemMap", [](driver& d) { return d.map(1, 1, 1); }},
      {"cuMemUnmap", [](driver& d) { return d.unmap(1, 1); }},
      {"cuMemSetAccess", [](driver& d) { return d.set_access(1, 1, device); }},
      {"cuMemExportToShareableHandle", [](driver& d) { return d.export_handle(&small, 1); }},
      {"cuMemImportFromShareableHandle", [](driver& d) { return d.import_handle(&number, 1); }},
      {"cuStreamCreate", [](driver& d) { return d.stream_create(&stream); }},
      {"cuStreamDestroy", [](driver& d) { return d.stream_destroy(nullptr); }},
      {"cuStreamGetId", [](driver& d) { return d.stream_id(nullptr, &number); }},
      {"cuStreamGetDevice", [](driver& d) { return d.stream_device(nullptr, &small); }},
      {"cuStreamQuery", [](driver& d) { return d.stream_query(nullptr); }},
      {"cuStreamSynchronize", [](driver& d) { return d.stream_synchronize(nullptr); }},
      {"cuStreamWaitEvent", [](driver& d) { return d.stream_wait_event(nullptr, nullptr); }},
      {"cuEventCreate", [](driver& d) { return d.event_create(&event); }},
      {"cuEventDestroy", [](driver& d) { return d.event_destroy(nullptr); }},
      {"cuEventRecord", [](driver& d) { return d.event_record(nullptr, nullptr); }},
      {"cuEventQuery", [](driver& d) { return d.event_query(nullptr); }},
      {"cuEventSynchronize", [](driver& d) { return d.event_synchronize(nullptr); }},
      {"cuCtxRecordEvent", [](driver& d) { return d.context_record_event(nullptr); }},
      {"cuStreamIsCapturing", [](driver& d) { return d.stream_capture(nullptr, &capture); }},
      {"cuThreadExchangeStreamCaptureMode",
       [](driver& d) { return d.exchange_capture_mode(&mode); }},
      {"cuStreamBeginCapture",
       [](driver& d) { return d.capture_begin(nullptr, capture_mode::thread_local_); }},
      {"cuStreamEndCapture", [](driver& d) { return d.capture_end(nullptr, &graph); }},
      {"cuGraphRetainUserObject",
       [](driver& d) { return d.graph_retain(nullptr, ignore_destroy, nullptr); }},
      {"cuGraphInstantiateWithFlags",
       [](driver& d) { return d.graph_instantiate(&exec, nullptr); }},
      {"cuGraphLaunch", [](driver& d) { return d.graph_launch(nullptr, nullptr); }},
      {"cuGraphDestroy", [](driver& d) { return d.graph_destroy(nullptr); }},
      {"cuGraphExecDestroy", [](driver& d) { return d.graph_exec_destroy(nullptr); }},
      {"cuMemcpyAsync", [](driver& d) { return d.copy_async(1, 2, 3, nullptr); }},
      {"cuMemsetD8Async", [](driver& d) { return d.set_async(1, 2, 3, nullptr); }},
      {"cuMemPrefetchAsync", [](driver& d) { return d.prefetch_async(1, 2, device, nullptr); }},
      {"cuMemAdvise",
       [](driver& d) { return d.advise(1, 2, managed_advice::set_accessed_by, device); }},
      {"cuLaunchHostFunc",
       [](driver& d) { return d.host_function(nullptr, ignore_destroy, nullptr); }},
      {"cuLaunchKernel", [](driver& d) { return d.identity_write({&block, 1}, nullptr); }},
      {"cuLaunchKernel", [](driver& d) { return d.identity_check({&block, 1}, &report, nullptr); }},
      {"cuLaunchKernel", [](driver& d) { return d.spin(1, nullptr); }},
  };
}

TEST_F(cuda_calls, each_function_calls_its_own_and_names_it) {
  for (const call_case& each : every_call()) {
    script_.last[0] = '\0';
    const call_result answer = each.call(*gpu_);
    EXPECT_TRUE(answer) << to_string(answer);
    // A retain makes the object and gives it; the answer is named after the last.
    EXPECT_STREQ(script_.last, each.name);
    EXPECT_STREQ(answer.call, each.name);
  }
}

TEST_F(cuda_calls, each_failure_comes_back_with_the_name_of_its_call) {
  for (const call_case& each : every_call()) {
    std::strcpy(script_.failing, each.name);
    script_.failing_status = 801;
    const call_result answer = each.call(*gpu_);
    EXPECT_EQ(answer.status, driver_status::not_supported) << each.name;
    EXPECT_EQ(to_string(answer), std::string(each.name) + ": CUDA_ERROR_NOT_SUPPORTED (801)");
    script_.failing[0] = '\0';
  }
  EXPECT_TRUE(gpu_->alive());
}

TEST_F(cuda_calls, not_ready_is_an_answer_and_not_a_failure) {
  std::strcpy(script_.failing, "cuEventQuery");
  script_.failing_status = 600;
  EXPECT_EQ(gpu_->event_query(nullptr).status, driver_status::not_ready);
  EXPECT_TRUE(gpu_->alive());
}

TEST_F(cuda_calls, a_lost_device_is_dead_ever_after_and_gives_nothing_back) {
  std::strcpy(script_.failing, "cuEventQuery");
  script_.failing_status = 700;
  EXPECT_EQ(gpu_->event_query(nullptr).status, driver_status::illegal_address);
  script_.failing[0] = '\0';
  EXPECT_FALSE(gpu_->alive());
  gpu_.reset();
  EXPECT_EQ(script_.released, 0u);
}

TEST_F(cuda_calls, a_library_that_has_exited_is_dead) {
  std::strcpy(script_.failing, "cuCtxGetCurrent");
  script_.failing_status = 4;
  EXPECT_FALSE(gpu_->alive());
}

TEST_F(cuda_calls, the_capture_question_is_one_short_call_unless_it_captures) {
  capture_info info;
  script_.log[0] = '\0';
  EXPECT_TRUE(gpu_->stream_capture(nullptr, &info));
  EXPECT_EQ(info.status, capture_status::none);
  EXPECT_STREQ(script_.log, "cuStreamIsCapturing ");
  script_.capturing = 1;
  EXPECT_TRUE(gpu_->stream_capture(nullptr, &info));
  EXPECT_EQ(info.status, capture_status::active);
  EXPECT_EQ(info.id, 42u);
  EXPECT_NE(info.graph, nullptr);
  script_.capturing = 2;
  EXPECT_TRUE(gpu_->stream_capture(nullptr, &info));
  EXPECT_EQ(info.status, capture_status::invalidated);
  EXPECT_EQ(info.graph, nullptr);
}

TEST_F(cuda_calls, host_memory_lets_in_the_device_and_the_host) {
  EXPECT_TRUE(gpu_->set_access(0x1000, 0x2000, memory_location::host));
  EXPECT_EQ(script_.arguments[3], 2u);
  EXPECT_TRUE(gpu_->set_access(0x1000, 0x2000, memory_location::device));
  EXPECT_EQ(script_.arguments[3], 1u);
}

TEST_F(cuda_calls, a_host_pool_lets_the_device_in_or_is_given_back) {
  pool_handle pool = nullptr;
  script_.log[0] = '\0';
  EXPECT_TRUE(gpu_->pool_create(&pool, memory_location::host, 0));
  EXPECT_STREQ(script_.log, "cuMemPoolCreate cuMemPoolSetAccess ");
  script_.log[0] = '\0';
  std::strcpy(script_.failing, "cuMemPoolSetAccess");
  script_.failing_status = 801;
  pool = nullptr;
  EXPECT_STREQ(gpu_->pool_create(&pool, memory_location::host, 0).call, "cuMemPoolSetAccess");
  EXPECT_EQ(pool, nullptr);
  EXPECT_STREQ(script_.log, "cuMemPoolCreate cuMemPoolSetAccess cuMemPoolDestroy ");
}

TEST_F(cuda_calls, a_graph_that_refuses_its_object_leaves_the_data_with_the_caller) {
  int destroyed = 0;
  const auto count = [](void* at) { ++*static_cast<int*>(at); };
  std::strcpy(script_.failing, "cuGraphRetainUserObject");
  script_.failing_status = 1;
  EXPECT_FALSE(gpu_->graph_retain(nullptr, count, &destroyed));
  EXPECT_STREQ(script_.last, "cuUserObjectRelease");
  EXPECT_EQ(destroyed, 0);
  script_.failing[0] = '\0';
  EXPECT_TRUE(gpu_->graph_retain(nullptr, count, &destroyed));
  EXPECT_EQ(destroyed, 1) << "a graph that took it destroys it when it is gone";
}

TEST_F(cuda_calls, pointer_kinds_follow_the_drivers_attributes) {
  const auto kind = [&](unsigned type, unsigned managed, std::uint64_t pool) {
    script_.memory_type = type;
    script_.managed = managed;
    script_.pool = pool;
    driver::pointer_facts facts;
    EXPECT_TRUE(gpu_->pointer_info(0x1000, &facts));
    return facts.kind;
  };
  EXPECT_EQ(kind(0, 0, 0), memory_kind::pageable);
  EXPECT_EQ(kind(type_host, 0, 0), memory_kind::pinned);
  EXPECT_EQ(kind(type_device, 0, 0), memory_kind::device);
  EXPECT_EQ(kind(type_device, 0, 5), memory_kind::driver_pool);
  EXPECT_EQ(kind(type_device, 1, 0), memory_kind::managed);
}

TEST_F(cuda_calls, pool_usage_reads_the_four_counters) {
  driver::pool_usage usage;
  EXPECT_TRUE(gpu_->pool_get_usage(nullptr, &usage));
  EXPECT_EQ(usage.reserved, 5u);
  EXPECT_EQ(usage.reserved_high, 6u);
  EXPECT_EQ(usage.used, 7u);
  EXPECT_EQ(usage.used_high, 8u);
}

TEST_F(cuda_calls, too_many_blocks_or_no_report_is_refused_and_nothing_to_do_launches_nothing) {
  const std::vector<identity_block> blocks(max_identity_blocks + 1, {0x1000, 8, 1});
  identity_report report;
  EXPECT_EQ(gpu_->identity_write(blocks, nullptr).status, driver_status::invalid_value);
  EXPECT_EQ(gpu_->identity_check({blocks.data(), 1}, nullptr, nullptr).status,
            driver_status::invalid_value);
  script_.last[0] = '\0';
  const identity_block empty{0x1000, 0, 1};
  EXPECT_TRUE(gpu_->identity_write({&empty, 1}, nullptr));
  EXPECT_TRUE(gpu_->identity_check({}, &report, nullptr));
  EXPECT_STREQ(script_.last, "");
}

}  // namespace
}  // namespace millpond::cuda
