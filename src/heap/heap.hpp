// The heap: where a block goes.
//
// Physical memory comes in spans (a GPU handle, or a chunk of pinned or managed memory). A span is mapped into one or
// more views, windows of addresses; a block lies in one view and may cross from one span into the next.
// A span that is mapped several times is active in one place only, so that no two blocks share a byte: its other
// mappings are dormant. A span that is wholly free moves to any of its mappings at no cost. (Serving one span
// through several mappings at once was tried: it wastes a little less and made every call several times slower.)
//
// A free segment has an owner and a batch: anyone may have it (owner 0), or, until the owner's batch has
// passed, only its owner. The heap does not know what that means.
//
// Not thread-safe; find() and by_id() alone may be called by any thread at any time. allocate, release and find take
// constant time but for the bounded searches named in bins.hpp; the others walk.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "heap/address_index.hpp"
#include "heap/bins.hpp"
#include "heap/segment.hpp"

namespace millpond::heap {

using span_id = std::uint32_t;
using view_id = std::uint32_t;
inline constexpr span_id no_span = ~span_id{0};

struct heap_options {
  // From this size on a block goes to the lowest address that fits instead of the tightest hole: large
  // blocks then keep to one end, which cut the number of moved pages on recorded traces threefold.
  std::uint64_t first_fit_from = std::uint64_t{8} << 20;
};

// Whether a free neighbour that anyone may have is swallowed by one that only its owner may have. With one
// stream in the pool it costs nothing and keeps free memory in one piece; with several it would hide idle memory
// from the others.
enum class absorb_idle : std::uint8_t { no, yes };

class heap {
 public:
  explicit heap(heap_options options = {});

  // Addresses that views may be made in.
  void add_region(std::uint64_t base, std::uint64_t bytes) { index_.add_region(base, bytes); }
  [[nodiscard]] bool regions_full() const noexcept { return index_.full(); }
  // An empty window [base, base + capacity) of a region.
  view_id add_view(std::uint64_t base, std::uint64_t capacity);
  // Physical memory, mapped nowhere yet. handle: the caller's name for it.
  span_id add_span(std::uint64_t bytes, std::uint64_t handle);

  // The span is mapped at this address of the view: at its end, or in a hole of at least the span's size, at the hole's
  // start. It is active there if it was mapped nowhere or is wholly free for `owner`, and dormant where it was;
  // otherwise the new mapping is dormant. True where it is active.
  bool map_span(view_id view, std::uint64_t at, span_id span, owner_id owner = anyone);
  // The dormant mapping at this address becomes the active one of its span. False, and nothing done, where the span is
  // not wholly free for `owner`.
  bool activate(view_id view, std::uint64_t at, owner_id owner);
  // The mapping is gone; no used segment lies in it. A hole remains, or the view gets shorter.
  void unmap_span(view_id view, std::uint64_t at);
  // Forgets a span that is mapped nowhere.
  void remove_span(span_id span);

  // nullptr where nothing fits. bytes: a multiple of the granule; alignment: a power of two.
  [[nodiscard]] segment* allocate(std::uint64_t bytes, std::uint64_t alignment, owner_id owner);
  // The same over runs of neighbouring segments with different batches; walks the views. The block taken is
  // safe for `owner` alone.
  [[nodiscard]] segment* allocate_run(std::uint64_t bytes, std::uint64_t alignment, owner_id owner);
  // Exactly [at, at + bytes), where all of it is free for anyone; otherwise nullptr.
  [[nodiscard]] segment* allocate_at(std::uint64_t at, std::uint64_t bytes);
  // owner anyone: free for all at once.
  void release(segment* block, owner_id owner, std::uint64_t batch, absorb_idle absorb);
  // Free segments of `from` with a batch up to `until` become `to`'s, with the batch `batch`.
  void reassign(owner_id from, std::uint64_t until, owner_id to, std::uint64_t batch);
  // Batches of the owner up to `completed` have passed.
  void retire(owner_id owner, std::uint64_t completed);
  [[nodiscard]] segment* find(std::uint64_t start) const noexcept { return index_.exact(start); }
  [[nodiscard]] segment* by_id(std::uint32_t id) const noexcept { return index_.at(id); }
  // The used segment that covers the address, or nullptr. Under the caller's lock.
  [[nodiscard]] segment* covering(std::uint64_t address) const;
  [[nodiscard]] bool contains(std::uint64_t address) const noexcept { return index_.contains(address); }

  // Free bytes at the end of a view that `owner` may have, in one run.
  [[nodiscard]] std::uint64_t tail_bytes(view_id view, owner_id owner) const;

  // Free bytes that `owner` may have in a row just before `end`, not below `start`; and just after `start`, not past `end`.
  [[nodiscard]] std::uint64_t free_before(std::uint64_t end, std::uint64_t start, owner_id owner) const;
  [[nodiscard]] std::uint64_t free_after(std::uint64_t start, std::uint64_t end, owner_id owner) const;

  struct mapping {
    view_id view;
    std::uint64_t at;
  };
  struct span_record {
    std::uint64_t bytes = 0;
    std::uint64_t handle = 0;
    std::vector<mapping> mappings;
    std::size_t active = 0;  // of mappings
    bool present = false;
    [[nodiscard]] const mapping& home() const { return mappings[active]; }
  };
  struct slot {
    std::uint64_t at;
    span_id span;  // no_span: a hole
    std::uint64_t bytes;
    bool active;   // the span's memory is used through this mapping
  };
  struct view_record {
    std::uint64_t base = 0;
    std::uint64_t capacity = 0;
    std::uint64_t end = 0;
    std::vector<slot> slots;  // by address, without gaps
    segment* first = nullptr;
    segment* last = nullptr;
  };
  // Whether all of the span is free for this owner.
  [[nodiscard]] bool wholly_free(span_id span, owner_id owner) const;

  [[nodiscard]] const std::vector<span_record>& spans() const noexcept { return spans_; }
  [[nodiscard]] const std::vector<view_record>& views() const noexcept { return views_; }
  [[nodiscard]] std::uint64_t free_bytes(owner_id owner) const noexcept;
  [[nodiscard]] std::uint64_t largest_free(owner_id owner) const noexcept;
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept;
  [[nodiscard]] std::uint64_t mappings() const noexcept { return mappings_; }

  // Walks everything and stops the program at the first broken invariant.
  void check() const;

 private:
  [[nodiscard]] bins& bins_of(owner_id owner);
  [[nodiscard]] static bool may_have(const segment& s, owner_id owner) noexcept {
    return s.state == segment_state::free && (s.owner == owner || s.owner == anyone);
  }
  segment* make(view_id view, std::uint64_t at, std::uint64_t bytes, segment_state state, segment* before);
  void unlink(segment* of);
  void make_free(segment* of, owner_id owner, std::uint64_t batch);
  void settle(segment* of, owner_id owner, std::uint64_t batch, absorb_idle absorb);
  segment* join(segment* left, segment* right);
  segment* carve(segment* from, std::uint64_t at, std::uint64_t bytes, segment_state to);
  segment* take(segment* from, std::uint64_t bytes, std::uint64_t alignment);
  [[nodiscard]] std::size_t slot_index(const view_record& in, std::uint64_t address) const;
  // Takes a wholly free span's segments away from its active mapping; what they were is left in owner and batch.
  void deactivate(span_id span, owner_id* owner, std::uint64_t* batch);
  void open_slot(view_id view, std::uint64_t at, std::uint64_t bytes, segment* before, owner_id owner, std::uint64_t batch);

  heap_options options_;
  address_index index_;
  std::vector<std::unique_ptr<bins>> bins_;  // by owner; [0] is anyone's
  std::vector<span_record> spans_;
  std::vector<span_id> unused_spans_;
  std::vector<view_record> views_;
  std::uint64_t mappings_ = 0;
};

}  // namespace millpond::heap
