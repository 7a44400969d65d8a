// Giving back: handles that nothing lies in, on request and by age. A handle is held before the
// driver is asked, so that what follows cannot fail for want of host memory.
#include <algorithm>

#include "driver/own_calls.hpp"
#include "millpond/base/units.hpp"
#include "pool/growth/physical_memory.hpp"

namespace millpond {

namespace {

[[nodiscard]] bool wholly_idle(const heap::heap& in, const heap::heap::handle_record& of) {
  return of.present && std::all_of(of.spans.begin(), of.spans.end(), [&](heap::span_id s) {
           return in.wholly_free(s, heap::anyone);
         });
}

}  // namespace

std::uint64_t physical_memory::give_back(std::uint64_t keep_bytes) {
  if (granularity_ == 0)
    return 0;  // a chunk's own free waits for the whole device: close() does that
  const own_calls_scope own_calls(gpu_);
  const mutex_lock lock(mutex_);
  // It has gone to sleep, or has ended, while the lock was waited for.
  if (asleep_bytes() != 0 || phase_.closed()) return 0;
  std::vector<heap::handle_id> candidates;
  {
    const block_store::locked books(blocks_);
    const heap::heap& in = books.heap();
    for (heap::handle_id id = 0; id < in.handles().size(); ++id) {
      if (wholly_idle(in, in.handles()[id])) candidates.push_back(id);
    }
    const auto location = [&](heap::handle_id id) {
      return in.spans()[in.handles()[id].spans.front()].primary.at;
    };
    std::sort(candidates.begin(), candidates.end(),
              [&](heap::handle_id a, heap::handle_id b) { return location(a) > location(b); });
  }
  std::uint64_t given = 0;
  for (const heap::handle_id id : candidates) {
    std::uint64_t bytes = 0;
    {
      const block_store::locked books(blocks_);
      bytes = books.heap().handles()[id].bytes;
      if (books.reserved() <= keep_bytes || books.reserved() - bytes < keep_bytes) continue;
    }
    if (give_back_handle(id)) given += bytes;
  }
  return given;
}

// With the lock for one handle at a time, so that an allocation that must grow waits for one.
std::uint64_t physical_memory::give_back_old(std::uint64_t older_than_ns,
                                             std::uint64_t keep_bytes) {
  // Without a clock a call is a moment: what was unused at the last one is old enough.
  const bool timed = static_cast<bool>(options_.clock);
  const std::uint64_t now = timed ? options_.clock() : ++looks_;
  struct candidate {
    heap::handle_id id;
    std::uint64_t name, bytes, at;
  };
  std::vector<candidate> old;
  {
    const block_store::locked books(blocks_);
    const heap::heap& in = books.heap();
    span_ages& ages = books.ages();
    for (heap::handle_id id = 0; id < in.handles().size(); ++id) {
      const auto& h = in.handles()[id];
      if (h.mappings.empty() || !wholly_idle(in, h)) continue;
      const bool used = std::any_of(h.mappings.begin(), h.mappings.end(),
                                    [&](const auto& m) { return ages.touched(m.at, h.bytes); });
      const std::uint64_t since =
          ages.look(h.name, used ? span_ages::use::since_last_look : span_ages::use::none, now);
      if (timed ? now - since >= older_than_ns : since < now)
        old.push_back({id, h.name, h.bytes, h.mappings.front().at});
    }
    ages.end_of_look();
  }
  std::sort(old.begin(), old.end(),
            [](const candidate& a, const candidate& b) { return a.at > b.at; });
  std::uint64_t given = 0;
  for (const candidate& c : old) {
    const mutex_lock lock(mutex_);
    if (!phase_.serving()) break;
    {
      const block_store::locked books(blocks_);
      if (books.reserved() < keep_bytes + c.bytes) continue;
      // Another thread may have given it back, and its number may be another handle's by now.
      const auto& h = books.heap().handles()[c.id];
      if (!h.present || h.name != c.name) continue;
    }
    if (give_back_handle(c.id)) given += c.bytes;
  }
  return given;
}

// Takes the handle's spans out of use, then asks the driver. Where the driver refuses, what was
// unmapped is mapped again and the handle goes on as before.
bool physical_memory::give_back_handle(heap::handle_id id) {
  std::vector<heap::heap::mapping> mappings;
  physical_handle name = 0;
  std::uint64_t bytes = 0;
  {
    const block_store::locked books(blocks_);
    const auto& handle = books.heap().handles()[id];
    mappings = handle.mappings;
    name = handle.name;
    bytes = handle.bytes;
    if (!books.heap().hold_handle(id)) return false;  // taken meanwhile
  }
  call_result answer;
  std::size_t unmapped = 0;
  for (; unmapped < mappings.size(); ++unmapped) {
    answer = gpu_.unmap(mappings[unmapped].at, bytes);
    if (!answer.ok()) break;
  }
  if (answer.ok()) answer = release(name, bytes);
  if (!answer.ok()) {
    // Unmapped from some of its addresses but not given back: map it again.
    bool restored = true;
    for (std::size_t i = 0; i < unmapped; ++i) {
      restored = gpu_.map(mappings[i].at, bytes, name).ok() &&
                 gpu_.set_access(mappings[i].at, bytes, location()).ok() && restored;
    }
    if (restored) block_store::locked(blocks_).heap().let_go_handle(id);
    // Otherwise the addresses stay out of use until the pool is closed: nothing is handed out that
    // is not mapped.
    note_failure(to_error(answer, "giving back " + format_bytes(bytes)));
    return false;
  }
  const block_store::locked books(blocks_);
  static_cast<void>(books.heap().remove_handle(id));  // it is held: never refused
  books.remove_reserved(bytes);
  count_given_back(bytes);
  return true;
}

}  // namespace millpond
