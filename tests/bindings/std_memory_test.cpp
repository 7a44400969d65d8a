#include "millpond/bindings/std_memory.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "millpond/memory/kinds.hpp"
#include "millpond/pool/pool.hpp"
#include "millpond/sim/simulated_gpu.hpp"
#include "support/others_capture.hpp"

namespace millpond {
namespace {

class std_memory : public ::testing::Test {
 protected:
  void SetUp() override {
    gpu = simulated_gpu::create().value();
    pool_options pinned;
    pinned.kind = memory_kind::pinned;
    host = pool::create(gpu, pinned).value();
    device = pool::create(gpu).value();
  }
  void TearDown() override {
    EXPECT_EQ(host->statistics().live_bytes, 0u);
    EXPECT_EQ(device->statistics().live_bytes, 0u);
    EXPECT_EQ(host->deallocation_errors() + device->deallocation_errors(), 0u);
    EXPECT_EQ(gpu->violation_count(), 0u);
  }
  std::shared_ptr<simulated_gpu> gpu;
  std::shared_ptr<pool> host, device;
};

TEST_F(std_memory, pmr_containers_live_in_pinned_memory) {
  pmr_resource memory(*host);
  std::pmr::vector<int> numbers(&memory);
  for (int n = 0; n < 10'000; ++n) numbers.push_back(n);
  EXPECT_EQ(numbers[9'999], 9'999);
  std::pmr::map<int, std::pmr::string> words(&memory);
  for (int n = 0; n < 100; ++n) words[n] = std::pmr::string(200, 'x');
  EXPECT_GE(host->statistics().live_bytes, 40'000u + 20'000u);
  EXPECT_TRUE(host->find(numbers.data()).has_value());
}

TEST_F(std_memory, pmr_resources_are_equal_where_one_may_free_for_the_other) {
  pmr_resource a(*host), b(*host), c(*host, legacy_stream);
  EXPECT_TRUE(a.is_equal(b));
  EXPECT_FALSE(a.is_equal(c));
  EXPECT_FALSE(a.is_equal(*std::pmr::new_delete_resource()));
  void* const one = a.allocate(0, 1);  // std::pmr wants an address even for nothing
  EXPECT_NE(one, nullptr);
  b.deallocate(one, 0, 1);
}

TEST_F(std_memory, memory_that_the_cpu_cannot_reach_is_refused) {
  for (const auto& make : {std::function<void()>([&] { pmr_resource refused(*device); }),
                           std::function<void()>([&] { std_allocator<int> refused(*device); })}) {
    try {
      make();
      FAIL() << "device memory was taken";
    } catch (const memory_error& why) {
      EXPECT_EQ(why.code(), error_code::wrong_kind);
      EXPECT_NE(std::string(why.what()).find("device"), std::string::npos);
    }
  }
}

TEST_F(std_memory, containers_take_their_source_along) {
  using allocator = std_allocator<double>;
  pool_options options;
  options.kind = memory_kind::managed;
  const auto managed = pool::create(gpu, options).value();
  {
    std::vector<double, allocator> a(1000, 1.0, allocator(*host));
    std::vector<double, allocator> b(1000, 2.0, allocator(*managed));
    std::swap(a, b);
    EXPECT_EQ(&a.get_allocator().resource(), managed.get());
    a = std::move(b);
    EXPECT_EQ(&a.get_allocator().resource(), host.get());
    EXPECT_EQ(a[5], 1.0);
  }
  EXPECT_EQ(managed->statistics().live_bytes, 0u);
  EXPECT_THROW(static_cast<void>(allocator(*host).allocate(~std::size_t{0} / 2)),
               std::bad_array_new_length);
  EXPECT_THROW(static_cast<void>(allocator(*host).allocate(std::size_t{1} << 50)), std::bad_alloc);
}

TEST_F(std_memory, a_unique_block_goes_back_on_its_stream) {
  stream_handle stream = nullptr;
  ASSERT_TRUE(gpu->stream_create(&stream).ok());
  float* first = nullptr;
  {
    const auto block = make_unique_block<float>(*device, 1000, stream);
    first = block.get();
    EXPECT_EQ(block.get_deleter().bytes(), 4000u);
    EXPECT_EQ(device->statistics().live_bytes, 4000u);
  }
  auto again = make_unique_block<float>(*device, 1000, stream);
  EXPECT_EQ(again.get(), first);
  auto moved = std::move(again);
  EXPECT_EQ(again, nullptr);
  moved.reset();
  EXPECT_EQ(make_unique_block<float>(*device, 0, stream), nullptr);
  EXPECT_THROW(static_cast<void>(make_unique_block<float>(*device, ~std::size_t{0}, stream)),
               std::bad_alloc);
}

TEST_F(std_memory, host_memory_for_a_capturing_stream_is_refused_and_the_capture_whole) {
  stream_handle stream = nullptr;
  ASSERT_TRUE(gpu->stream_create(&stream).ok());
  ASSERT_TRUE(gpu->capture_begin(stream, capture_mode::global).ok());
  pmr_resource memory(*host, stream);
  try {
    static_cast<void>(memory.allocate(1000));
    ADD_FAILURE() << "nobody can wait for the capture's work";
  } catch (const memory_error& why) {
    EXPECT_EQ(why.code(), error_code::not_permitted);
  }
  graph_handle graph = nullptr;
  EXPECT_TRUE(gpu->capture_end(stream, &graph).ok());
  EXPECT_TRUE(gpu->graph_destroy(graph).ok());
}

TEST_F(std_memory, host_memory_of_the_default_stream_leaves_captures_of_others_whole) {
  others_capture capture(*gpu, capture_mode::relaxed, per_thread_stream);
  pmr_resource memory(*host);
  EXPECT_THROW(static_cast<void>(memory.allocate(1000)), memory_error);
  EXPECT_TRUE(capture.end().ok());
  memory.deallocate(memory.allocate(1000), 1000);
}

TEST_F(std_memory, host_memory_is_given_out_when_the_stream_is_done_with_it) {
  stream_handle stream = nullptr;
  ASSERT_TRUE(gpu->stream_create(&stream).ok());
  const std_allocator<char> memory(*host, stream);
  std_allocator<char> first(memory);
  char* const a = first.allocate(1 << 20);
  kernel_description kernel;
  kernel.name = "reads the staging buffer";
  kernel.duration_ns = 1'000'000;
  kernel.accesses.push_back({reinterpret_cast<device_address>(a), 1 << 20, access_kind::read});
  ASSERT_TRUE(gpu->launch(std::move(kernel), stream).ok());
  const auto before = gpu->now_ns();
  first.deallocate(a, 1 << 20);
  char* const b = first.allocate(1 << 20);
  EXPECT_EQ(b, a);
  EXPECT_GE(gpu->now_ns(), before + 900'000);  // it waited: the CPU may write now
  first.deallocate(b, 1 << 20);
}

}  // namespace
}  // namespace millpond
