// The heap: where a block goes.
//
// Physical memory comes in handles (of the GPU's driver, or a chunk of pinned or managed memory).
// Each has its primary range in a primary view, where a block may cross from one handle into the
// next, and where blocks are placed. A handle's pages are kept in
// spans of some MiB. Where no stretch of a primary range is long enough, free spans from anywhere
// make one in a stitched view, where their handles are mapped once more: a block there takes its
// spans whole. While it lives they are closed in the primary view; with its end they are free in
// the primary view again, and the mapping stays, for the next such block. So a span is active
// through one mapping at a time and no two blocks share a page, a free page always lies where it
// belongs, and the same requests meet the same layout again. What is paid for is a handle's
// mapping, whatever its size; what is wasted is at most a span a stitched range. (Serving a page
// through several mappings at once was tried: it wastes a little less and made every call several
// times slower. Leaving free spans in their stitched ranges was tried: the layout never settles and
// new stitched ranges are needed for ever.)
//
// A free extent has an owner and a batch: anyone may have it (owner 0), or, until the owner's
// batch has passed, only its owner. The heap does not know what that means.
//
// Nothing here throws but the constructor. What takes memory on answers false, nullptr, no_view or
// no_handle where a table is full or the host has no memory for its books: then all is as before,
// and last_refusal() says why. What gives memory back asks for none: release, retire, reassign and
// let_go_handle cannot fail, nor can remove_handle of a handle that is held.
//
// Not thread-safe; find() and by_id() alone may be called by any thread at any time. allocate,
// release and find take constant time but for the bounded searches named in bins.hpp; the others
// walk.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "heap/address_index.hpp"
#include "heap/bins.hpp"
#include "heap/extent.hpp"
#include "heap/limits.hpp"
#include "millpond/base/result.hpp"

namespace millpond::heap {

using span_id = std::uint32_t;
using view_id = std::uint32_t;
using handle_id = std::uint32_t;
inline constexpr span_id no_span = ~span_id{0};
inline constexpr view_id no_view = ~view_id{0};
inline constexpr handle_id no_handle = ~handle_id{0};

enum class view_kind : std::uint8_t {
  primary,   // blocks are placed here
  stitched,  // spans of primary ranges side by side: allocate_stitched
};

// Whether a free neighbour that anyone may have is swallowed by one that only its owner may have.
// With one stream in the pool it costs nothing and keeps free memory in one piece; with several it
// would hide idle memory from the others.
enum class absorb_idle : std::uint8_t { no, yes };

// What an allocation may take.
enum class reach : std::uint8_t {
  own_and_idle,  // what is free for its owner and what anyone may have
  own,           // its owner's alone
};

class heap {
 public:
  // Throws std::bad_alloc where the host has no memory for the tables.
  explicit heap(const limits& most = limits_of_new_heaps());

  // Addresses that views may be made in.
  [[nodiscard]] bool add_region(std::uint64_t base, std::uint64_t bytes) noexcept;
  // Whether there is room for one more, before addresses are asked for.
  [[nodiscard]] bool room_for_region() noexcept {
    if (index_.full()) refused_ = refusal::regions;
    return !index_.full();
  }
  // An empty view [base, base + capacity) of a region.
  [[nodiscard]] view_id add_view(std::uint64_t base, std::uint64_t capacity,
                                 view_kind kind = view_kind::primary) noexcept;
  // A region and a view of all of it, or neither.
  [[nodiscard]] view_id open_view(std::uint64_t base, std::uint64_t bytes,
                                  view_kind kind = view_kind::primary) noexcept;
  // Before blocks are released to the owner, or reassigned to it. Anyone's and those of before are
  // open.
  [[nodiscard]] bool open_owner(owner_id owner) noexcept;
  // Physical memory, mapped nowhere yet. name: the caller's. span_bytes: of its spans, but for the
  // last.
  [[nodiscard]] handle_id add_handle(std::uint64_t bytes, std::uint64_t span_bytes,
                                     std::uint64_t name) noexcept;
  // The handles, all different, are mapped at this address side by side, or none is: the first time
  // in a primary range, then in stitched ranges; at the end of a view or at the start of a hole.
  [[nodiscard]] bool map_handles(view_id view, std::uint64_t at,
                                 std::span<const handle_id> handles) noexcept;
  [[nodiscard]] bool map_handle(view_id view, std::uint64_t at, handle_id handle) noexcept {
    return map_handles(view, at, {&handle, 1});
  }
  // A region, a view of all of it and one handle of one span that fills it, in two steps, of which
  // the second cannot fail: for memory that could not be given back. No view or handle is added in
  // between.
  [[nodiscard]] bool prepare_chunk(std::uint64_t bytes) noexcept;
  void enter_chunk(std::uint64_t base, std::uint64_t bytes, std::uint64_t name) noexcept;
  // Takes the handle, which anyone may have all of, out of use, so that it can be unmapped. false
  // where a part is not anyone's. Then either of the next two.
  [[nodiscard]] bool hold_handle(handle_id handle) noexcept;
  void let_go_handle(handle_id handle) noexcept;
  // Forgets the handle and all its mappings. A hole remains, or the view gets shorter. One that is
  // not held yet is held first.
  [[nodiscard]] bool remove_handle(handle_id handle) noexcept;
  // One more handle and one more block can be taken on.
  [[nodiscard]] bool ready() noexcept { return provide(5); }
  [[nodiscard]] refusal last_refusal() const noexcept { return refused_; }
  // The same as an error, out_of_memory.
  [[nodiscard]] error why() const;

  // nullptr where nothing fits. bytes: a multiple of the granule; alignment: a power of two. from
  // zone::small: where a small stretch has room, or can be made, there; a stretch that is wholly
  // free again is general memory.
  [[nodiscard]] extent* allocate(std::uint64_t bytes, std::uint64_t alignment, owner_id owner,
                                 reach of = reach::own_and_idle,
                                 zone from = zone::general) noexcept;
  // The same over runs of neighbouring extents with different batches; walks the views. The block
  // taken is safe for `owner` alone.
  [[nodiscard]] extent* allocate_run(std::uint64_t bytes, std::uint64_t alignment, owner_id owner,
                                     reach of = reach::own_and_idle) noexcept;
  // [at, at + bytes) of a stitched range, whole slots of different spans, as one block. nullptr,
  // and nothing done, where a span is not wholly free for `owner`.
  [[nodiscard]] extent* allocate_stitched(view_id view, std::uint64_t at, std::uint64_t bytes,
                                          owner_id owner) noexcept;
  // Exactly [at, at + bytes), where all of it is free for anyone; otherwise nullptr.
  [[nodiscard]] extent* allocate_at(std::uint64_t at, std::uint64_t bytes) noexcept;
  // owner anyone: free for all at once.
  void release(extent* block, owner_id owner, std::uint64_t batch, absorb_idle absorb) noexcept;
  // Free extents of `from` with a batch up to `until` become `to`'s, with the batch `batch`.
  void reassign(owner_id from, std::uint64_t until, owner_id to, std::uint64_t batch) noexcept;
  // Batches of the owner up to `completed` have passed.
  void retire(owner_id owner, std::uint64_t completed) noexcept;
  [[nodiscard]] extent* find(std::uint64_t start) const noexcept { return index_.exact(start); }
  [[nodiscard]] extent* by_id(std::uint32_t id) const noexcept { return index_.at(id); }
  // The used extent that covers the address, or nullptr. Under the caller's lock.
  [[nodiscard]] extent* covering(std::uint64_t address) const;
  // The extent that covers the address, used or not, or nullptr. Under the caller's lock.
  [[nodiscard]] const extent* extent_at(std::uint64_t address) const {
    return index_.covering(address);
  }
  [[nodiscard]] bool contains(std::uint64_t address) const noexcept {
    return index_.contains(address);
  }

  // Free bytes at the end of a view that `owner` may have, in one run.
  [[nodiscard]] std::uint64_t tail_bytes(view_id view, owner_id owner) const;

  // Where new memory may go.
  struct place {
    view_id view = no_view;
    std::uint64_t at = 0;
    std::uint64_t room = 0;     // addresses from there on without memory
    std::uint64_t missing = 0;  // the new bytes with which there is a run that is long enough
  };
  // The hole of a primary view that gives `owner` a run of `bytes` with the fewest new bytes, whole
  // units but for a hole that is filled; the lowest of several. no_view where none does.
  [[nodiscard]] place hole_for(std::uint64_t bytes, owner_id owner, std::uint64_t unit) const;
  // The lowest hole of at least so many bytes in a view of the kind; no_view where there is none.
  [[nodiscard]] place lowest_hole(view_kind kind, std::uint64_t bytes) const;
  // How many addresses from here on have no memory: at the start of a hole, or at the view's end.
  // Anywhere else 0.
  [[nodiscard]] std::uint64_t vacant_at(view_id view, std::uint64_t at) const;

  struct mapping {
    view_id view;
    std::uint64_t at;
  };
  struct span_record {
    std::uint64_t bytes = 0;
    handle_id handle = no_handle;
    mapping primary{};
    bool closed = false;  // in use through a stitched range
    bool mapped = false;  // has a primary range
    bool present = false;
  };
  struct handle_record {
    std::uint64_t bytes = 0;
    std::uint64_t name = 0;
    std::uint64_t span_bytes = 0;   // of its spans, but for the last
    std::vector<span_id> spans;     // by their place in the handle
    std::vector<mapping> mappings;  // of the whole handle, its primary range first
    bool present = false;
    bool held = false;  // by hold_handle
  };
  struct slot {
    std::uint64_t at;
    span_id span;  // no_span: a hole
    std::uint64_t bytes;
    bool active;  // the span's memory is used through this mapping: in the primary view, except
                  // where a stitched range uses it
  };
  struct placed_handle {
    std::uint64_t at;
    handle_id handle;
  };
  struct view_record {
    std::uint64_t base = 0;
    std::uint64_t capacity = 0;
    std::uint64_t end = 0;
    std::uint64_t farthest_end = 0;  // so far
    std::uint64_t mapped = 0;        // bytes of the handles here: the rest up to the end are holes
    view_kind kind = view_kind::primary;
    std::vector<slot> slots;             // by address, without gaps
    std::vector<placed_handle> handles;  // by address; a gap is a hole
    extent* first = nullptr;
    extent* last = nullptr;
  };
  // Whether all of the span is free for this owner.
  [[nodiscard]] bool wholly_free(span_id span, owner_id owner) const;
  // Whether a used extent lies in the handle, at least in part.
  [[nodiscard]] bool holds_used(handle_id handle) const;
  // The caller's name for a handle has changed.
  void rename_handle(handle_id handle, std::uint64_t name) noexcept {
    handles_[handle].name = name;
  }

  [[nodiscard]] const std::vector<span_record>& spans() const noexcept { return spans_; }
  [[nodiscard]] const std::vector<handle_record>& handles() const noexcept { return handles_; }
  [[nodiscard]] const std::vector<view_record>& views() const noexcept { return views_; }
  [[nodiscard]] std::uint64_t free_bytes(owner_id owner) const noexcept;
  [[nodiscard]] std::uint64_t largest_free(owner_id owner) const noexcept;
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept;
  // Of handles.
  [[nodiscard]] std::uint64_t mappings() const noexcept { return mappings_; }

  // Walks everything and stops the program at the first broken invariant.
  void check() const;

 private:
  class walker;  // of check()
  [[nodiscard]] bins& bins_of(owner_id owner, zone of) const noexcept;
  // nullptr where there are none.
  [[nodiscard]] bins* bins_if(owner_id owner, zone of) const noexcept {
    const auto& all = bins_[static_cast<unsigned>(of)];
    return owner < all.size() ? all[owner].get() : nullptr;
  }
  [[nodiscard]] extent* fit(std::uint64_t bytes, std::uint64_t alignment, owner_id owner, reach of,
                            zone from) const;
  [[nodiscard]] bool provide(std::size_t inserts) noexcept {
    const refusal answer = index_.provide(inserts);
    if (__builtin_expect(answer == refusal::none, 1)) return true;
    refused_ = answer;
    return false;
  }
  // Host memory that is asked for before anything is changed.
  template <class Ask>
  [[nodiscard]] bool ask_host(Ask&& ask) noexcept {
    try {
      ask();
      return true;
    } catch (const std::bad_alloc&) {
      refused_ = refusal::host_memory;
      return false;
    }
  }
  void merge(extent*& of, owner_id& owner, std::uint64_t& batch, absorb_idle absorb) noexcept;
  [[nodiscard]] static bool may_have(const extent& s, owner_id owner) noexcept {
    return s.state == extent_state::free && (s.owner == owner || s.owner == anyone);
  }
  // Each make(), and so each of what carve() leaves before and behind, is to be provided for.
  extent* make(view_id view, std::uint64_t at, std::uint64_t bytes, extent_state state,
               extent* before) noexcept;
  void unlink(extent* of) noexcept;
  void make_free(extent* of, owner_id owner, std::uint64_t batch) noexcept;
  void settle(extent* of, owner_id owner, std::uint64_t batch, absorb_idle absorb) noexcept;
  void leave_small(extent* left_over, absorb_idle absorb) noexcept;
  extent* join(extent* left, extent* right) noexcept;
  extent* carve(extent* from, std::uint64_t at, std::uint64_t bytes, extent_state to) noexcept;
  [[nodiscard]] extent* take(extent* from, std::uint64_t at, std::uint64_t bytes) noexcept;
  [[nodiscard]] std::size_t slot_index(const view_record& in, std::uint64_t address) const;
  handle_id enter_handle(handle_record&& made, std::uint64_t bytes, std::uint64_t span_bytes,
                         std::uint64_t name) noexcept;
  [[nodiscard]] bool provide_for_mapping(const view_record& in, std::uint64_t at,
                                         std::span<const handle_id> handles) noexcept;
  void map_one(view_id view, std::uint64_t at, handle_id handle) noexcept;
  void put_slots(view_record& in, std::uint64_t at, const handle_record& of) noexcept;
  void unmap_one(const mapping& from, const handle_record& of) noexcept;
  static void join_holes(view_record& in, std::size_t at) noexcept;
  void cut_end(view_record& in, std::uint64_t end) noexcept;
  template <class Visit>
  void each_hole(const view_record& in, Visit&& visit) const;
  // A closed extent begins at this address of the view, or none lies here.
  void cut(view_id view, std::uint64_t at) noexcept;
  struct stretch {
    view_id view;
    std::uint64_t at;
    std::uint64_t bytes;
  };
  // The primary ranges of the spans in these slots, neighbours taken together; valid until the next
  // call.
  [[nodiscard]] const std::vector<stretch>& primaries_of(const view_record& in, std::size_t first,
                                                         std::size_t last) noexcept;
  // The spans of a stretch of a primary range are used there, or not.
  void set_active(const stretch& primary, bool to) noexcept;
  static constexpr std::size_t inserts_of_close = 3;
  void close(const stretch& of, owner_id* owner, std::uint64_t* batch) noexcept;
  extent* make_closed(extent* block) noexcept;
  void release_stitched(extent* block, owner_id owner, std::uint64_t batch,
                        absorb_idle absorb) noexcept;

  address_index index_;
  std::array<std::vector<std::unique_ptr<bins>>, zones>
      bins_;  // by zone and owner; owner 0 is anyone
  std::vector<span_record> spans_;
  std::vector<span_id> unused_spans_;
  std::vector<handle_record> handles_;
  std::vector<handle_id> unused_handles_;
  std::vector<view_record> views_;
  std::uint64_t mappings_ = 0;
  std::vector<stretch> primaries_;  // of primaries_of; room for each span
  struct {
    view_record view;
    handle_record handle;
  } chunk_;  // prepared: room in its vectors
  refusal refused_ = refusal::none;
  const limits most_;
};

}  // namespace millpond::heap
