// Which freed block may serve which stream, and when.
#include <array>

#include "support/pool_fixture.hpp"

namespace millpond {
namespace {

class pool_order : public pool_test {};

TEST_F(pool_order, the_same_stream_gets_its_block_back_at_once) {
  start();
  const stream_handle a = stream();
  for (const std::uint64_t bytes : {std::uint64_t{1}, 4 * KiB, 256 * KiB, 3 * MiB, 70 * MiB}) {
    void* const first = take(bytes, a);
    work(first, a, 10 * millisecond);
    const std::uint64_t reserved = now().reserved_bytes;
    give(first, a);
    void* const second = take(bytes, a);
    // Its cache gives the block itself back. What is too large for a cache lies in one piece with
    // its neighbours by then.
    if (bytes <= 4 * MiB) {
      EXPECT_EQ(first, second) << bytes;
    }
    EXPECT_EQ(now().reserved_bytes, reserved) << bytes;
    give(second, a);
  }
  EXPECT_EQ(now().host_waits, 0u);
}

TEST_F(pool_order, another_stream_gets_a_block_only_after_its_fence_has_passed) {
  start();
  const stream_handle a = stream(), b = stream();
  void* const keep = take(64 * MiB, b);
  void* const first = take(64 * MiB, a);
  work(first, a, 10 * millisecond);
  give(first, a);
  void* const second = take(64 * MiB, b);
  EXPECT_NE(first, second) << "the kernel on a still runs";
  gpu->advance(20 * millisecond);
  // The frees of a are sealed when a itself next calls; what matters is that nothing waits and no
  // rule breaks.
  give(take(512, a), a);
  void* const third = take(64 * MiB, b);
  EXPECT_NE(third, nullptr);
  give(second, b);
  give(third, b);
  give(keep, b);
  EXPECT_EQ(now().host_waits, 0u);
}

TEST_F(pool_order, a_passed_fence_lets_another_stream_reuse_instead_of_growing) {
  start();
  const stream_handle a = stream(), b = stream();
  give(take(1 * MiB, b), b);
  std::array<void*, 8> blocks{};
  for (void*& block : blocks) block = take(16 * MiB, a);
  for (void* block : blocks) {
    work(block, a, 1 * millisecond);
    give(block, a);
  }
  gpu->advance(100 * millisecond);
  const std::uint64_t before = now().reserved_bytes;
  for (void*& block : blocks) block = take(16 * MiB, b);
  EXPECT_LE(now().reserved_bytes, before + 48 * MiB);
  for (void* block : blocks) give(block, b);
}

TEST_F(pool_order, with_the_policy_same_stream_a_passed_fence_changes_nothing_before_pressure) {
  pool_options options;
  options.reuse = reuse_policy::same_stream;
  start(options);
  const stream_handle a = stream(), b = stream();
  give(take(1 * MiB, b), b);
  void* const first = take(100 * MiB, a);
  give(first, a);
  gpu->advance(10 * millisecond);
  void* const second = take(100 * MiB, b);
  EXPECT_NE(first, second);
  void* const again = take(100 * MiB, a);
  EXPECT_EQ(first, again);
  give(again, a);
  give(second, b);
}

TEST_F(pool_order,
       with_the_policy_may_wait_the_stream_waits_on_the_gpu_instead_of_growing_past_the_slack) {
  pool_options options;
  options.reuse = reuse_policy::may_wait;
  start(options);
  const stream_handle a = stream(), b = stream();
  give(take(1 * MiB, b), b);
  void* const first = take(512 * MiB, a);
  work(first, a, 50 * millisecond);
  give(first, a);
  void* const small = take(1 * MiB, a);  // a calls again: its frees may be sealed
  void* second = take(512 * MiB, b);
  give(small, a);
  work(second, b, 1 * millisecond, 512 * MiB);
  give(second, b);
  // Whichever way was taken, the host never waited.
  EXPECT_EQ(now().host_waits, 0u);
  EXPECT_LT(gpu->now_ns(), 50 * millisecond);
}

TEST_F(pool_order, a_free_on_another_stream_counts_from_that_stream) {
  start();
  const stream_handle a = stream(), b = stream();
  void* const block = take(8 * MiB, a);
  event_handle e = event();
  work(block, a, 1 * millisecond);
  ok(gpu->event_record(e, a));
  ok(gpu->stream_wait_event(b, e));
  work(block, b, 5 * millisecond);
  give(block, b);
  void* const again = take(8 * MiB, b);
  EXPECT_EQ(again, block);
  void* const other = take(8 * MiB, a);
  EXPECT_NE(other, block);
  give(again, b);
  give(other, a);
}

TEST_F(pool_order, a_recorded_use_holds_a_block_back_even_from_its_own_stream) {
  start();
  const stream_handle a = stream(), b = stream();
  void* const block = take(4 * MiB, a);
  use(block, b);
  work(block, b, 10 * millisecond);
  give(block, a);
  void* const second = take(4 * MiB, a);
  EXPECT_NE(second, block);
  EXPECT_GE(now().pending_bytes, 4 * MiB);
  gpu->advance(20 * millisecond);
  give(second, a);
  void* blocks[4] = {};
  for (void*& x : blocks) x = take(4 * MiB, a);
  for (void* x : blocks) give(x, a);
}

TEST_F(pool_order,
       a_recorded_use_covers_work_put_on_the_stream_after_the_call_and_before_the_free) {
  start();
  const stream_handle a = stream(), b = stream();
  void* const block = take(4 * KiB, a);
  use(block, b);
  ok(gpu->spin(1 * millisecond, b));
  work(block, b, 30 * millisecond);
  give(block, a);
  for (int round = 0; round < 20; ++round) {
    void* const other = take(4 * KiB, a);
    EXPECT_NE(other, block);
    give(other, a);
    gpu->advance(1 * millisecond);
  }
  gpu->advance(40 * millisecond);
}

TEST_F(pool_order, a_recorded_use_on_many_streams_waits_for_the_last) {
  start();
  const stream_handle a = stream();
  std::vector<stream_handle> others;
  for (int i = 0; i < 20; ++i) others.push_back(stream());
  void* const block = take(2 * MiB, a);
  for (std::size_t i = 0; i < others.size(); ++i) {
    use(block, others[i]);
    use(block, others[i]);
    work(block, others[i], (i == 7 ? 50 : 1) * millisecond);
  }
  give(block, a);
  gpu->advance(20 * millisecond);
  void* const second = take(2 * MiB, a);
  EXPECT_NE(second, block);
  give(second, a);
  gpu->advance(60 * millisecond);
}

// A handle is not a stream: the one that used the block is gone, its work is not, and its handle is
// another's.
TEST_F(pool_order, a_recorded_use_follows_the_stream_and_not_its_handle) {
  start();
  const stream_handle a = stream();
  stream_handle b = nullptr;
  ok(gpu->stream_create(&b));
  void* const block = take(4 * MiB, a);
  use(block, b);
  work(block, b, 100 * millisecond);
  ok(gpu->stream_destroy(b));
  stream_handle c = nullptr;
  ok(gpu->stream_create(&c));
  ASSERT_EQ(b, c) << "the simulator gives handles back, as the driver does";
  give(block, a);
  std::vector<void*> others;
  for (int i = 0; i < 16; ++i) {
    others.push_back(take(4 * MiB, a));
    EXPECT_NE(others.back(), block);
  }
  for (void* x : others) give(x, a);
  ok(gpu->stream_destroy(c));
}

TEST_F(pool_order, a_recorded_use_on_a_destroyed_stream_still_holds_the_block) {
  start();
  const stream_handle a = stream();
  stream_handle b = nullptr;
  ok(gpu->stream_create(&b));
  void* const block = take(4 * MiB, a);
  use(block, b);
  work(block, b, 100 * millisecond);
  ok(gpu->stream_destroy(b));
  give(block, a);
  void* const other = take(4 * MiB, a);
  EXPECT_NE(other, block);
  give(other, a);
  gpu->advance(200 * millisecond);
  trim();
  EXPECT_EQ(now().reserved_bytes, 0u)
      << "the fence over the whole context covers the destroyed stream";
}

// Per-thread streams: one handle, another stream on each thread.
TEST_F(pool_order, a_recorded_use_on_a_per_thread_stream_means_the_thread_that_reported_it) {
  start();
  const stream_handle a = stream();
  simulated_gpu::set_thread(1);
  void* const block = take(4 * MiB, a);
  simulated_gpu::set_thread(2);
  use(block, per_thread_stream);
  work(block, per_thread_stream, 100 * millisecond);
  simulated_gpu::set_thread(1);
  give(block, a);
  std::vector<void*> others;
  for (int i = 0; i < 16; ++i) others.push_back(take(4 * MiB, a));
  for (void* x : others) {
    EXPECT_NE(x, block);
    give(x, a);
  }
}

TEST_F(pool_order, per_thread_streams_of_two_threads_are_two_streams) {
  start();
  simulated_gpu::set_thread(1);
  void* const one = take(8 * MiB, per_thread_stream);
  work(one, per_thread_stream, 20 * millisecond);
  give(one, per_thread_stream);
  simulated_gpu::set_thread(2);
  void* const two = take(8 * MiB, per_thread_stream);
  EXPECT_NE(one, two);
  give(two, per_thread_stream);
  simulated_gpu::set_thread(1);
  void* const again = take(8 * MiB, per_thread_stream);
  EXPECT_EQ(again, one);
  give(again, per_thread_stream);
}

TEST_F(pool_order, the_null_and_the_legacy_stream_are_one_stream) {
  start();
  void* const one = take(8 * MiB, nullptr);
  work(one, nullptr, 20 * millisecond);
  give(one, nullptr);
  std::uint64_t null_id = 0, legacy_id = 0;
  ok(gpu->stream_id(nullptr, &null_id));
  ok(gpu->stream_id(legacy_stream, &legacy_id));
  void* const two = take(8 * MiB, legacy_stream);
  if (null_id != legacy_id) {
    EXPECT_NE(one, two);
  }
  give(two, legacy_stream);
}

TEST_F(pool_order, a_destroyed_streams_pending_frees_never_serve_its_handles_next_owner_early) {
  start();
  const stream_handle other = stream();
  give(take(512, other), other);
  for (const std::uint64_t bytes : {4 * KiB, 300 * KiB, 8 * MiB, 100 * MiB}) {
    stream_handle a = nullptr;
    ok(gpu->stream_create(&a));
    void* const first = take(bytes, a);
    work(first, a, 50 * millisecond);
    give(first, a);
    ok(gpu->stream_destroy(a));
    stream_handle b = nullptr;
    ok(gpu->stream_create(&b));
    ASSERT_EQ(a, b);
    void* const second = take(bytes, b);
    EXPECT_NE(second, first) << bytes;
    work(second, b, 1 * millisecond);
    give(second, b);
    ok(gpu->stream_destroy(b));
  }
}

// The thread's cache is found by the handle, before anyone asks whose it is now.
TEST_F(pool_order, frees_on_a_reused_handle_are_ordered_behind_the_new_streams_work) {
  start();
  const stream_handle other = stream();
  give(take(512, other), other);
  stream_handle a = nullptr;
  ok(gpu->stream_create(&a));
  std::vector<void*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(take(8 * MiB, a));
  give(blocks.back(), a);
  blocks.pop_back();
  ok(gpu->stream_destroy(a));
  stream_handle b = nullptr;
  ok(gpu->stream_create(&b));
  ASSERT_EQ(a, b);
  for (void* x : blocks) {
    work(x, b, 20 * millisecond);
    give(x, b);  // no allocation on b before: the cache is still the old stream's
  }
  for (int round = 0; round < 10; ++round) {
    std::vector<void*> taken;
    for (int i = 0; i < 6; ++i) taken.push_back(take(8 * MiB, round % 2 == 0 ? other : b));
    for (void* x : taken) give(x, round % 2 == 0 ? other : b);
    gpu->advance(3 * millisecond);
  }
  trim();
  ok(gpu->stream_destroy(b));
}

TEST_F(pool_order, alignment_is_honoured_up_to_two_mebibytes) {
  for (const memory_kind kind : {memory_kind::device, memory_kind::pinned, memory_kind::managed}) {
    pool_options options;
    options.kind = kind;
    start(options);
    const stream_handle a = stream();
    std::vector<void*> all;
    for (std::uint64_t alignment = 1; alignment <= max_alignment; alignment *= 2) {
      for (const std::uint64_t bytes : {std::uint64_t{1}, 3 * KiB, 300 * KiB, 5 * MiB}) {
        void* const block = take(bytes, a, alignment);
        ASSERT_NE(block, nullptr) << refusal.message;
        const auto at = reinterpret_cast<std::uintptr_t>(block);
        EXPECT_EQ(at % std::max<std::uint64_t>(alignment, 512), 0u) << alignment;
        work(block, a, 0, bytes);
        all.push_back(block);
      }
    }
    for (void* x : all) give(x, a);
    trim();
    EXPECT_EQ(now().live_bytes, 0u);
    end_pool();
  }
}

TEST_F(pool_order, zero_bytes_and_nullptr_are_legal_and_ask_nobody) {
  start();
  const stream_handle a = stream();
  const std::uint64_t before = gpu->total_calls();
  EXPECT_EQ(take(0, a), nullptr);
  give(nullptr, a);
  p->deallocate(nullptr, 100, a);
  EXPECT_TRUE(p->record_use(nullptr, a).has_value());
  EXPECT_EQ(gpu->total_calls(), before);
  auto cache = p->cache(a);
  EXPECT_EQ(cache.allocate(0), nullptr);
  cache.deallocate(nullptr, 0);
  EXPECT_EQ(now().allocations, 0u);
}

TEST_F(pool_order, a_cache_handle_and_the_plain_calls_share_blocks_of_their_stream) {
  start();
  const stream_handle a = stream(), b = stream();
  auto cache = p->cache(a);
  EXPECT_EQ(cache.stream(), a);
  void* const one = cache.allocate(4 * KiB);
  p->deallocate(one, 4 * KiB, a);
  void* const two = p->allocate(4 * KiB, a);
  cache.deallocate(two, 4 * KiB);
  auto of_b = p->cache(b);
  void* const three = cache.allocate(4 * KiB);
  of_b.deallocate(three, 4 * KiB);  // freed on b
  EXPECT_EQ(of_b.allocate(4 * KiB), three);
  of_b.deallocate(three, 0);
  auto moved = std::move(cache);
  void* const four = moved.allocate(100 * MiB);
  moved.deallocate(four, 100 * MiB);
  of_b = std::move(moved);
  EXPECT_EQ(of_b.stream(), a);
  EXPECT_EQ(now().live_blocks, 0u);
}

TEST_F(pool_order, find_answers_the_block_that_an_address_lies_in) {
  start();
  const stream_handle a = stream();
  void* const block = take(5000, a);
  const auto inside = p->find(static_cast<char*>(block) + 4999);
  ASSERT_TRUE(inside.has_value());
  EXPECT_EQ(inside->start, block);
  EXPECT_GE(inside->bytes, 5000u);
  give(block, a);
  EXPECT_FALSE(p->find(block).has_value());
  int local = 0;
  EXPECT_FALSE(p->find(&local).has_value());
}

}  // namespace
}  // namespace millpond
