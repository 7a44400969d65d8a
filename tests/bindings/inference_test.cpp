// Growable memory, and the allocators of TensorRT and ONNX Runtime (their headers by test doubles).
#include <gtest/gtest.h>

#include <NvInferRuntime.h>
#include <onnxruntime_c_api.h>
#include "millpond/base/units.hpp"
#include "millpond/bindings/onnxruntime.hpp"
#include "millpond/bindings/tensorrt.hpp"
#include "millpond/memory/kinds.hpp"
#include "millpond/pool/pool.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace millpond {
namespace {

class inference : public ::testing::Test {
 protected:
  void SetUp() override {
    simulated_gpu_options options;
    options.memory_bytes = 256 * MiB;
    options.mode = simulated_gpu_options::contents::bytes;
    gpu = simulated_gpu::create(options).value();
    growable = growable_blocks::create(gpu, {.reserve_bytes = GiB}).value();
    memory = pool::create(gpu).value();
    ASSERT_TRUE(gpu->stream_create(&stream).ok());
  }
  void TearDown() override {
    EXPECT_TRUE(gpu->stream_destroy(stream).ok());
    memory.reset();
    growable.reset();
    EXPECT_EQ(gpu->violation_count(), 0u);
    const live_objects left = gpu->leaks();
    EXPECT_EQ(left.total(), 0u) << to_string(left);
  }
  std::shared_ptr<simulated_gpu> gpu;
  std::shared_ptr<growable_blocks> growable;
  std::shared_ptr<pool> memory;
  stream_handle stream = nullptr;
};

TEST_F(inference, a_growable_block_keeps_its_address_and_its_contents) {
  auto* const block = static_cast<unsigned char*>(growable->allocate(3 * MiB).value());
  ASSERT_TRUE(gpu->set_async(reinterpret_cast<device_address>(block), 7, 3 * MiB, stream).ok());
  ASSERT_TRUE(gpu->stream_synchronize(stream).ok());
  ASSERT_TRUE(growable->grow(block, 50 * MiB).has_value());
  EXPECT_GE(growable->capacity(block), 50 * MiB);
  EXPECT_EQ(block[0], 7);
  EXPECT_EQ(block[3 * MiB - 1], 7);
  ASSERT_TRUE(
      gpu->set_async(reinterpret_cast<device_address>(block) + 49 * MiB, 9, MiB, stream).ok());
  ASSERT_TRUE(gpu->stream_synchronize(stream).ok());
  EXPECT_EQ(block[50 * MiB - 1], 9);
  EXPECT_TRUE(growable->grow(block, 1).has_value());  // smaller: nothing happens
  EXPECT_TRUE(growable->deallocate(block).has_value());
}

TEST_F(inference, a_block_that_cannot_grow_stays_as_it_was) {
  void* const block = growable->allocate(10 * MiB).value();
  const std::uint64_t before = growable->capacity(block);
  const auto beyond_the_device = growable->grow(block, 300 * MiB);
  ASSERT_FALSE(beyond_the_device.has_value());
  EXPECT_EQ(beyond_the_device.error().code, error_code::out_of_memory);
  const auto beyond_the_addresses = growable->grow(block, 2 * GiB);
  ASSERT_FALSE(beyond_the_addresses.has_value());
  EXPECT_NE(beyond_the_addresses.error().message.find("addresses end"), std::string::npos);
  EXPECT_EQ(growable->capacity(block), before);
  EXPECT_EQ(growable->reserved_bytes(), before);
  EXPECT_TRUE(growable->deallocate(block).has_value());
}

TEST_F(inference, freed_blocks_serve_again_and_go_under_pressure) {
  void* const first = growable->allocate(100 * MiB).value();
  EXPECT_TRUE(growable->deallocate(first).has_value());
  EXPECT_EQ(growable->allocate(50 * MiB).value(), first);
  void* const second = growable->allocate(100 * MiB).value();
  EXPECT_TRUE(growable->deallocate(second).has_value());
  EXPECT_TRUE(growable->grow(first, 200 * MiB).has_value());  // takes what the second left
  EXPECT_EQ(growable->trim(), 0u);
  EXPECT_TRUE(growable->deallocate(first).has_value());
  EXPECT_GE(growable->trim(), 200 * MiB);
  EXPECT_EQ(growable->reserved_bytes(), 0u);
}

TEST_F(inference, wrong_pointers_are_reported) {
  int mine = 0;
  EXPECT_EQ(growable->grow(&mine, 10).error().code, error_code::foreign_pointer);
  EXPECT_EQ(growable->deallocate(&mine).error().code, error_code::foreign_pointer);
  EXPECT_TRUE(growable->deallocate(nullptr).has_value());
  EXPECT_EQ(growable->allocate(0).value(), nullptr);
  EXPECT_EQ(growable->capacity(&mine), 0u);
  EXPECT_EQ(growable_blocks::create(nullptr).error().code, error_code::invalid_argument);
}

// Any failing call of the driver leaves the block as it was, and loses nothing.
TEST_F(inference, growth_survives_every_failing_call) {
  for (const char* const call :
       {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemAddressReserve"}) {
    SCOPED_TRACE(call);
    void* const block = growable->allocate(4 * MiB).value();
    const std::uint64_t before = growable->capacity(block);
    gpu->set_faults({.faults = {{.call = call, .at = 1, .count = 1000}}});
    const auto grown = growable->grow(block, 40 * MiB);
    EXPECT_EQ(grown.has_value(), std::string(call) == "cuMemAddressReserve");
    const auto other = growable->allocate(4 * MiB);
    gpu->set_faults({});
    EXPECT_TRUE(grown.has_value() || growable->capacity(block) == before);
    EXPECT_TRUE(!other.has_value() || growable->deallocate(*other).has_value());
    EXPECT_TRUE(growable->deallocate(block).has_value());
    static_cast<void>(growable->trim());
    EXPECT_EQ(growable->reserved_bytes(), 0u);
  }
}

TEST_F(inference, tensorrt_gets_streams_order_and_growth_in_place) {
  tensorrt_allocator trt(memory, growable);
  nvinfer1::IGpuAsyncAllocator& as_trt_sees_it = trt;
  void* const scratch = as_trt_sees_it.allocateAsync(MiB, 256, 0, stream);
  EXPECT_TRUE(memory->find(scratch).has_value());
  EXPECT_TRUE(as_trt_sees_it.deallocateAsync(scratch, stream));
  EXPECT_EQ(as_trt_sees_it.allocateAsync(MiB, 256, 0, stream), scratch);
  EXPECT_EQ(as_trt_sees_it.reallocate(scratch, 256, 2 * MiB),
            nullptr);  // a pool's block: TensorRT copies
  EXPECT_TRUE(as_trt_sees_it.deallocateAsync(scratch, stream));

  void* const output = as_trt_sees_it.allocateAsync(MiB, 256, 1U << 0, stream);
  EXPECT_FALSE(memory->find(output).has_value());
  EXPECT_EQ(as_trt_sees_it.reallocate(output, 256, 30 * MiB), output);
  EXPECT_EQ(as_trt_sees_it.reallocate(output, 256, 3 * GiB), nullptr);
  EXPECT_NE(trt.last_error().find("addresses end"), std::string::npos);
  EXPECT_TRUE(as_trt_sees_it.deallocateAsync(output, stream));

  EXPECT_EQ(as_trt_sees_it.allocateAsync(0, 256, 0, stream), nullptr);
  EXPECT_EQ(as_trt_sees_it.allocateAsync(GiB, 256, 0, stream), nullptr);
  EXPECT_NE(trt.last_error().find("out of memory"), std::string::npos);
  int mine = 0;
  EXPECT_FALSE(as_trt_sees_it.deallocateAsync(&mine, stream));
  EXPECT_TRUE(as_trt_sees_it.deallocateAsync(nullptr, stream));
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // as TensorRT 9 calls
  void* const old_way = as_trt_sees_it.allocate(1000, 256, 0);
  EXPECT_NE(old_way, nullptr);
  EXPECT_TRUE(as_trt_sees_it.deallocate(old_way));
#pragma GCC diagnostic pop
}

TEST_F(inference, tensorrt_without_streams) {
  tensorrt_synchronous_allocator trt(memory, growable);
  void* const a = trt.allocate(1000, 1024, 0);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a) % 1024, 0u);
  EXPECT_TRUE(trt.deallocate(a));
  EXPECT_THROW(tensorrt_allocator(nullptr), memory_error);
}

TEST_F(inference, onnx_runtime_calls_through_its_struct_of_functions) {
  const auto* const info = reinterpret_cast<const OrtMemoryInfo*>(&gpu);
  onnxruntime_allocator ort(*memory, info, stream);
  OrtAllocator* const as_ort_sees_it = &ort;
  EXPECT_EQ(as_ort_sees_it->version, static_cast<std::uint32_t>(ORT_API_VERSION));
  EXPECT_EQ(as_ort_sees_it->Info(as_ort_sees_it), info);
  void* const a = as_ort_sees_it->Alloc(as_ort_sees_it, 1000);
  void* const b = as_ort_sees_it->Reserve(as_ort_sees_it, 2000);
  EXPECT_EQ(memory->statistics().live_bytes, 3000u);
  as_ort_sees_it->Free(as_ort_sees_it, a);
  as_ort_sees_it->Free(as_ort_sees_it, b);
  as_ort_sees_it->Free(as_ort_sees_it, nullptr);
  EXPECT_EQ(memory->statistics().live_bytes, 0u);
  EXPECT_EQ(as_ort_sees_it->Alloc(as_ort_sees_it, 0), nullptr);
  EXPECT_EQ(as_ort_sees_it->Alloc(as_ort_sees_it, GiB), nullptr);
  EXPECT_NE(ort.last_error().find("asked for 1.00 GiB"), std::string::npos);
  EXPECT_EQ(as_ort_sees_it->GetStats, nullptr);
  EXPECT_EQ(as_ort_sees_it->AllocOnStream, nullptr);
}

TEST_F(inference, onnx_runtime_may_write_host_memory_as_soon_as_it_has_it) {
  pool_options pinned;
  pinned.kind = memory_kind::pinned;
  const auto host = pool::create(gpu, pinned).value();
  onnxruntime_allocator ort(*host, nullptr, stream);
  void* const first = ort.Alloc(&ort, MiB);
  ASSERT_TRUE(gpu->spin(1'000'000, stream).ok());
  const auto before = gpu->now_ns();
  ort.Free(&ort, first);  // work on the stream may still read it
  void* const second = ort.Alloc(&ort, MiB);
  EXPECT_EQ(second, first);
  EXPECT_GE(gpu->now_ns(), before + 900'000);
  ort.Free(&ort, second);
}

}  // namespace
}  // namespace millpond
