// A pool on a simulated GPU with the checker informed of everything: what the pool hands out, what
// the program frees and where it says that it uses a block. At the end nothing may be broken or
// left, unless the test says otherwise.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "driver/sim_fixture.hpp"
#include "millpond/base/units.hpp"
#include "millpond/pool/pool.hpp"
#include "support/handle_watch.hpp"

namespace millpond {

inline constexpr std::uint64_t microsecond = 1'000;
inline constexpr std::uint64_t millisecond = 1'000'000;

class pool_test : public sim_test {
 protected:
  using wrapper = std::function<std::shared_ptr<driver>(std::shared_ptr<simulated_gpu>)>;

  // Call times at their medians, so that a test may count on what is done by when.
  static simulated_gpu_options steady() {
    simulated_gpu_options options;
    options.times = simulated_gpu_options::call_times::median;
    return options;
  }
  void start(pool_options options = {}, simulated_gpu_options of_gpu = steady(),
             const wrapper& wrap = {}) {
    make(std::move(of_gpu));
    std::shared_ptr<driver> used = gpu;
    if (wrap) used = wrap(gpu);
    used = watch = std::make_shared<handle_watch>(used);
    add_pool(std::move(options), used);
  }
  void add_pool(pool_options options, std::shared_ptr<driver> used) {
    if (!options.clock) options.clock = [g = gpu] { return g->now_ns(); };
    auto made = pool::create(std::move(used), std::move(options));
    ASSERT_TRUE(made.has_value()) << made.error().message;
    p = *made;
    p->set_error_sink([this](const error& e) { errors.push_back(e); });
  }

  static std::string place_of(const std::source_location& at) {
    return "line " + std::to_string(at.line());
  }

  // nullptr, with the error in `refusal`, where the pool refuses.
  void* take(std::uint64_t bytes, stream_handle s, std::uint64_t alignment = default_alignment,
             std::source_location at = std::source_location::current()) {
    const auto got = [&] {
      const simulated_gpu::library_scope library;
      const handle_watch::serving call(s);
      return p->try_allocate(bytes, alignment, s);
    }();
    if (!got) {
      refusal = got.error();
      return nullptr;
    }
    if (*got != nullptr)
      gpu->note_allocate(reinterpret_cast<device_address>(*got), bytes, s, place_of(at));
    sizes_[*got] = bytes;
    return *got;
  }
  void give(void* ptr, stream_handle s, std::source_location at = std::source_location::current()) {
    const auto found = sizes_.find(ptr);
    const std::uint64_t bytes = found == sizes_.end() ? 0 : found->second;
    if (ptr != nullptr)
      gpu->note_free(reinterpret_cast<device_address>(ptr), bytes, s, place_of(at));
    sizes_.erase(ptr);
    const simulated_gpu::library_scope library;
    const handle_watch::serving call(s);
    p->deallocate(ptr, bytes, s);
  }
  void use(void* ptr, stream_handle s, std::source_location at = std::source_location::current()) {
    gpu->note_use(reinterpret_cast<device_address>(ptr), s, place_of(at));
    const simulated_gpu::library_scope library;
    const handle_watch::serving call(s);
    if (watch != nullptr) watch->promise(s);
    const auto reported = p->record_use(ptr, s);
    EXPECT_TRUE(reported.has_value()) << reported.error().message;
  }
  // A kernel that writes the block for this long.
  void work(void* ptr, stream_handle s, std::uint64_t duration_ns, std::uint64_t bytes = 1) {
    kernel_description kernel;
    kernel.name = "work";
    kernel.duration_ns = duration_ns;
    kernel.accesses.push_back({reinterpret_cast<device_address>(ptr), bytes, access_kind::write});
    ok(gpu->launch(std::move(kernel), s));
  }
  std::uint64_t trim(std::uint64_t keep = 0) {
    const simulated_gpu::library_scope library;
    const handle_watch::serving call(nullptr);
    return p->trim(keep);
  }
  [[nodiscard]] pool_statistics now() const { return p->statistics(); }
  // Some time after everything was freed and every graph has gone the pool holds nothing.
  void expect_all_back() {
    gpu->advance(100 * millisecond);
    trim();
    trim();
    EXPECT_EQ(now().reserved_bytes, 0u);
    EXPECT_EQ(now().captures, 0u);
    EXPECT_EQ(now().graph_arenas, 0u);
    EXPECT_EQ(now().live_blocks, 0u);
    EXPECT_EQ(now().live_bytes, 0u);
    EXPECT_EQ(now().capture_bytes, 0u);
  }
  // The only error that frees have met since it was last asked.
  error only_error() {
    EXPECT_EQ(errors.size(), 1u) << (errors.empty() ? "none" : errors.back().message);
    error out = errors.empty() ? error{} : errors.front();
    errors.clear();
    return out;
  }
  [[nodiscard]] bool broken(const std::string& rule) const {
    for (const auto& r : rules()) {
      if (r == rule) return true;
    }
    return false;
  }

  // The pool goes, and nothing of it may be left; for tests that make several, one GPU each.
  void end_pool() { TearDown(); }

  void TearDown() override {
    if (p != nullptr) p->check();
    {
      const simulated_gpu::library_scope library;
      p.reset();
    }
    if (watch != nullptr) {
      for (const std::string& s : watch->strangers()) ADD_FAILURE() << s;
      watch.reset();
    }
    for (const error& e : errors) ADD_FAILURE() << e.message;
    errors.clear();
    sizes_.clear();
    sim_test::TearDown();
  }

  std::shared_ptr<pool> p;
  std::shared_ptr<handle_watch> watch;
  std::vector<error> errors;  // that frees have met
  error refusal;              // of the last allocation that was refused

 private:
  std::unordered_map<void*, std::uint64_t> sizes_;
};

}  // namespace millpond
