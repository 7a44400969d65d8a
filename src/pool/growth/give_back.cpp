// Giving back: handles that nothing lies in, on request and by age. A handle is held before the
// driver is asked, so that what follows cannot fail for want of host memory.
#include <algorithm>

#include "driver/relaxed_capture.hpp"
#include "millpond/base/units.hpp"
#include "pool/cache/thread_caches.hpp"
#include "pool/core.hpp"

namespace millpond {

std::uint64_t pool::core::trim(std::uint64_t keep_bytes) {
  if (!serving()) return 0;
  // To nothing, the pool is as new: streams that are not used any more do not stay apart for ever.
  if (keep_bytes == 0)
    thread_caches::drop_all(this);
  else
    thread_caches::drop_idle(this);
  drain_released();
  empty_arenas();
  flush_caches_of(nullptr);
  const relaxed_capture_scope relaxed(*gpu_);
  seal_context();
  poll_fences();
  collect_dead_streams();
  if (keep_bytes == 0) forget_peak();
  return give_back(keep_bytes);
}

// Whole idle spans, the last mapped first. Idle means that the host has seen the fence, so that
// nothing runs on them.
std::uint64_t pool::core::give_back(std::uint64_t keep_bytes) {
  if (granularity_ == 0)
    return 0;  // a chunk's own free waits for the whole device: close() does that
  const relaxed_capture_scope relaxed(*gpu_);
  const std::lock_guard growing(growth_mutex_);
  if (asleep_bytes_.load(std::memory_order_relaxed) != 0)
    return 0;  // it has gone to sleep while the lock was waited for
  std::uint64_t given = 0;
  std::vector<heap::handle_id> candidates;
  {
    const std::lock_guard lock(heap_mutex_);
    for (heap::handle_id id = 0; id < heap_.handles().size(); ++id) {
      const auto& h = heap_.handles()[id];
      const auto idle = [this](heap::span_id s) { return heap_.wholly_free(s, heap::anyone); };
      if (h.present && std::all_of(h.spans.begin(), h.spans.end(), idle)) candidates.push_back(id);
    }
    const auto location = [this](heap::handle_id id) {
      return heap_.spans()[heap_.handles()[id].spans.front()].primary.at;
    };
    std::sort(candidates.begin(), candidates.end(),
              [&](heap::handle_id a, heap::handle_id b) { return location(a) > location(b); });
  }
  for (const heap::handle_id id : candidates) {
    std::uint64_t bytes = 0;
    {
      const std::lock_guard lock(heap_mutex_);
      bytes = heap_.handles()[id].bytes;
      if (reserved_ <= keep_bytes || reserved_ - bytes < keep_bytes) continue;
    }
    if (give_back_handle(id)) given += bytes;
  }
  return given;
}

// The same by age, and with the growth lock for one handle at a time, so that an allocation that
// must grow waits for one.
std::uint64_t pool::core::give_back_old(std::uint64_t older_than_ns, std::uint64_t keep_bytes) {
  if (!serving() || granularity_ == 0) return 0;
  const relaxed_capture_scope relaxed(*gpu_);
  thread_caches::drop_idle(this);
  flush_caches_of(nullptr);  // a few MiB in caches would keep whole handles
  seal_context();
  poll_fences();
  // Without a clock a call is a moment: what was unused at the last one is old enough.
  const bool timed = static_cast<bool>(options_.clock);
  const std::uint64_t now = timed ? options_.clock() : ++looks_;
  struct candidate {
    heap::handle_id id;
    std::uint64_t name, bytes, at;
  };
  std::vector<candidate> old;
  {
    const std::lock_guard lock(heap_mutex_);
    if (ages_ == nullptr) ages_ = std::make_unique<span_ages>();
    for (heap::handle_id id = 0; id < heap_.handles().size(); ++id) {
      const auto& h = heap_.handles()[id];
      const auto idle = [this](heap::span_id s) { return heap_.wholly_free(s, heap::anyone); };
      if (!h.present || h.mappings.empty() || !std::all_of(h.spans.begin(), h.spans.end(), idle))
        continue;
      const std::uint64_t at = h.mappings.front().at;
      const bool used = std::any_of(h.mappings.begin(), h.mappings.end(),
                                    [&](const auto& m) { return ages_->touched(m.at, h.bytes); });
      const std::uint64_t since =
          ages_->look(h.name, used ? span_ages::use::since_last_look : span_ages::use::none, now);
      if (timed ? now - since >= older_than_ns : since < now)
        old.push_back({id, h.name, h.bytes, at});
    }
    ages_->end_of_look();
  }
  std::sort(old.begin(), old.end(),
            [](const candidate& a, const candidate& b) { return a.at > b.at; });
  std::uint64_t given = 0;
  for (const candidate& c : old) {
    const std::lock_guard growing(growth_mutex_);
    if (!serving()) break;
    {
      const std::lock_guard lock(heap_mutex_);
      if (reserved_ < keep_bytes + c.bytes) continue;
      // Another thread may have given it back, and its number may be another handle's by now.
      if (!heap_.handles()[c.id].present || heap_.handles()[c.id].name != c.name) continue;
    }
    if (give_back_handle(c.id)) given += c.bytes;
  }
  return given;
}

// Takes the handle's spans out of use, then asks the driver. Where the driver refuses, what was
// unmapped is mapped again and the handle goes on as before.
bool pool::core::give_back_handle(heap::handle_id id) {
  std::vector<heap::heap::mapping> mappings;
  physical_handle name = 0;
  std::uint64_t bytes = 0;
  {
    const std::lock_guard lock(heap_mutex_);
    const auto& handle = heap_.handles()[id];
    mappings = handle.mappings;
    name = handle.name;
    bytes = handle.bytes;
    if (!heap_.hold_handle(id)) return false;  // taken meanwhile
  }
  call_result answer;
  std::size_t unmapped = 0;
  for (; unmapped < mappings.size(); ++unmapped) {
    answer = gpu_->unmap(mappings[unmapped].at, bytes);
    if (!answer.ok()) break;
  }
  if (answer.ok()) answer = release_physical(name, bytes);
  if (!answer.ok()) {
    // Unmapped from some of its addresses but not given back: map it again.
    bool restored = true;
    for (std::size_t i = 0; i < unmapped; ++i) {
      restored = gpu_->map(mappings[i].at, bytes, name).ok() &&
                 gpu_->set_access(mappings[i].at, bytes, location()).ok() && restored;
    }
    if (restored) {
      const std::lock_guard lock(heap_mutex_);
      heap_.let_go_handle(id);
    }
    // Otherwise the addresses stay out of use until the pool is closed: nothing is handed out that
    // is not mapped.
    note_failure(to_error(answer, "giving back " + format_bytes(bytes)));
    return false;
  }
  const std::lock_guard lock(heap_mutex_);
  static_cast<void>(heap_.remove_handle(id));  // it is held: never refused
  reserved_ -= bytes;
  counts_.given_back_bytes.fetch_add(bytes, std::memory_order_relaxed);
  return true;
}

}  // namespace millpond
