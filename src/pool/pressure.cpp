// The pressure ladder: what is tried, in order, where neither free memory nor growth serves a
// request. Each step reports what it gained; at the end stands out_of_memory with the whole report.
#include <algorithm>

#include "driver/relaxed_capture.hpp"
#include "pool/core.hpp"

namespace millpond {

// One climb for one request, and its books.
class pool::core::climb {
 public:
  climb(core& in, const request& what) : in_(in), what_(what) {}

  // A step that answers what it gained.
  template <class Step>
  std::uint64_t step(const char* name, Step&& take) {
    const std::uint64_t gained = take();
    const auto known = std::find_if(steps_.begin(), steps_.end(),
                                    [&](const ladder_step& s) { return s.name == name; });
    ladder_step& books = known != steps_.end() ? *known : steps_.emplace_back();
    books.name = name;
    ++books.times;
    books.gained_bytes += gained;
    return gained;
  }
  // A step that gains what became usable while it ran.
  template <class Step>
  void freeing_step(const char* name, Step&& take) {
    step(name, [&] {
      const std::uint64_t before = usable();
      take();
      const std::uint64_t after = usable();
      return after > before ? after - before : 0;
    });
  }
  // Spans that are free but in the wrong places make room for one that is in the right place.
  bool give_back_unused() {
    return in_.granularity_ != 0 && step("unused spans", [&] { return in_.give_back(0); }) > 0;
  }
  void fence_all() {
    in_.seal_context();
    in_.poll_fences();
  }

  // What the heap has now, or after growth.
  [[nodiscard]] heap::extent* carved() {
    const std::lock_guard lock(in_.heap_mutex_);
    return in_.carve_locked(what_, true);
  }
  [[nodiscard]] heap::extent* carved_or_grown() {
    if (heap::extent* const block = carved()) return block;
    heap::extent* block = nullptr;
    if (const growth grown = in_.grow(what_, &block); grown != growth::more) return block;
    return carved();
  }
  [[nodiscard]] std::vector<ladder_step> steps() && { return std::move(steps_); }

 private:
  [[nodiscard]] std::uint64_t usable() {
    const std::lock_guard lock(in_.heap_mutex_);
    return in_.heap_.free_bytes(heap::anyone) +
           (what_.owner == heap::anyone ? 0 : in_.heap_.free_bytes(what_.owner));
  }

  core& in_;
  const request& what_;
  std::vector<ladder_step> steps_;
};

result<heap::extent*> pool::core::under_pressure(const request& what) {
  climb ladder(*this, what);
  ladder.freeing_step("fences", [&] {
    empty_arenas();
    ladder.fence_all();
  });
  if (heap::extent* const block = ladder.carved()) return block;

  ladder.freeing_step("caches", [&] {
    counts_.thread_caches_flushed.fetch_add(flush_caches_of(nullptr), std::memory_order_relaxed);
    ladder.fence_all();
  });
  if (heap::extent* const block = ladder.carved()) return block;

  if (ladder.give_back_unused()) {
    if (heap::extent* const block = ladder.carved_or_grown()) return block;
  }
  if (budget_ != nullptr &&
      ladder.step("other members", [&] { return reclaim_from_others(what.size); }) > 0) {
    if (heap::extent* const block = ladder.carved_or_grown()) return block;
  }

  const std::uint64_t begun = options_.clock ? options_.clock() : 0;
  const std::uint64_t deadline =
      begun + std::min(options_.max_wait_ns, ~std::uint64_t{0} - begun);  // "for ever" stays so
  if (options_.max_wait_ns > 0 && options_.reuse != reuse_policy::same_stream) {
    for (bool passed = true; passed;) {
      ladder.freeing_step("waiting", [&] { passed = wait_for_a_fence(deadline); });
      if (!passed) break;
      if (heap::extent* const block = ladder.carved()) return block;
      if (ladder.give_back_unused()) {
        if (heap::extent* const block = ladder.carved_or_grown()) return block;
      }
      if (options_.clock && options_.clock() >= deadline) break;
    }
  }

  for (int calls = 0; calls < 16 && options_.on_pressure; ++calls) {
    counts_.pressure_callbacks.fetch_add(1, std::memory_order_relaxed);
    bool retry = false;
    ladder.freeing_step("callback", [&] {
      retry = options_.on_pressure(what.size);
      if (!retry) return;
      flush_caches_of(nullptr);
      ladder.fence_all();
    });
    if (!retry) break;
    if (heap::extent* const block = ladder.carved_or_grown()) return block;
  }
  counts_.out_of_memory.fetch_add(1, std::memory_order_relaxed);
  return out_of_memory_report(what, std::move(ladder).steps());
}

}  // namespace millpond
