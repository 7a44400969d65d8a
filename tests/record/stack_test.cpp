// Call stacks: numbered once, walked by rules, and each thread's block handed on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ucontext.h>

#include <iterator>
#include <map>
#include <span>
#include <thread>
#include <vector>

#include "record/lines.hpp"
#include "record/stacks.hpp"
#include "record/symbols.hpp"
#include "record/thread_blocks.hpp"

namespace millpond::record {
namespace {

__attribute__((noinline)) std::uint32_t capture_here(stack_store& store) {
  return store.capture(8);
}

TEST(stack_test, one_place_is_one_number_and_is_unwound_once) {
  stack_store store;
  std::vector<std::uint32_t> ids(100);
  for (std::uint32_t& each : ids) {
    each = capture_here(store);
    asm volatile("" ::: "memory");
  }
  const std::uint32_t first = ids[50], other = capture_here(store);
  // A compiler may have made two places of the loop's one: all but its ends are the same.
  for (std::size_t n = 2; n < 98; ++n) EXPECT_EQ(ids[n], first);
  EXPECT_NE(first, 0u);
  EXPECT_NE(other, first) << "another line of the same function";
  EXPECT_LE(store.unwound(), 4u);
  std::size_t frames = 0;
  store.take_new(
      [&](std::uint32_t, std::span<const std::uintptr_t> stack) { frames = stack.size(); });
  EXPECT_GE(frames, 3u);
}

// The same stack by the rules and by the compiler's runtime.
struct both_ways {
  stack_store by_rules{stack_store::unwinding::by_rules},
      by_runtime{stack_store::unwinding::by_runtime};
  std::size_t compared = 0;

  std::map<std::uint32_t, std::vector<std::uintptr_t>> rule_stacks, runtime_stacks;
  static const std::vector<std::uintptr_t>& numbered(
      stack_store& store, std::map<std::uint32_t, std::vector<std::uintptr_t>>& all,
      std::uint32_t id) {
    store.take_new([&](std::uint32_t each, std::span<const std::uintptr_t> stack) {
      all[each].assign(stack.begin(), stack.end());
    });
    return all[id];
  }
  __attribute__((noinline)) void compare() {
    const std::uint32_t first = by_rules.capture(stack_store::most_frames),
                        second = by_runtime.capture(stack_store::most_frames);
    const auto& one = numbered(by_rules, rule_stacks, first);
    const auto& other = numbered(by_runtime, runtime_stacks, second);
    ASSERT_FALSE(one.empty());
    ASSERT_EQ(one.size(), other.size());
    // The two calls above are two places of this function.
    EXPECT_TRUE(std::equal(one.begin() + 1, one.end(), other.begin() + 1));
    EXPECT_EQ(by_rules.unwound_by_runtime(), 0u);
    ++compared;
  }
};

__attribute__((noinline)) void through_recursion(both_ways& to, int depth) {
  if (depth == 0) return to.compare();
  through_recursion(to, depth - 1);
  asm volatile("" ::: "memory");
}
__attribute__((noinline)) void through_a_frame_of_any_size(both_ways& to, std::size_t bytes) {
  volatile char* room = static_cast<volatile char*>(__builtin_alloca(bytes));
  room[0] = 1;
  to.compare();
  room[bytes - 1] = 1;
}
__attribute__((noinline)) void through_an_aligned_frame(both_ways& to) {
  alignas(256) volatile char room[512];
  room[0] = 1;
  to.compare();
  room[1] = room[0];
}
#if defined(__x86_64__)
__attribute__((noinline,
               optimize("no-omit-frame-pointer"))) void through_a_frame_pointer(both_ways& to) {
  to.compare();
  asm volatile("" ::: "memory");
}

TEST(stack_test, rules_walk_to_the_same_frames_as_the_compilers_runtime) {
  both_ways to;
  to.compare();
  for (const int depth : {1, 5, 60}) through_recursion(to, depth);
  for (const std::size_t bytes : {64, 1000, 100'000}) through_a_frame_of_any_size(to, bytes);
  through_an_aligned_frame(to);
  through_a_frame_pointer(to);
  int order[] = {2, 1};
  static both_ways* current = nullptr;
  current = &to;
  std::qsort(order, 2, sizeof(int),
             [](const void*, const void*) {  // through the C library's frames
               current->compare();
               return 0;
             });
  std::thread([&] { to.compare(); }).join();  // to a thread's end
  try {
    throw 1;
  } catch (int) {
    to.compare();
  }
  EXPECT_GE(to.compared, 12u);
}
#endif

TEST(stack_test, a_stack_of_the_programs_own_making_is_left_to_the_runtime) {
  static stack_store store;
  static std::uint32_t id = 0;
  static ucontext_t outside, inside;
  std::vector<char> room(256 * 1024);
  ASSERT_EQ(getcontext(&inside), 0);
  inside.uc_stack.ss_sp = room.data();
  inside.uc_stack.ss_size = room.size();
  inside.uc_link = &outside;
  makecontext(&inside, [] { id = store.capture(16); }, 0);
  ASSERT_EQ(swapcontext(&outside, &inside), 0);
  EXPECT_NE(id, 0u);
  EXPECT_EQ(store.unwound_by_runtime(), 1u);
}

struct counted_block {
  static inline std::atomic<int> made{0};
  counted_block() { ++made; }
};
thread_local counted_block* counted_of_thread = nullptr;
counted_block*& counted_slot() noexcept {
  return counted_of_thread;
}

TEST(thread_blocks_test, a_thread_that_ends_leaves_its_block_to_the_next) {
  using blocks = thread_blocks<counted_block, counted_slot>;
  for (int n = 0; n < 50; ++n) {
    std::thread([] {
      counted_block* const first = blocks::mine();
      ASSERT_NE(first, nullptr);
      EXPECT_EQ(blocks::mine(), first);
    }).join();
  }
  EXPECT_EQ(counted_block::made, 1);
  std::thread other([] { blocks::mine(); });
  EXPECT_NE(blocks::mine(), nullptr);
  other.join();
  EXPECT_LE(counted_block::made, 2);
}

TEST(python_test, lines_of_instructions_are_read_from_the_table_of_locations) {
  // By hand, from line 10: two units on the line (short form), one on the next (one-line form),
  // three with no line, one 5 lines back (no columns), one 200 on (long form).
  const std::uint8_t table[] = {0x80 | 0 << 3 | 1,
                                0x00,
                                0x80 | 11 << 3,
                                1,
                                2,
                                0x80 | 15 << 3 | 2,
                                0x80 | 13 << 3,
                                11,
                                0x80 | 14 << 3,
                                0x40 | (400 & 0x3f),
                                400 >> 6,
                                0,
                                1,
                                1};
  const std::uint32_t expected[] = {10, 10, 11, 0, 0, 0, 6, 206, 0};
  for (std::uint64_t unit = 0; unit < std::size(expected); ++unit)
    EXPECT_EQ(line_of(table, 10, unit), expected[unit]) << unit;
  // Cut anywhere, it gives an answer and reads no further.
  for (std::size_t size = 0; size < std::size(table); ++size)
    EXPECT_TRUE(line_of(std::span(table).first(size), 10, 7) <= 206);
}

TEST(stack_test, cudas_own_frames_are_known_by_module_and_name) {
  EXPECT_TRUE(is_cuda_module("/usr/lib/x86_64-linux-gnu/libcuda.so.1"));
  EXPECT_TRUE(is_cuda_module("/x/libcupti.so.13"));
  EXPECT_FALSE(is_cuda_module("/x/libcudnn.so.9"));
  EXPECT_TRUE(is_cuda_symbol("cudaMalloc"));
  EXPECT_TRUE(is_cuda_symbol("cuMemAlloc_v2"));
  EXPECT_FALSE(is_cuda_symbol("cudart_of_mine"));
  EXPECT_FALSE(is_cuda_symbol("custom_allocator"));
}

}  // namespace
}  // namespace millpond::record
