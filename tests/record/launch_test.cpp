// Launches on their way from a callback to the file: which of the words among their arguments are
// kept, and where.
#if __has_include(<cupti.h>) && __has_include(<cuda.h>)
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <vector>

#include "record/recorder.hpp"
#include "record/translate.hpp"
#include "trace/source.hpp"

namespace millpond::record {
namespace {

using trace::action;

// Kernel 1 takes an int, a pointer, a structure of 4 KiB and a pointer; kernel 2 a structure of 24
// bytes.
struct parameter {
  std::size_t offset, bytes;
};
std::vector<parameter> layout_of(std::uintptr_t function) {
  if (function == 1) return {{0, 4}, {8, 8}, {16, 4096}, {4112, 8}};
  return {{0, 24}};
}
CUresult parameters_of(CUfunction function, size_t index, size_t* offset, size_t* bytes) {
  const auto all = layout_of(reinterpret_cast<std::uintptr_t>(function));
  if (index >= all.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = all[index].offset;
  *bytes = all[index].bytes;
  return CUDA_SUCCESS;
}
int current_device = 0;
CUresult device_of(CUdevice* device) {
  *device = current_device;
  return CUDA_SUCCESS;
}

class launch_test : public ::testing::Test {
 protected:
  void SetUp() override {
    current_device = 0;
    path_ = (std::filesystem::temp_directory_path() /
             ("millpond_launch_" + std::to_string(getpid()) + ".mpt"))
                .string();
    settings how;
    how.path = path_;
    how.ring_cells = 1024;
    auto made = recorder::start(how, {});
    ASSERT_TRUE(made) << made.error().message;
    recorder_ = std::move(*made);
    translator_ = std::make_unique<translator>(
        *recorder_, driver_entries{parameters_of, nullptr, nullptr, device_of});
  }
  void TearDown() override { std::filesystem::remove(path_); }

  template <class Parameters>
  void call(CUpti_CallbackId id, const char* name, Parameters& with, const char* symbol = nullptr) {
    CUpti_CallbackData data{};
    CUresult answer = CUDA_SUCCESS;
    data.context = reinterpret_cast<CUcontext>(0x1000 + current_device);
    data.functionName = name;
    data.symbolName = symbol;
    data.functionParams = &with;
    data.functionReturnValue = &answer;
    for (const auto site : {CUPTI_API_ENTER, CUPTI_API_EXIT}) {
      data.callbackSite = site;
      translator_->driver_call(id, data);
    }
  }
  void allocate(CUdeviceptr address, std::size_t bytes) {
    cuMemAlloc_v2_params with{&address, bytes};
    call(CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2, "cuMemAlloc_v2", with);
  }
  cuLaunchKernel_params launch_of(std::uintptr_t function) {
    cuLaunchKernel_params with{};
    with.f = reinterpret_cast<CUfunction>(function);
    with.hStream = reinterpret_cast<CUstream>(0x6000);
    return with;
  }
  // The kernels, each with the addresses that it was given; those inside structures are negative.
  std::vector<std::vector<std::int64_t>> finished() {
    recorder_->finish("exit");
    EXPECT_EQ(recorder_->dropped(), 0u);
    std::vector<std::vector<std::int64_t>> made;
    auto source = trace::open_trace(path_);
    EXPECT_TRUE(source);
    auto read = source->for_each([&](const trace::event& each) {
      if (each.what == action::kernel) made.emplace_back();
      if (each.what != action::use) return;
      const auto address = static_cast<std::int64_t>(each.address);
      made.back().push_back(each.object == static_cast<std::uint64_t>(trace::use_form::structure)
                                ? -address
                                : address);
    });
    EXPECT_TRUE(read);
    return made;
  }

  std::string path_;
  std::unique_ptr<recorder> recorder_;
  std::unique_ptr<translator> translator_;
};

constexpr CUdeviceptr block(std::size_t n) {
  return 0x7e00'0000'0000 + n * 0x10000;
}

TEST_F(launch_test, keeps_pointers_and_what_in_structures_points_into_blocks_in_their_order) {
  for (std::size_t n = 0; n < 60; ++n) allocate(block(n), 0x1000);
  int number = 7;
  CUdeviceptr first = block(0), last = block(59);
  std::array<std::uint64_t, 512> structure{};
  for (std::size_t n = 0; n < structure.size(); ++n) structure[n] = n;  // no addresses
  std::vector<std::int64_t> expected{static_cast<std::int64_t>(first)};
  for (std::size_t n = 1; n < 59; ++n) {  // at every distance from the begin of a group of four
    structure[n * 8 + n % 8] = block(n) + n;
    expected.push_back(-static_cast<std::int64_t>(block(n) + n));
  }
  expected.push_back(static_cast<std::int64_t>(last));
  std::array<void*, 4> arguments{&number, &first, structure.data(), &last};
  auto with = launch_of(1);
  with.kernelParams = arguments.data();
  call(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, "cuLaunchKernel", with, "many");
  EXPECT_THAT(finished(), testing::ElementsAre(expected));
}

TEST_F(launch_test, five_words_are_one_note_and_six_are_two) {
  for (std::size_t n = 0; n < 6; ++n) allocate(block(n), 0x1000);
  std::vector<std::vector<std::int64_t>> expected;
  for (const std::size_t words : {0u, 4u, 5u, 6u}) {
    int number = 7;
    CUdeviceptr nothing = 0;
    std::array<std::uint64_t, 512> structure{};
    expected.emplace_back();
    for (std::size_t n = 0; n < words; ++n) {
      structure[511 - n] = block(n);
      expected.back().insert(expected.back().begin(), -static_cast<std::int64_t>(block(n)));
    }
    std::array<void*, 4> arguments{&number, &nothing, structure.data(), nullptr};
    auto with = launch_of(1);
    with.kernelParams = arguments.data();
    call(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, "cuLaunchKernel", with, "some");
  }
  EXPECT_EQ(finished(), expected);
}

TEST_F(launch_test, calls_carry_the_device_of_the_context_that_they_are_made_in) {
  std::vector<int> expected;
  for (const int device : {0, 3, 0}) {
    current_device = device;
    allocate(block(static_cast<std::size_t>(device)), 0x1000);
    CUdeviceptr given = block(static_cast<std::size_t>(device));
    std::array<std::uint64_t, 3> structure{given, 0, 0};
    std::array<void*, 1> arguments{structure.data()};
    auto with = launch_of(2);
    with.kernelParams = arguments.data();
    call(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, "cuLaunchKernel", with, "on_device");
    expected.insert(expected.end(), 3, device);  // the allocation, the kernel and its block
  }
  recorder_->finish("exit");
  std::vector<int> seen;
  auto source = trace::open_trace(path_);
  ASSERT_TRUE(source);
  ASSERT_TRUE(source->for_each([&](const trace::event& each) { seen.push_back(each.device); }));
  EXPECT_EQ(seen, expected);
}

TEST_F(launch_test, arguments_in_one_buffer_are_read_by_their_offsets_as_far_as_it_reaches) {
  allocate(block(0), 0x1000);
  allocate(block(1), 0x1000);
  std::array<std::uint64_t, 3> buffer{block(0), 5, block(1) + 8};
  std::size_t bytes = sizeof buffer;
  std::array<void*, 5> extra{CU_LAUNCH_PARAM_BUFFER_POINTER, buffer.data(),
                             CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  auto with = launch_of(2);
  with.extra = extra.data();
  call(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, "cuLaunchKernel", with, "packed");
  bytes = 16;
  call(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, "cuLaunchKernel", with, "packed");
  const auto inside = [](CUdeviceptr at) { return -static_cast<std::int64_t>(at); };
  EXPECT_THAT(finished(),
              testing::ElementsAre(testing::ElementsAre(inside(block(0)), inside(block(1) + 8)),
                                   testing::IsEmpty()));
}

}  // namespace
}  // namespace millpond::record
#endif
