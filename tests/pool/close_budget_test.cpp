// What the driver will not take back at a pool's end stays counted by its budget.
#include "support/others_capture.hpp"
#include "support/pool_fixture.hpp"

namespace millpond {
namespace {

struct pool_close : pool_test {
  // Keeps what it is told to take back.
  struct keeping : forwarding_driver {
    using forwarding_driver::forwarding_driver;
    bool keeps_memory = false, keeps_mappings = false;
    call_result physical_release(physical_handle handle) noexcept override {
      if (keeps_memory) return {driver_status::unknown, "cuMemRelease"};
      return to().physical_release(handle);
    }
    call_result unmap(device_address at, std::uint64_t bytes) noexcept override {
      if (keeps_mappings) return {driver_status::unknown, "cuMemUnmap"};
      return to().unmap(at, bytes);
    }
  };
};

TEST_F(pool_close, what_the_driver_keeps_stays_counted_by_the_budget) {
  for (const auto kept : {&keeping::keeps_memory, &keeping::keeps_mappings}) {
    make(steady());
    leak_check = false;
    const auto used = std::make_shared<keeping>(gpu);
    const auto budget = memory_budget::create({.hard_bytes = GiB});
    pool_options options;
    options.budget = budget;
    add_pool(options, used);
    const stream_handle s = stream();
    p->deallocate(p->allocate(256 * MiB, s), 256 * MiB, s);
    const std::uint64_t held = p->statistics().reserved_bytes;
    (*used).*kept = true;
    int refused = 0;
    p->set_error_sink([&](const error&) { ++refused; });
    p.reset();
    EXPECT_GT(refused, 0);
    EXPECT_EQ(budget->used_bytes(), held);
    EXPECT_EQ(budget->left_bytes(), held);
    ok(gpu->stream_destroy(s));
    forget(s);
  }
}

TEST_F(pool_close, all_of_it_is_given_back_otherwise) {
  make(steady());
  const auto budget = memory_budget::create({.hard_bytes = GiB});
  pool_options options;
  options.budget = budget;
  add_pool(options, gpu);
  const stream_handle s = stream();
  p->deallocate(p->allocate(256 * MiB, s), 256 * MiB, s);
  EXPECT_GT(budget->used_bytes(), 0u);
  p.reset();
  EXPECT_EQ(budget->used_bytes(), 0u);
}

// Waiting by cuCtxSynchronize would be refused, and break the capture.
TEST_F(pool_close, a_pool_ends_beside_the_capture_of_another_thread) {
  start();
  const stream_handle s = stream();
  give(take(MiB, s), s);
  others_capture capture(*gpu, capture_mode::global, per_thread_stream);
  {
    const simulated_gpu::library_scope library;
    p.reset();
  }
  ok(capture.end());
}

}  // namespace
}  // namespace millpond
