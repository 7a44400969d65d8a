// The pressure ladder: what is tried, in order, where neither free memory nor growth serves a
// request. Each step tells what it gained; at the end stands out_of_memory with the whole report.
#include <algorithm>

#include "driver/relaxed_capture.hpp"
#include "pool/core.hpp"

namespace millpond {
namespace {

// Books of one climb.
class climb {
 public:
  template <class Step>
  std::uint64_t step(const char* name, Step&& take) {
    const std::uint64_t gained = take();
    if (steps_.empty() || steps_.back().name != name) {
      const auto known = std::find_if(steps_.begin(), steps_.end(),
                                      [&](const ladder_step& s) { return s.name == name; });
      if (known != steps_.end()) {
        ++known->times;
        known->gained_bytes += gained;
        return gained;
      }
      steps_.push_back({name, 0, 0});
    }
    ++steps_.back().times;
    steps_.back().gained_bytes += gained;
    return gained;
  }
  [[nodiscard]] std::vector<ladder_step> steps() && { return std::move(steps_); }

 private:
  std::vector<ladder_step> steps_;
};

}  // namespace

result<heap::extent*> pool::core::under_pressure(const request& what) {
  climb ladder;
  const auto again = [&](bool with_growth) -> heap::extent* {
    {
      const std::lock_guard lock(heap_mutex_);
      if (heap::extent* const block = carve_locked(what, true)) return block;
    }
    if (!with_growth) return nullptr;
    heap::extent* block = nullptr;
    if (const growth grown = grow(what, &block); grown != growth::more) return block;
    const std::lock_guard lock(heap_mutex_);
    return carve_locked(what, true);
  };
  const auto usable = [&] {
    const std::lock_guard lock(heap_mutex_);
    return heap_.free_bytes(heap::anyone) +
           (what.owner == heap::anyone ? 0 : heap_.free_bytes(what.owner));
  };
  // What became usable while a step ran.
  const auto gain = [&](auto&& step) {
    const std::uint64_t before = usable();
    step();
    const std::uint64_t after = usable();
    return after > before ? after - before : 0;
  };
  const auto fenced = [&] {
    seal_context();
    poll_fences();
  };
  ladder.step("fences", [&] {
    return gain([&] {
      empty_arenas();
      fenced();
    });
  });
  if (heap::extent* const block = again(false)) return block;

  ladder.step("caches", [&] {
    return gain([&] {
      counts_.thread_caches_flushed.fetch_add(flush_caches_of(nullptr), std::memory_order_relaxed);
      fenced();
    });
  });
  if (heap::extent* const block = again(false)) return block;

  // Spans that are free but in the wrong places make room for one that is in the right place.
  const bool gives_back = granularity_ != 0;
  if (gives_back && ladder.step("unused spans", [&] { return give_back(0); }) > 0) {
    if (heap::extent* const block = again(true)) return block;
  }
  if (budget_ != nullptr &&
      ladder.step("other members", [&] { return reclaim_from_others(what.size); }) > 0) {
    if (heap::extent* const block = again(true)) return block;
  }

  const std::uint64_t deadline = options_.clock ? options_.clock() + options_.max_wait_ns : 0;
  if (options_.max_wait_ns > 0 && options_.reuse != reuse_policy::same_stream) {
    for (bool passed = true; passed;) {
      ladder.step("waiting", [&] { return gain([&] { passed = wait_for_a_fence(deadline); }); });
      if (!passed) break;
      if (heap::extent* const block = again(false)) return block;
      if (gives_back && ladder.step("unused spans", [&] { return give_back(0); }) > 0) {
        if (heap::extent* const block = again(true)) return block;
      }
      if (options_.clock && options_.clock() >= deadline) break;
    }
  }

  for (int calls = 0; calls < 16 && options_.on_pressure; ++calls) {
    counts_.pressure_callbacks.fetch_add(1, std::memory_order_relaxed);
    bool retry = false;
    ladder.step("callback", [&] {
      return gain([&] {
        retry = options_.on_pressure(what.size);
        if (!retry) return;
        flush_caches_of(nullptr);
        fenced();
      });
    });
    if (!retry) break;
    if (heap::extent* const block = again(true)) return block;
  }
  counts_.out_of_memory.fetch_add(1, std::memory_order_relaxed);
  return out_of_memory_report(what, std::move(ladder).steps());
}

}  // namespace millpond
