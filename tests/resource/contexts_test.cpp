// With another context current: every kind of memory is of the driver's own, and the program finds
// its context current as before.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "driver/sim_fixture.hpp"
#include "millpond/base/units.hpp"
#include "millpond/memory/adaptors.hpp"
#include "millpond/memory/kinds.hpp"
#include "support/others_capture.hpp"

namespace millpond {
namespace {

struct resource_contexts : sim_test {
  using make_resource = std::function<std::unique_ptr<memory_resource>()>;
  // One of each kind that talks to the driver.
  [[nodiscard]] std::vector<make_resource> kinds() const {
    return {[this] { return std::make_unique<device_resource>(gpu); },
            [this] { return std::make_unique<driver_pool_resource>(gpu); },
            [this] { return std::make_unique<pinned_resource>(gpu); },
            [this] { return std::make_unique<managed_resource>(gpu); }};
  }
};

TEST_F(resource_contexts, every_kind_leaves_the_programs_context_current_and_nothing_in_it) {
  make();
  const stream_handle s = stream();
  for (const make_resource& made : kinds()) {
    std::unique_ptr<memory_resource> memory;
    void* block = nullptr;
    {
      const another_context other(*gpu);
      memory = made();
      block = memory->allocate(MiB, s);
      ASSERT_NE(block, nullptr) << to_string(memory->kind());
    }
    ok(gpu->set_async(reinterpret_cast<device_address>(block), 7, MiB, s));
    {
      const another_context other(*gpu);
      EXPECT_TRUE(memory->try_deallocate(block, MiB, s)) << to_string(memory->kind());
      memory.reset();
    }
    ok(gpu->context_synchronize());
  }
}

TEST_F(resource_contexts, a_quarantine_waits_for_the_driver_s_own_context) {
  make();
  const stream_handle s = stream();
  device_resource memory(gpu);
  guard_resource guard(memory, nullptr, {.name = {}, .quarantine_bytes = 4 * MiB});
  for (int i = 0; i < 8; ++i) {
    void* const block = guard.allocate(MiB, s);
    ok(gpu->set_async(reinterpret_cast<device_address>(block), 7, MiB, s));
    const another_context other(*gpu);
    guard.deallocate(block, MiB, s);
  }
  const another_context other(*gpu);
  guard.flush();
  EXPECT_EQ(guard.quarantined_bytes(), 0u);
}

// As on a card, where a thread that made no call of the driver has no context.
TEST_F(resource_contexts, a_thread_without_one_is_given_the_drivers_own) {
  simulated_gpu_options options;
  options.threads = simulated_gpu_options::new_threads::have_no_context;
  make(options);
  const stream_handle s = stream();
  for (const make_resource& made : kinds()) {
    std::unique_ptr<memory_resource> memory;
    void* block = nullptr;
    std::thread([&] {
      memory = made();
      block = memory->allocate(MiB, s);
      EXPECT_NE(block, nullptr) << to_string(memory->kind());
    }).join();
    std::thread([&] {
      EXPECT_TRUE(memory->try_deallocate(block, MiB, s)) << to_string(memory->kind());
    }).join();
    std::thread([&] { memory.reset(); }).join();
  }
  ok(gpu->context_synchronize());
}

}  // namespace
}  // namespace millpond
