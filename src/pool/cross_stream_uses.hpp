// Blocks that more than their own stream uses: what record_use and a tag say of a live one, and the
// freed ones that wait until the streams that were named have passed.
//
// One record for a block, whatever is known of it. One lock, which is taken last of the pool's and
// is held over cuEventQuery alone.
#pragma once
#include <cstdint>
#include <list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mutex.hpp"
#include "heap/extent.hpp"
#include "order/event_cache.hpp"

namespace millpond {

struct stream_state;

class cross_stream_uses {
 public:
  // A stream by its identity, since the handle may be another's by the time of the free.
  struct recorded_use {
    stream_handle handle;
    std::uint64_t stream_id;  // unidentified: it could not be asked, beside a capture
  };
  static constexpr std::uint64_t unidentified = ~std::uint64_t{0};

  // Adds to the block's record, then makes it special by `change`, which answers false where the
  // block is not live any more: then nothing is known of it, and the answer is false. bad_alloc,
  // with nothing changed, where there is no host memory.
  template <class Change>
  [[nodiscard]] bool add_use(heap::extent* block, recorded_use use, Change&& change) {
    const mutex_lock lock(mutex_);
    auto& uses = records_[block].uses;
    bool known = false;
    for (const recorded_use& u : uses) {
      known = known || (u.stream_id == use.stream_id &&
                        (use.stream_id != unidentified || u.handle == use.handle));
    }
    if (!known) uses.push_back(use);
    if (change()) return true;
    records_.erase(block);
    return false;
  }
  template <class Change>
  [[nodiscard]] bool set_tag(heap::extent* block, std::string_view tag, Change&& change) {
    std::string kept(tag);
    const mutex_lock lock(mutex_);
    record& of = records_[block];
    of.tag = std::move(kept);
    of.tagged = true;
    if (change()) return true;
    records_.erase(block);
    return false;
  }
  // The block is freed: the streams that its free has to wait for. Nothing is known of it any more.
  [[nodiscard]] std::vector<recorded_use> take(heap::extent* block) noexcept;
  // Tagged blocks, and whether `drop` names their tags.
  [[nodiscard]] std::unordered_map<const heap::extent*, bool> tagged(
      const std::vector<std::string>& drop);

  // A freed block, and the events that it waits for.
  struct waiting {
    heap::extent* block = nullptr;
    stream_state* freed_on = nullptr;
    std::vector<event_handle> events;
  };
  void wait(std::list<waiting>& one) noexcept;
  // Those whose events have all passed.
  [[nodiscard]] std::list<waiting> poll(driver& gpu, order::event_cache& events) noexcept;
  // Of the blocks that wait.
  [[nodiscard]] std::uint64_t waiting_bytes() noexcept;
  // The event of one that waits; nullptr where none does.
  [[nodiscard]] event_handle nearest() noexcept;
  // Gives the events back without asking: the device was synchronised.
  void drain(order::event_cache& events) noexcept;

 private:
  struct record {
    bool tagged = false;
    std::string tag;
    std::vector<recorded_use> uses;
  };
  mutex mutex_;
  std::unordered_map<heap::extent*, record> records_ MILLPOND_GUARDED_BY(mutex_);
  std::list<waiting> waiting_ MILLPOND_GUARDED_BY(mutex_);
  std::uint64_t waiting_bytes_ MILLPOND_GUARDED_BY(mutex_) = 0;
};

}  // namespace millpond
