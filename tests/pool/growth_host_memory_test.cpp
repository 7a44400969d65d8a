// Host memory runs out while a pool grows: after each allocation of it, one after the other, all
// fail. Whatever the call answers, no physical memory is lost, the books are right, and the pool
// goes on.
#include <memory>
#include <new>
#include <vector>

#include "support/failing_new.hpp"
#include "support/pool_fixture.hpp"
#include "support/sparing_driver.hpp"

namespace millpond {
namespace {

class pool_growth_host_memory : public pool_test {
 protected:
  void begin(pool_options options = {}) {
    make(steady());
    add_pool(std::move(options), std::make_shared<sparing_driver>(gpu));
    s = stream();
    // What a first call of a thread and a stream makes.
    void* const first = p->allocate(512, s);
    p->deallocate(first, 512, s);
  }
  [[nodiscard]] std::uint64_t physical_bytes() const {
    std::uint64_t free = 0, total = 0;
    ok(gpu->memory_info(&free, &total));
    return total - free;
  }
  void expect_nothing_lost() {
    p->check();
    EXPECT_EQ(now().reserved_bytes, physical_bytes());
  }
  // Answers how often host memory was missed.
  template <class Call>
  std::uint64_t served_in_the_end(Call&& call) {
    return fail_each_in_turn(
        [&] {
          try {
            return call();
          } catch (const std::bad_alloc&) {
            return false;
          }
        },
        [&] { expect_nothing_lost(); }, failing_new::which::all_from_there);
  }
  void* take_in_the_end(std::uint64_t bytes) {
    void* out = nullptr;
    missed += served_in_the_end([&] {
      const auto got = p->try_allocate(bytes, default_alignment, s);
      if (got) out = *got;
      return got.has_value();
    });
    expect_nothing_lost();
    return out;
  }

  stream_handle s = nullptr;
  std::uint64_t missed = 0;
};

TEST_F(pool_growth_host_memory, new_memory_is_all_there_or_not_there) {
  begin();
  std::vector<void*> blocks;
  for (int i = 0; i < 40; ++i) {
    blocks.push_back(take_in_the_end(24 * MiB));
    ASSERT_NE(blocks.back(), nullptr) << i;
  }
  EXPECT_GT(missed, 40u);
  for (void* const x : blocks) p->deallocate(x, 24 * MiB, s);
}

TEST_F(pool_growth_host_memory, stitched_ranges_are_there_or_not) {
  begin();
  std::vector<void*> blocks;
  for (int i = 0; i < 24; ++i) blocks.push_back(p->allocate(16 * MiB, s));
  for (std::size_t i = 0; i < blocks.size(); i += 2) p->deallocate(blocks[i], 16 * MiB, s);
  void* const large = take_in_the_end(160 * MiB);
  ASSERT_NE(large, nullptr);
  EXPECT_GT(missed, 0u);
  p->deallocate(large, 160 * MiB, s);
  for (std::size_t i = 1; i < blocks.size(); i += 2) p->deallocate(blocks[i], 16 * MiB, s);
}

}  // namespace
}  // namespace millpond
