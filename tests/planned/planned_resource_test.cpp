// The planned resource over host memory: what it serves, and that no deviation hands out bytes
// twice.
#include "millpond/planned/planned_resource.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "base/random.hpp"

namespace millpond {
namespace {

// malloc, counting.
class host_memory final : public memory_resource {
 public:
  [[nodiscard]] memory_kind kind() const noexcept override { return memory_kind::pageable; }
  [[nodiscard]] bool host_accessible() const noexcept override { return true; }
  [[nodiscard]] bool device_accessible() const noexcept override { return false; }
  std::uint64_t limit = UINT64_MAX;
  std::uint64_t calls = 0;
  std::uint64_t live = 0;

 private:
  result<void*> do_allocate(std::uint64_t bytes, std::uint64_t alignment, stream_handle) override {
    ++calls;
    if (bytes > limit) return error{error_code::out_of_memory, "past the test's limit"};
    ++live;
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  }
  result<void> do_deallocate(void* ptr, std::uint64_t, stream_handle) noexcept override {
    --live;
    std::free(ptr);
    return {};
  }
};

const auto stream_1 = reinterpret_cast<stream_handle>(std::uintptr_t{0x1000});
const auto stream_2 = reinterpret_cast<stream_handle>(std::uintptr_t{0x2000});

// An iteration of a model: each layer's output lives until the next layer has read it.
void run_layers(planned_stream per_stream, std::uint64_t batch, std::uint64_t layers) {
  void* input = per_stream.allocate(batch * 1000);
  std::uint64_t input_bytes = batch * 1000;
  for (std::uint64_t layer = 0; layer < layers; ++layer) {
    const std::uint64_t bytes = batch * (1000 + 300 * (layer % 3));
    void* output = per_stream.allocate(bytes);
    void* scratch = per_stream.allocate(batch * 5000);
    ASSERT_NE(output, scratch);
    per_stream.deallocate(scratch, batch * 5000);
    per_stream.deallocate(input, input_bytes);
    input = output;
    input_bytes = bytes;
  }
  per_stream.deallocate(input, input_bytes);
}

TEST(planned_resource, serves_every_block_of_a_repeated_iteration_without_the_upstream) {
  host_memory upstream;
  planned_resource memory(upstream);
  planned_stream per_stream = memory.on_stream(stream_1);
  for (int k = 0; k < 5; ++k) {
    per_stream.begin(8);
    run_layers(per_stream, 8, 20);
    per_stream.end();
  }
  const planned_counters counted = per_stream.counters();
  EXPECT_EQ(counted.iterations, 5u);
  EXPECT_EQ(counted.recorded, 1u);
  EXPECT_EQ(counted.served, 4u * 41);
  EXPECT_EQ(counted.deviations + counted.late_frees + counted.skipped, 0u);
  EXPECT_EQ(counted.planned_bytes, counted.lower_bound_bytes);
  EXPECT_EQ(counted.arena_bytes, counted.planned_bytes);
  EXPECT_EQ(upstream.calls, 41u + 1);
  EXPECT_EQ(upstream.live, 1u);
}

TEST(planned_resource, shapes_share_one_arena_as_large_as_the_largest) {
  host_memory upstream;
  {
    planned_resource memory(upstream);
    planned_stream per_stream = memory.on_stream(stream_1);
    for (int round = 0; round < 3; ++round)
      for (std::uint64_t batch = 1; batch <= 32; ++batch) {
        per_stream.begin(batch);
        run_layers(per_stream, batch, 10);
        per_stream.end();
      }
    const planned_counters counted = per_stream.counters();
    EXPECT_EQ(counted.recorded, 32u);
    EXPECT_EQ(counted.served, 64u * 21);
    EXPECT_EQ(counted.arena_bytes, counted.planned_bytes);
    EXPECT_EQ(upstream.live, 1u);
  }
  EXPECT_EQ(upstream.live, 0u);
}

TEST(planned_resource, another_size_goes_to_the_upstream_and_the_rest_stays_planned) {
  host_memory upstream;
  planned_resource memory(upstream);
  planned_stream per_stream = memory.on_stream(stream_1);
  const auto iteration = [&](std::uint64_t middle) {
    per_stream.begin(1);
    void* a = per_stream.allocate(1000);
    void* b = per_stream.allocate(middle);
    void* c = per_stream.allocate(3000);
    per_stream.deallocate(b, middle);
    per_stream.deallocate(a, 1000);
    per_stream.deallocate(c, 3000);
    per_stream.end();
  };
  iteration(2000);
  iteration(2000);
  iteration(7777);
  iteration(2000);
  const planned_counters counted = per_stream.counters();
  EXPECT_EQ(counted.deviations, 1u);
  EXPECT_EQ(counted.skipped, 1u);
  EXPECT_EQ(counted.served, 3u + 2 + 3);
  EXPECT_EQ(memory.deallocation_errors(), 0u);
}

TEST(planned_resource, a_block_freed_later_than_recorded_keeps_its_bytes) {
  host_memory upstream;
  planned_resource memory(upstream);
  planned_stream per_stream = memory.on_stream(stream_1);
  per_stream.begin(1);
  void* first = per_stream.allocate(4096);
  per_stream.deallocate(first, 4096);
  void* second = per_stream.allocate(4096);
  per_stream.deallocate(second, 4096);
  per_stream.end();
  per_stream.begin(1);
  first = per_stream.allocate(4096);
  second = per_stream.allocate(4096);  // first is still live, and the plan gives both one place
  EXPECT_NE(first, second);
  EXPECT_EQ(per_stream.counters().late_frees, 1u);
  per_stream.deallocate(second, 4096);
  per_stream.end();
  per_stream.begin(1);  // first outlived its iteration
  void* third = per_stream.allocate(4096);
  EXPECT_NE(first, third);
  per_stream.deallocate(third, 4096);
  per_stream.deallocate(first, 4096);
  void* fourth = per_stream.allocate(4096);
  EXPECT_EQ(fourth, first);
  per_stream.deallocate(fourth, 4096);
  per_stream.end();
  EXPECT_EQ(memory.deallocation_errors(), 0u);
}

TEST(planned_resource, relearns_a_shape_that_keeps_deviating) {
  host_memory upstream;
  planned_resource memory(upstream, {.relearn_after = 2});
  planned_stream per_stream = memory.on_stream(stream_1);
  const auto iteration = [&](std::uint64_t batch) {
    per_stream.begin(1);
    run_layers(per_stream, batch, 5);
    per_stream.end();
  };
  iteration(1);
  for (int k = 0; k < 4; ++k) iteration(3);
  EXPECT_EQ(per_stream.counters().recorded, 2u);
  EXPECT_EQ(per_stream.counters().served, 11u);
}

TEST(planned_resource, blocks_that_outlive_the_iteration_stay_with_the_upstream) {
  host_memory upstream;
  planned_resource memory(upstream);
  planned_stream per_stream = memory.on_stream(stream_1);
  std::vector<void*> kept;
  for (int k = 0; k < 3; ++k) {
    per_stream.begin(1);
    void* temporary = per_stream.allocate(1000);
    kept.push_back(per_stream.allocate(2000));
    per_stream.deallocate(temporary, 1000);
    per_stream.end();
  }
  EXPECT_EQ(per_stream.counters().served, 2u);
  EXPECT_EQ(per_stream.counters().deviations, 0u);
  for (void* ptr : kept) per_stream.deallocate(ptr, 2000);
  EXPECT_EQ(upstream.live, 1u);
}

TEST(planned_resource, a_shape_past_the_budget_stays_with_the_upstream) {
  host_memory upstream;
  planned_resource memory(upstream, {.budget_bytes = 100'000});
  planned_stream per_stream = memory.on_stream(stream_1);
  for (int k = 0; k < 2; ++k)
    for (const std::uint64_t batch : {1u, 100u}) {
      per_stream.begin(batch);
      run_layers(per_stream, batch, 3);
      per_stream.end();
    }
  EXPECT_EQ(per_stream.counters().over_budget, 1u);
  EXPECT_EQ(per_stream.counters().served, 7u);
  EXPECT_LE(memory.counters().arena_bytes, 100'000u);
}

TEST(planned_resource, an_arena_that_the_upstream_refuses_is_no_error) {
  host_memory upstream;
  planned_resource memory(upstream);
  planned_stream per_stream = memory.on_stream(stream_1);
  upstream.limit = 6000;  // enough for each block of the iteration, not for all of them
  per_stream.begin(1);
  run_layers(per_stream, 1, 3);
  per_stream.end();
  per_stream.begin(1);
  run_layers(per_stream, 1, 3);
  per_stream.end();
  EXPECT_EQ(per_stream.counters().served, 0u);
  EXPECT_EQ(memory.counters().arena_bytes, 0u);
  upstream.limit = UINT64_MAX;
  per_stream.begin(1);
  run_layers(per_stream, 1, 3);
  per_stream.end();
  EXPECT_EQ(per_stream.counters().served, 7u);
}

TEST(planned_resource, past_the_most_shapes_the_one_begun_longest_ago_is_forgotten) {
  host_memory upstream;
  planned_resource memory(upstream, {.most_shapes = 2});
  planned_stream per_stream = memory.on_stream(stream_1);
  for (const std::uint64_t batch : {1u, 2u, 1u, 3u, 1u, 2u}) {  // 3 pushes 2 out
    per_stream.begin(batch);
    run_layers(per_stream, batch, 3);
    per_stream.end();
  }
  EXPECT_EQ(per_stream.counters().recorded, 4u);
  EXPECT_EQ(per_stream.counters().served, 2u * 7);
  EXPECT_EQ(per_stream.counters().forgotten, 2u);
}

TEST(planned_resource, frees_that_are_wrong_are_refused_and_the_block_stays) {
  host_memory upstream;
  planned_resource memory(upstream);
  memory.set_error_sink([](const error&) {});
  planned_stream per_stream = memory.on_stream(stream_1);
  for (int k = 0; k < 2; ++k) {
    per_stream.begin(1);
    void* const first = per_stream.allocate(4096);
    void* const ptr = per_stream.allocate(8192);
    if (k == 1) {
      const auto code_of = [&](void* at, std::uint64_t bytes) {
        const auto answer = memory.try_deallocate(at, bytes, stream_1);
        return answer ? error_code::not_permitted : answer.error().code;
      };
      EXPECT_EQ(code_of(ptr, 4096), error_code::invalid_argument);
      EXPECT_EQ(code_of(static_cast<char*>(ptr) + 100, 0), error_code::interior_pointer);
      per_stream.end();  // both outlive their iteration
      EXPECT_EQ(code_of(ptr, 4096), error_code::invalid_argument);
      EXPECT_EQ(code_of(static_cast<char*>(ptr) + 100, 8192), error_code::interior_pointer);
    }
    per_stream.deallocate(ptr, 0);
    per_stream.deallocate(first, 4096);
    per_stream.end();
  }
  EXPECT_EQ(per_stream.counters().served, 2u);
  EXPECT_EQ(memory.deallocation_errors(), 0u);  // of deallocate, which was always right
}

TEST(planned_resource, sites_tell_equal_sizes_apart) {
  host_memory upstream;
  planned_resource memory(upstream);
  planned_stream per_stream = memory.on_stream(stream_1);
  const auto iteration = [&](std::uint64_t site) {
    per_stream.begin(1);
    auto block = per_stream.try_allocate(512, default_alignment, site);
    ASSERT_TRUE(block);
    per_stream.deallocate(*block, 512);
    per_stream.end();
  };
  iteration(7);
  iteration(7);
  iteration(8);
  EXPECT_EQ(per_stream.counters().served, 1u);
  EXPECT_EQ(per_stream.counters().deviations, 1u);
}

TEST(planned_resource,
     as_a_memory_resource_it_uses_the_cache_of_the_stream_and_refuses_frees_on_another) {
  host_memory upstream;
  planned_resource memory(upstream);
  memory.set_error_sink([](const error&) {});
  planned_stream per_stream = memory.on_stream(stream_1);
  for (int k = 0; k < 2; ++k) {
    per_stream.begin(1);
    void* ptr = memory.allocate(1000, stream_1);
    if (k == 1) {
      const auto refused = memory.try_deallocate(ptr, 1000, stream_2);
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().code, error_code::not_permitted);
    }
    memory.deallocate(ptr, 1000, stream_1);
    per_stream.end();
  }
  EXPECT_EQ(per_stream.counters().served, 1u);
  void* other = memory.allocate(1000, stream_2);
  memory.deallocate(other, 1000, stream_2);
  EXPECT_EQ(upstream.live, 1u);
  per_stream.begin(1);
  void* ptr = per_stream.allocate(1000);
  per_stream.deallocate(ptr, 1000);
  per_stream.deallocate(ptr, 1000);
  per_stream.end();
  EXPECT_EQ(memory.deallocation_errors(), 1u);
}

// Programs that repeat themselves badly: sizes change, blocks are left out, added, freed late or
// kept. Live blocks must never share a byte, and everything must come back.
TEST(planned_resource, no_deviation_hands_out_a_live_byte) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    random any(seed);
    host_memory upstream;
    {
      planned_resource memory(upstream, {.planning_steps = 2000});
      planned_stream per_stream = memory.on_stream(stream_1);
      std::map<std::uintptr_t, std::uint64_t> live;
      const auto allocate = [&](std::uint64_t bytes) {
        const auto at = reinterpret_cast<std::uintptr_t>(per_stream.allocate(bytes));
        const auto after = live.lower_bound(at);
        ASSERT_TRUE(after == live.end() || at + bytes <= after->first) << "seed " << seed;
        ASSERT_TRUE(after == live.begin() ||
                    std::prev(after)->first + std::prev(after)->second <= at)
            << "seed " << seed;
        live.emplace(at, bytes);
      };
      const auto free_some = [&](std::uint64_t index) {
        const auto at = std::next(live.begin(), static_cast<std::ptrdiff_t>(index % live.size()));
        per_stream.deallocate(reinterpret_cast<void*>(at->first), at->second);
        live.erase(at);
      };
      const double trouble = any.unit() * 0.3;
      for (int iteration = 0; iteration < 12; ++iteration) {
        const std::uint64_t key = any.below(2);
        random program(key);  // the same each time, but for the trouble
        per_stream.begin(key);
        for (int k = 0; k < 40; ++k) {
          const std::uint64_t bytes = program.between(1, 4000);
          const std::uint64_t which = program.next();
          const bool frees = program.chance(0.5);
          if (!any.chance(trouble)) allocate(any.chance(trouble) ? any.between(1, 4000) : bytes);
          if (frees && !live.empty() && !any.chance(trouble))
            free_some(any.chance(trouble) ? any.next() : which);
        }
        while (!live.empty() && !any.chance(trouble * 0.1)) free_some(0);
        per_stream.end();
      }
      while (!live.empty()) free_some(0);
      EXPECT_EQ(memory.deallocation_errors(), 0u) << "seed " << seed;
    }
    EXPECT_EQ(upstream.live, 0u) << "seed " << seed;
  }
}

}  // namespace
}  // namespace millpond
