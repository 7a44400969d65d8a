// Host memory runs out at each place of each call, one after the other: an allocation is refused
// and leaves everything as it was, a free is done all the same, and nothing ends the program.
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "support/failing_new.hpp"
#include "support/pool_fixture.hpp"
#include "support/sparing_driver.hpp"

namespace millpond {
namespace {

struct pool_host_memory : pool_test {
  void SetUp() override {
#if defined(MILLPOND_AUDIT)
    GTEST_SKIP() << "the audit's own walks take host memory in the middle of each change";
#endif
  }
  void begin(pool_options options = {}) {
    make(steady());
    add_pool(std::move(options), std::make_shared<sparing_driver>(gpu));
    s = stream();
  }
  struct books {
    std::uint64_t live_blocks, live_bytes, captures, graph_arenas;
    bool operator==(const books&) const = default;
  };
  [[nodiscard]] books read() const {
    const pool_statistics n = now();
    return {n.live_blocks, n.live_bytes, n.captures, n.graph_arenas};
  }
  // The call is refused for want of host memory until it has all of it; each refusal leaves the
  // books as they were. Answers how often it was refused.
  std::uint64_t refused_until_served(const std::function<result<void>()>& call) {
    std::uint64_t refusals = 0;
    for (const auto those : {failing_new::which::one, failing_new::which::all_from_there}) {
      const books before = read();
      bool served = false;
      error why;
      refusals += fail_each_in_turn(
          [&] {
            try {
              const auto answer = call();
              served = answer.has_value();
              if (!served) {
                const failing_new::pause words;
                why = answer.error();
              }
              return served;
            } catch (const std::bad_alloc&) {
              return false;
            }
          },
          [&] {
            EXPECT_EQ(why.code, error_code::out_of_memory) << why.message;
            EXPECT_EQ(read(), before);
            p->check();
          },
          those);
      EXPECT_TRUE(served);
    }
    return refusals;
  }
  // Freed although there is no host memory at all; `more`: what else must then have happened.
  void freed_without(void* block, std::uint64_t bytes, stream_handle on) {
    const std::uint64_t live = now().live_blocks;
    bool freed = false;
    {
      const failing_new none(0, failing_new::which::all_from_there);
      freed = p->try_deallocate(block, bytes, on).has_value();
    }
    EXPECT_TRUE(freed);
    EXPECT_EQ(now().live_blocks, live - 1);
    p->check();
  }
  // Each of what was served, by refused_until_served twice.
  std::vector<void*> taken;
  result<void> allocate(std::uint64_t bytes, stream_handle on) {
    const auto got = p->try_allocate(bytes, default_alignment, on);
    if (!got) return got.error();
    const failing_new::pause mine;
    taken.push_back(*got);
    return {};
  }
  void free_all(std::uint64_t bytes, stream_handle on) {
    for (void* const block : taken) freed_without(block, bytes, on);
    taken.clear();
  }

  stream_handle s = nullptr;
};

TEST_F(pool_host_memory, allocations_of_every_size_are_refused_or_served) {
  begin();
  std::uint64_t refusals = 0;
  for (const std::uint64_t bytes : {std::uint64_t{512}, 40 * KiB, 300 * KiB, 3 * MiB, 64 * MiB}) {
    refusals += refused_until_served([&] { return allocate(bytes, s); });
    free_all(bytes, s);
  }
  EXPECT_GT(refusals, 0u);
  expect_all_back();
}

TEST_F(pool_host_memory, the_first_call_on_each_of_many_streams_is_refused_or_served) {
  begin();
  std::uint64_t refusals = 0;
  for (int i = 0; i < 20; ++i) {
    const stream_handle each = stream();
    refusals += refused_until_served([&] { return allocate(MiB, each); });
    free_all(MiB, each);
  }
  EXPECT_GT(refusals, 0u);
  expect_all_back();
}

TEST_F(pool_host_memory, a_free_needs_none_on_whichever_stream) {
  begin();
  for (const std::uint64_t bytes : {std::uint64_t{512}, 300 * KiB, 64 * MiB}) {
    std::vector<void*> blocks;
    for (int i = 0; i < 40; ++i) blocks.push_back(p->allocate(bytes, s));
    for (std::size_t i = 0; i < blocks.size(); ++i)
      freed_without(blocks[i], bytes,
                    i % 2 == 0 ? s : stream());  // also one that the pool never met
  }
  expect_all_back();
}

TEST_F(pool_host_memory, a_reported_use_is_refused_or_waited_for) {
  begin();
  const stream_handle other = stream();
  for (int i = 0; i < 3; ++i) {
    void* const block = p->allocate(3 * MiB, s);
    refused_until_served([&] { return p->record_use(block, other); });
    freed_without(block, 3 * MiB, s);
  }
  expect_all_back();
}

TEST_F(pool_host_memory, a_tag_is_refused_or_set) {
  begin();
  void* const block = p->allocate(3 * MiB, s);
  refused_until_served(
      [&] { return p->set_tag(block, "a tag that is longer than any short one"); });
  freed_without(block, 3 * MiB, s);
  expect_all_back();
}

TEST_F(pool_host_memory, a_captures_blocks_are_refused_or_served_and_freed) {
  begin();
  ok(gpu->capture_begin(s, capture_mode::relaxed));
  ASSERT_NE(p->allocate(MiB, s), nullptr);  // the capture is known
  for (const std::uint64_t bytes : {std::uint64_t{512}, 3 * MiB, 64 * MiB}) {
    refused_until_served([&] { return allocate(bytes, s); });
    free_all(bytes, s);
  }
  graph_handle graph = nullptr;
  ok(gpu->capture_end(s, &graph));
  {
    const failing_new none(0, failing_new::which::all_from_there);
    const failing_new::pause driver;
    ok(gpu->graph_destroy(graph));
  }
  expect_all_back();
}

TEST_F(pool_host_memory, a_capture_begins_to_allocate_whole_or_not_at_all) {
  begin();
  for (int i = 0; i < 3; ++i) {
    ok(gpu->capture_begin(s, capture_mode::relaxed));
    std::uint64_t number = 0;
    for (bool served = false; !served; ++number) {
      const books before = read();
      {
        const failing_new failing(number);
        try {
          served = p->try_allocate(3 * MiB, default_alignment, s).has_value();
        } catch (const std::bad_alloc&) {
        }
      }
      if (!served) {
        EXPECT_EQ(read().live_blocks, before.live_blocks);
      }
      p->check();
    }
    graph_handle graph = nullptr;
    ok(gpu->capture_end(s, &graph));
    ok(gpu->graph_destroy(graph));
    gpu->advance(10 * millisecond);
    trim();
    EXPECT_EQ(now().captures, 0u);
  }
  expect_all_back();
}

TEST_F(pool_host_memory, a_trim_without_any_loses_nothing) {
  begin();
  const stream_handle other = stream();
  for (int i = 0; i < 20; ++i) {
    p->deallocate(p->allocate(3 * MiB, s), 3 * MiB, s);
    p->deallocate(p->allocate(5 * MiB, other), 5 * MiB, other);
  }
  for (std::uint64_t number = 0; number < 40; ++number) {
    {
      const failing_new failing(number, failing_new::which::all_from_there);
      try {
        static_cast<void>(p->trim(0));
      } catch (const std::bad_alloc&) {
      }
    }
    p->check();
    p->deallocate(p->allocate(3 * MiB, s), 3 * MiB, s);
  }
  expect_all_back();
}

}  // namespace
}  // namespace millpond
