// Opening the real driver: each way in which it fails says what failed and what to do.
#include "driver/cuda/open.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver/scripted_libcuda.hpp"

namespace millpond::cuda {
namespace {

using testing::HasSubstr;

std::string open_error(const open_options& options, int ordinal = 0) {
  const auto opened = open_driver(ordinal, options);
  return opened ? "opened" : opened.error().message;
}

TEST(cuda_open, a_missing_library_says_how_to_get_one_and_what_serves_without) {
  const open_options options{.library = "/nowhere/libcuda.so.1"};
  const auto opened = open_driver(0, options);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, error_code::not_supported);
  EXPECT_THAT(opened.error().message, HasSubstr("/nowhere/libcuda.so.1 cannot be loaded"));
  EXPECT_THAT(opened.error().message, HasSubstr("no NVIDIA driver"));
  EXPECT_THAT(opened.error().message, HasSubstr("--gpu sim"));
  const auto counted = count_devices(options);
  ASSERT_FALSE(counted);
  EXPECT_EQ(counted.error().message, opened.error().message);
}

TEST(cuda_open, a_library_that_is_not_the_driver_is_named) {
  EXPECT_THAT(open_error({.library = "libm.so.6"}),
              HasSubstr("is not the NVIDIA driver's library: it lacks cuDriverGetVersion"));
}

TEST(cuda_open, a_driver_too_old_says_which_version_was_found_and_which_is_needed) {
  fake_libcuda_script& script = scripted_libcuda();
  script.version = 12040;
  EXPECT_THAT(open_error(scripted_options()), HasSubstr("supports CUDA 12.4, and 12.5 is needed"));
  EXPECT_EQ(script.calls, 0u);
}

TEST(cuda_open, no_device_says_what_to_look_at) {
  fake_libcuda_script& script = scripted_libcuda();
  script.init_status = 100;
  EXPECT_THAT(open_error(scripted_options()), HasSubstr("no CUDA device"));
  EXPECT_THAT(open_error(scripted_options()), HasSubstr("CUDA_VISIBLE_DEVICES"));
  script.init_status = 0;
  script.devices = 0;
  EXPECT_THAT(open_error(scripted_options()), HasSubstr("no CUDA device"));
  const auto counted = count_devices(scripted_options());
  ASSERT_TRUE(counted);
  EXPECT_EQ(*counted, 0);
}

TEST(cuda_open, other_refusals_of_init_say_their_cause) {
  fake_libcuda_script& script = scripted_libcuda();
  script.init_status = error_system_driver_mismatch;
  EXPECT_THAT(open_error(scripted_options()), HasSubstr("different versions"));
  script.init_status = error_stub_library;
  EXPECT_THAT(open_error(scripted_options()), HasSubstr("stub"));
  script.init_status = 999;
  EXPECT_THAT(open_error(scripted_options()), HasSubstr("/dev/nvidia-uvm"));
  script.init_status = 3;
  EXPECT_THAT(open_error(scripted_options()), HasSubstr("forked"));
}

TEST(cuda_open, an_ordinal_out_of_range_says_the_range) {
  fake_libcuda_script& script = scripted_libcuda();
  script.devices = 2;
  EXPECT_THAT(open_error(scripted_options(), 2),
              HasSubstr("no GPU 2: this process sees 2, GPU 0 to 1"));
  EXPECT_THAT(open_error(scripted_options(), -1), HasSubstr("no GPU -1"));
  EXPECT_EQ(script.retained, 0u);
}

TEST(cuda_open, a_missing_function_is_named) {
  fake_libcuda_script& script = scripted_libcuda();
  std::strcpy(script.missing, "cuMemPrefetchAsync");
  EXPECT_THAT(open_error(scripted_options()),
              HasSubstr("lacks cuMemPrefetchAsync (signature of CUDA 12.2)"));
  EXPECT_EQ(script.retained, 0u);
}

TEST(cuda_open, the_oldest_driver_served_opens_and_finds_a_streams_device_by_its_context) {
  fake_libcuda_script& script = scripted_libcuda();
  script.version = 12050;
  const auto opened = open_driver(0, scripted_options());
  ASSERT_TRUE(opened) << opened.error().message;
  script.current_context = 0xaa;
  int device = 0;
  const call_result answer = (*opened)->stream_device(nullptr, &device);
  EXPECT_TRUE(answer) << to_string(answer);
  EXPECT_EQ(device, 7);
  EXPECT_EQ(script.current_context, 0xaau) << "the caller's context is put back";
}

TEST(cuda_open, opening_leaves_the_threads_context_and_capture_mode_as_they_were) {
  fake_libcuda_script& script = scripted_libcuda();
  script.current_context = 0xbb;
  script.capture_mode = 1;
  const auto opened = open_driver(0, scripted_options());
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(script.current_context, 0xbbu);
  EXPECT_EQ(script.capture_mode, 1);
  EXPECT_EQ(script.modules, 1u);
  const device_info& info = (*opened)->info();
  EXPECT_EQ(info.name, "Scripted GPU");
  EXPECT_EQ(info.driver_version, 13000);
  EXPECT_EQ(info.granularity, 2u << 20);
  EXPECT_TRUE(info.virtual_memory);
}

TEST(cuda_open, the_last_owner_gives_the_context_and_the_module_back) {
  fake_libcuda_script& script = scripted_libcuda();
  {
    ASSERT_TRUE(open_driver(0, scripted_options()));
  }
  EXPECT_EQ(script.retained, 1u);
  EXPECT_EQ(script.released, 1u);
  EXPECT_EQ(script.modules, 0u);
}

TEST(cuda_open, a_failure_to_read_the_device_gives_the_context_back) {
  fake_libcuda_script& script = scripted_libcuda();
  std::strcpy(script.failing, "cuDeviceGetName");
  script.failing_status = 999;
  EXPECT_THAT(open_error(scripted_options()),
              HasSubstr("cuDeviceGetName: CUDA_ERROR_UNKNOWN (999)"));
  EXPECT_EQ(script.retained, script.released);
}

TEST(cuda_open, a_full_or_taken_gpu_says_so) {
  fake_libcuda_script& script = scripted_libcuda();
  std::strcpy(script.failing, "cuDevicePrimaryCtxRetain");
  script.failing_status = 2;
  EXPECT_THAT(open_error(scripted_options()), HasSubstr("its memory is full"));
  script.failing_status = error_device_unavailable;
  EXPECT_THAT(open_error(scripted_options()), HasSubstr("exclusive mode"));
}

TEST(cuda_open, a_kernel_that_cannot_be_compiled_is_reported_at_its_launch) {
  fake_libcuda_script& script = scripted_libcuda();
  std::strcpy(script.failing, "cuModuleLoadData");
  script.failing_status = error_jit_compiler_not_found;
  const auto opened = open_driver(0, scripted_options());
  ASSERT_TRUE(opened) << opened.error().message;
  const identity_block block{0x1000, 64, 1};
  const call_result answer = (*opened)->identity_write({&block, 1}, nullptr);
  EXPECT_EQ(static_cast<int>(answer.status), error_jit_compiler_not_found);
  EXPECT_THAT(to_string(answer), HasSubstr("cuModuleLoadData (identity kernels)"));
  EXPECT_THAT(to_string(answer), HasSubstr("CUDA_ERROR_JIT_COMPILER_NOT_FOUND"));
  EXPECT_TRUE((*opened)->alive());
}

TEST(cuda_open, facts_are_read_without_a_context) {
  fake_libcuda_script& script = scripted_libcuda();
  script.devices = 2;
  const auto facts = read_driver_facts(scripted_options());
  ASSERT_TRUE(facts) << facts.error().message;
  EXPECT_EQ(facts->version, 13000);
  ASSERT_EQ(facts->devices.size(), 2u);
  EXPECT_EQ(facts->devices[1].info.ordinal, 1);
  EXPECT_EQ(facts->devices[0].pci, "0001:01:01.0");
  EXPECT_EQ(script.retained, 0u);
}

// The child's exit status says what it saw; 0 is all well.
int run_in_child(int (*what)(driver&, fake_libcuda_script&), driver& subject,
                 fake_libcuda_script& script) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(what(subject, script));
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100;
}

TEST(cuda_open, a_forked_child_is_refused_and_calls_nothing) {
  fake_libcuda_script& script = scripted_libcuda();
  const auto opened = open_driver(0, scripted_options());
  ASSERT_TRUE(opened) << opened.error().message;
  const auto check = [](driver& subject, fake_libcuda_script& seen) {
    const unsigned before = seen.calls;
    std::uint64_t id = 0;
    const call_result answer = subject.stream_id(nullptr, &id);
    if (answer.status != driver_status::not_permitted) return 1;
    if (std::string(answer.call) != "cuStreamGetId (in a forked child)") return 2;
    if (subject.alive()) return 3;
    subject.~driver();  // as the child's own exit would
    if (seen.calls != before || seen.released != 0) return 4;
    return 0;
  };
  EXPECT_EQ(run_in_child(check, **opened, script), 0);
  std::uint64_t id = 0;
  EXPECT_TRUE((*opened)->stream_id(nullptr, &id)) << "the parent goes on";
}

}  // namespace
}  // namespace millpond::cuda
