// buffer<T>: memory that ends with its owner, moves on its stream, and stays as it was after an
// error.
#include "millpond/memory/buffer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>

#include "millpond/memory/adaptors.hpp"
#include "millpond/memory/kinds.hpp"
#include "support/bare_driver.hpp"

namespace millpond {
namespace {

using testing::bare_driver;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

static_assert(!std::is_copy_constructible_v<buffer<int>>);
static_assert(std::is_nothrow_move_constructible_v<buffer<int>>);
static_assert(std::is_nothrow_move_assignable_v<buffer<int>>);
static_assert(std::is_nothrow_swappable_v<buffer<int>>);

struct buffers : ::testing::Test {
  std::shared_ptr<bare_driver> gpu = std::make_shared<bare_driver>();
  pinned_resource pinned{gpu};
  device_resource device{gpu};
  stream_handle stream = reinterpret_cast<stream_handle>(std::uintptr_t{0x1000});
};

TEST_F(buffers, own_their_memory_and_give_it_back) {
  {
    buffer<int> numbers(1000, pinned, stream);
    EXPECT_EQ(numbers.size(), 1000u);
    EXPECT_EQ(numbers.size_bytes(), 4000u);
    EXPECT_EQ(numbers.address() % default_alignment, 0u);
    EXPECT_EQ(pinned.usage().live_bytes, 4000u);
    EXPECT_EQ(&numbers.resource(), &pinned);
    EXPECT_EQ(numbers.stream(), stream);
  }
  EXPECT_EQ(pinned.usage().live_blocks, 0u);
  EXPECT_EQ(pinned.deallocation_errors(), 0u);
}

TEST_F(buffers, of_no_elements_hold_no_memory) {
  buffer<int> none(0, pinned, stream);
  buffer<int> empty(pinned, stream);
  EXPECT_EQ(none.data(), nullptr);
  EXPECT_TRUE(empty.host_span().empty());
  empty.shrink_to_fit();
  EXPECT_EQ(pinned.usage().allocations, 0u);
}

TEST_F(buffers, move_and_swap_without_touching_memory) {
  buffer<int> a(10, pinned, stream);
  int* const data = a.data();
  buffer<int> b(std::move(a));
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(a.data(),
            nullptr);  // NOLINT(bugprone-use-after-move): what a moved-from buffer is, is the test
  EXPECT_EQ(a.size(), 0u);
  buffer<int> c(20, pinned, stream);
  swap(b, c);
  EXPECT_EQ(c.data(), data);
  b = std::move(c);
  EXPECT_EQ(b.data(), data);
  buffer<int>& same = b;  // by another name, so that no compiler warns of it
  b = std::move(same);
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(pinned.usage().live_blocks, 1u);
}

TEST_F(buffers, resize_keeps_the_elements_and_the_capacity) {
  buffer<std::uint32_t> numbers(100, pinned, stream);
  std::iota(numbers.host_span().begin(), numbers.host_span().end(), 0u);
  numbers.resize(5000);
  for (std::uint32_t i = 0; i < 100; ++i) ASSERT_EQ(numbers.host_span()[i], i);
  const auto* const data = numbers.data();
  numbers.resize(3);
  numbers.reserve(4000);
  EXPECT_EQ(numbers.data(), data);
  EXPECT_EQ(numbers.capacity(), 5000u);
  numbers.shrink_to_fit();
  EXPECT_EQ(numbers.capacity(), 3u);
  EXPECT_THAT(numbers.host_span(), ElementsAre(0, 1, 2));
  EXPECT_EQ(pinned.usage().live_bytes, 12u);
  numbers.resize(0);
  numbers.shrink_to_fit();
  EXPECT_EQ(pinned.usage().live_blocks, 0u);
}

TEST_F(buffers, grow_by_a_copy_on_their_stream_before_the_old_memory_goes) {
  buffer<int> numbers(10, device, stream);
  gpu->log.clear();
  numbers.resize(20);
  std::erase(gpu->log, "cuThreadExchangeStreamCaptureMode");
  EXPECT_THAT(gpu->log, ElementsAre("cuMemAlloc", "cuMemcpyAsync", "cuMemFree"));
}

TEST_F(buffers, are_as_they_were_after_an_error) {
  limit_resource limited(pinned, 1000);
  buffer<char> text(600, limited, stream);
  char* const data = text.data();
  EXPECT_THROW(text.resize(700), out_of_memory);
  EXPECT_EQ(text.data(), data);
  EXPECT_EQ(text.size(), 600u);
  limited.set_limit_bytes(10000);
  gpu->fail_call(4, driver_status::invalid_value);  // exchange, allocate, exchange, copy
  EXPECT_THROW(text.resize(700), memory_error);
  EXPECT_EQ(gpu->failed_call(), "cuMemcpyAsync");
  EXPECT_EQ(text.data(), data);
  EXPECT_EQ(limited.live_bytes(), 600u);
  const auto refused = buffer<char>::create(20000, limited, stream);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, error_code::out_of_memory);
}

TEST_F(buffers, a_count_whose_bytes_do_not_fit_is_out_of_memory) {
  EXPECT_THROW(buffer<double>(std::numeric_limits<std::size_t>::max() / 4, pinned, stream),
               out_of_memory);
}

TEST_F(buffers, release_hands_the_memory_over) {
  buffer<int> numbers(10, pinned, stream);
  int* const data = numbers.release();
  EXPECT_TRUE(numbers.empty());
  EXPECT_EQ(pinned.usage().live_blocks, 1u);
  pinned.deallocate(data, 40, stream);
}

TEST_F(buffers, memory_that_the_cpu_cannot_reach_has_no_host_span) {
  buffer<int> numbers(10, device, stream);
  EXPECT_THROW(static_cast<void>(numbers.host_span()), memory_error);
  const buffer<int>& fixed = numbers;
  EXPECT_THROW(static_cast<void>(fixed.host_span()), memory_error);
}

TEST_F(buffers, without_a_driver_the_cpu_copies) {
  pageable_resource memory(nullptr);
  buffer<int> numbers(2, memory, nullptr);
  numbers.host_span()[0] = 5;
  numbers.host_span()[1] = 6;
  numbers.resize(1000);
  EXPECT_EQ(numbers.host_span()[0], 5);
  EXPECT_EQ(numbers.host_span()[1], 6);
}

TEST_F(buffers, go_back_on_the_stream_they_belong_to) {
  const stream_handle other = reinterpret_cast<stream_handle>(std::uintptr_t{0x2000});
  buffer<int> numbers(10, pinned, stream);
  numbers.set_stream(other);
  EXPECT_EQ(numbers.stream(), other);
}

TEST_F(buffers, name_the_place_they_were_made_at) {
  const int line = __LINE__ + 1;
  buffer<int> numbers(10, pinned, stream);
  EXPECT_EQ(pinned.live_blocks().at(0).allocated.where.line(), static_cast<unsigned>(line));
  void* const data = numbers.data();
  numbers.reset();
  EXPECT_THAT(pinned.try_deallocate(data, 0, stream).error().message,
              HasSubstr("at the end of a buffer made at (buffer_test.cpp:" + std::to_string(line)));
}

TEST_F(buffers, elements_may_ask_for_more_alignment) {
  struct alignas(4096) page {
    char bytes[4096];
  };
  buffer<page> pages(2, pinned, stream);
  EXPECT_EQ(pages.address() % 4096, 0u);
}

}  // namespace
}  // namespace millpond
