// Growth: the driver calls that bring physical memory, each undone where a later one fails.
#include <algorithm>

#include "base/bits.hpp"
#include "driver/own_calls.hpp"
#include "millpond/base/units.hpp"
#include "millpond/memory/host_pinner.hpp"
#include "pool/growth/physical_memory.hpp"

namespace millpond {
namespace {

// For one more, before anything is changed that would be lost without it.
template <class Element>
void make_room(std::vector<Element>& in) {
  if (in.size() == in.capacity()) in.reserve(2 * in.size() + 8);
}

// A handle costs about 50 us to create and map and 36 to map again, whatever its size (H200, driver
// 580.159). While a program only takes memory, as when it loads weights, a few large handles serve;
// once it has given a part back they are to serve others too, and then there are to be many enough
// that a few in use keep little from the others, and few enough that the first round of a recorded
// workload costs no more than its peers'.
constexpr std::uint64_t handles_of_a_load = 8;
constexpr std::uint64_t handles_of_a_churn = 24;
constexpr std::uint64_t churn_share = 16;  // of the peak, given back at once
constexpr std::uint64_t smallest_bulk = 8 * MiB;
constexpr std::uint64_t largest_bulk = 64 * MiB;
// The unit in which a handle's pages can serve elsewhere: small against the pool, so that little is
// wasted, and not so small that planning has much to look at.
constexpr std::uint64_t spans_of_a_pool = 1024;
constexpr std::uint64_t smallest_chunk = 32 * MiB;

}  // namespace

physical_memory::physical_memory(driver& gpu, const pool_options& options, const pool_phase& phase,
                                 block_store& blocks)
    : gpu_(gpu),
      options_(options),
      phase_(phase),
      blocks_(blocks),
      limit_bytes_(options.limit_bytes) {
  const device_info& info = gpu_.info();
  if (!info.virtual_memory) return;
  if (options_.kind == memory_kind::device) granularity_ = info.granularity;
  if (options_.kind == memory_kind::pinned && !options_.host_memory)
    granularity_ = info.host_granularity;
}

result<void> physical_memory::open(std::shared_ptr<memory_budget::member> budget) {
  budget_ = std::move(budget);
  const own_calls_scope own_calls(gpu_);
  const mutex_lock lock(mutex_);
  if (granularity_ != 0) {
    if (auto made = open_primary(options_.initial_bytes); !made) return made;
  }
  if (options_.initial_bytes == 0) return {};
  return granularity_ != 0 ? extend(options_.initial_bytes) : add_chunk(options_.initial_bytes);
}

// A range of so many addresses, or of fewer where the process may not have them (a limit, a
// sanitizer): half each time, not below `least`.
result<device_address> physical_memory::reserve_addresses(std::uint64_t* bytes,
                                                          std::uint64_t least) {
  const std::uint64_t unit = std::max<std::uint64_t>(granularity_, 2 * MiB);
  *bytes = align_up(*bytes, unit);
  device_address base = 0;
  call_result answer = gpu_.address_reserve(&base, *bytes, 2 * MiB);
  while (!answer.ok() && answer.status == driver_status::out_of_memory &&
         align_down(*bytes / 2, unit) >= least) {
    *bytes = align_down(*bytes / 2, unit);
    answer = gpu_.address_reserve(&base, *bytes, 2 * MiB);
  }
  if (!answer.ok()) return to_error(answer, "reserving " + format_bytes(*bytes) + " of addresses");
  return base;
}

// A range of addresses for the primary view: twice the device's memory, so that holes left
// by trim never end it early. Addresses cost nothing until they are mapped. A range stays when
// nothing is mapped in it any more, for what comes next: who looks an address up takes no lock. The
// next one is opened when it is full.
result<void> physical_memory::open_primary(std::uint64_t at_least) {
  {
    const block_store::locked books(blocks_);
    if (!books.heap().room_for_region()) return books.heap().why();
  }
  make_room(reservations_);
  std::uint64_t total = gpu_.info().total_bytes;
  if (options_.kind == memory_kind::pinned) total = std::max<std::uint64_t>(total, 256 * GiB);
  std::uint64_t bytes = std::max(2 * total, 2 * at_least);
  const auto base = reserve_addresses(&bytes, std::max<std::uint64_t>(2 * at_least, GiB));
  if (!base) return base.error();
  {
    const block_store::locked books(blocks_);
    const heap::view_id made = books.heap().open_view(*base, bytes);
    if (made != heap::no_view) {
      books.set_primary(made);
      reservations_.emplace_back(*base, bytes);
      return {};
    }
  }
  static_cast<void>(gpu_.address_free(*base, bytes));
  return block_store::locked(blocks_).heap().why();
}

void physical_memory::note_failure(error what) {
  const mutex_lock lock(failure_mutex_);
  last_failure_ = std::move(what);
}
error physical_memory::last_failure() const {
  const mutex_lock lock(failure_mutex_);
  return last_failure_;
}

// Where the fewest new bytes make room for the request: in a hole that a handle has left, or at the
// end of the primary range.
heap::heap::place physical_memory::place_for(const block_store::locked& books,
                                             const block_request& what) const {
  const heap::heap& in = books.heap();
  const heap::view_id primary = books.primary();
  const std::uint64_t need = what.most_bytes();
  const std::uint64_t unit = std::max<std::uint64_t>(granularity_, heap::granule);
  heap::heap::place end;
  end.missing = align_up(need, unit);
  if (primary == heap::no_view) return end;
  end = {primary, in.views()[primary].end, 0,
         align_up(need - std::min(need, in.tail_bytes(primary, what.owner)), unit)};
  const heap::heap::place hole = in.hole_for(need, what.owner, unit);
  const bool full = in.vacant_at(primary, end.at) < end.missing + largest_bulk;
  return hole.view != heap::no_view && (full || hole.missing <= end.missing) ? hole : end;
}

bool physical_memory::would_pass_slack(const block_request& what) {
  const block_store::locked books(blocks_);
  return books.passes_slack(what.size, place_for(books, what).missing);
}

// How large the next handle is: bulk as far as the slack goes, then just what is missing.
std::uint64_t physical_memory::piece_bytes(const block_store::locked& books, std::uint64_t reserved,
                                           std::uint64_t missing) const {
  const std::uint64_t handles =
      books.fallen() > books.peak_carved() / churn_share ? handles_of_a_churn : handles_of_a_load;
  const std::uint64_t bulk =
      align_up(std::clamp(reserved / handles, smallest_bulk, largest_bulk), granularity_);
  const std::uint64_t least = std::min(align_up(missing, granularity_), bulk);
  // Ahead of need only while the peak itself rises: what is missing below it is missing for being
  // in pieces.
  const std::uint64_t allowed =
      books.carved() + missing >= books.peak_carved() ? books.allowed_bytes(missing) : 0;
  const std::uint64_t room = allowed > reserved ? align_down(allowed - reserved, granularity_) : 0;
  return std::max(least, std::min(bulk, room));
}

std::uint64_t physical_memory::span_bytes(const block_store::locked& books) const {
  std::uint64_t out = granularity_;
  while (2 * out <= books.reserved() / spans_of_a_pool) out *= 2;
  return out;
}

physical_memory::growth physical_memory::grow(const block_request& what, heap::extent** block) {
  const mutex_lock lock(mutex_);
  const auto because = [&](const result<void>& grown) {
    if (!grown) note_failure(grown.error());
    return grown ? growth::more : growth::none;
  };
  if (!phase_.serving()) {
    note_failure({error_code::not_permitted, "the pool does not serve"});
    return growth::none;
  }
  if (granularity_ == 0) return because(add_chunk(what.most_bytes()));
  heap::heap::place where;
  std::uint64_t pieces = 0;
  bool pays = false;
  {
    const block_store::locked books(blocks_);
    if (!books.heap().ready()) {  // no memory helps where there is no record for a block
      note_failure(books.heap().why());
      return growth::none;
    }
    where = place_for(books, what);
    if (where.missing == 0) return growth::more;  // another thread grew meanwhile
    pieces = divide_up(where.missing, piece_bytes(books, books.reserved(), where.missing));
    pays = books.reserved() + where.missing <= books.allowed_bytes(what.size) &&
           !over_limit(books.reserved(), where.missing);
  }
  if (pays) {
    if (const growth moved = stitch(what, {.as_cheap_as = pieces}, block); moved != growth::none)
      return moved;
    if (because(extend(where)) == growth::more) return growth::more;
  }
  if (const growth moved = stitch(what, {.instead_of = where.missing}, block);
      moved != growth::none)
    return moved;
  return pays ? growth::none : because(extend(where));
}

heap::extent* physical_memory::stitched(const block_request& what) {
  const mutex_lock lock(mutex_);
  if (!phase_.serving()) return nullptr;  // the handles in the books may be gone
  heap::extent* block = nullptr;
  return stitch(what, {}, &block) == growth::block ? block : nullptr;
}

bool physical_memory::grow_for_later(const block_request& what) {
  const mutex_lock lock(mutex_);
  if (!phase_.serving()) return false;
  heap::heap::place where;
  where.missing = what.size;
  if (granularity_ != 0) where = place_for(block_store::locked(blocks_), what);
  if (where.missing == 0) return true;
  const auto grown = granularity_ != 0 ? extend(where) : add_chunk(where.missing);
  if (!grown) note_failure(grown.error());
  return grown.has_value();
}

// New memory on its way to a primary range. What has not entered the heap at the end goes back.
class physical_memory::extension {
 public:
  explicit extension(physical_memory& of) : of_(of) {}
  ~extension();
  extension(const extension&) = delete;
  extension& operator=(const extension&) = delete;
  // room: of the addresses that it is to be mapped at.
  result<void> create(std::uint64_t bytes, std::uint64_t room);
  result<void> map(device_address at);
  result<void> enter(const block_store::locked& books, heap::view_id view);

 private:
  struct piece {
    physical_handle name;
    std::uint64_t bytes;
  };
  physical_memory& of_;
  std::vector<piece> pieces_;
  std::vector<heap::handle_id> entered_;  // room for each piece
  std::uint64_t bytes_ = 0;
  device_address at_ = 0;
  std::uint64_t mapped_ = 0;  // of the bytes
};

physical_memory::extension::~extension() {
  std::uint64_t x = 0;
  for (const piece& p : pieces_) {
    if (x < mapped_) static_cast<void>(of_.gpu_.unmap(at_ + x, p.bytes));
    static_cast<void>(of_.release(p.name, p.bytes));
    x += p.bytes;
  }
}

result<void> physical_memory::extension::create(std::uint64_t bytes, std::uint64_t room) {
  while (bytes_ < bytes) {
    const std::uint64_t least = align_up(bytes - bytes_, of_.granularity_);
    std::uint64_t size = 0;
    std::uint64_t reserved = 0;
    {
      const block_store::locked books(of_.blocks_);
      reserved = books.reserved() + bytes_;
      size = of_.piece_bytes(books, reserved, bytes - bytes_);
    }
    size = std::min(size, room - bytes_);
    // The limit is met to the granule before it refuses.
    if (of_.over_limit(reserved, size)) size = std::min(size, least);
    if (of_.over_limit(reserved, size)) return of_.limit_error(reserved, least);
    make_room(pieces_);
    if (entered_.capacity() < pieces_.capacity()) entered_.reserve(pieces_.capacity());
    physical_handle handle = 0;
    call_result answer = of_.create(&handle, size);
    if (answer.status == driver_status::out_of_memory && size > least) {
      size = least;
      answer = of_.create(&handle, size);
    }
    if (!answer.ok()) return of_.growth_error(answer, size);
    pieces_.push_back({handle, size});
    bytes_ += size;
  }
  return {};
}

result<void> physical_memory::extension::map(device_address at) {
  at_ = at;
  for (const piece& p : pieces_) {
    if (const call_result answer = of_.gpu_.map(at + mapped_, p.bytes, p.name); !answer.ok())
      return to_error(answer, "mapping " + format_bytes(p.bytes));
    mapped_ += p.bytes;
  }
  if (const call_result answer = of_.gpu_.set_access(at, bytes_, of_.location()); !answer.ok())
    return to_error(answer, "giving access to " + format_bytes(bytes_));
  return {};
}

result<void> physical_memory::extension::enter(const block_store::locked& books,
                                               heap::view_id view) {
  heap::heap& in = books.heap();
  const std::uint64_t span = of_.span_bytes(books);
  for (const piece& p : pieces_) {
    const heap::handle_id id = in.add_handle(p.bytes, span, p.name);
    if (id == heap::no_handle) break;
    entered_.push_back(id);
  }
  if (entered_.size() < pieces_.size() || !in.map_handles(view, at_, entered_)) {
    // Mapped nowhere, so that this is never refused.
    for (const heap::handle_id id : entered_) static_cast<void>(in.remove_handle(id));
    return in.why();
  }
  of_.growths_.fetch_add(pieces_.size(), std::memory_order_relaxed);
  pieces_.clear();
  books.add_reserved(bytes_);
  books.note_growth();
  return {};
}

// So much new memory in the lowest hole that is long enough, or at the end of a primary range.
result<void> physical_memory::extend(std::uint64_t new_bytes) {
  heap::heap::place where =
      block_store::locked(blocks_).heap().lowest_hole(heap::view_kind::primary, new_bytes);
  where.missing = new_bytes;
  return extend(where);
}

// New memory at the place, or at the end of a primary range where something lies there by now or
// the range is full; all of it or nothing.
result<void> physical_memory::extend(heap::heap::place where) {
  const std::uint64_t bytes = where.missing;
  {
    const block_store::locked books(blocks_);
    const heap::heap& in = books.heap();
    const bool hole = where.view != heap::no_view && where.at != in.views()[where.view].end;
    where.room = hole ? in.vacant_at(where.view, where.at) : 0;
    if (where.room < bytes) where = end_with_room(books, bytes);
  }
  if (where.view == heap::no_view) {
    if (auto opened = open_primary(bytes + largest_bulk); !opened) return opened;
    where = end_with_room(block_store::locked(blocks_), bytes);
  }
  extension made(*this);
  if (auto created = made.create(bytes, where.room); !created) return created;
  if (auto mapped = made.map(where.at); !mapped) return mapped;
  return made.enter(block_store::locked(blocks_), where.view);
}

// The end of the primary view; where that is full, of another one that has given addresses back,
// which is the primary view from now on. no_view where none has room for so many bytes and a handle
// ahead of need.
heap::heap::place physical_memory::end_with_room(const block_store::locked& books,
                                                 std::uint64_t bytes) {
  const auto room_in = [&](const heap::heap::view_record& in) {
    return in.base + in.capacity - in.end;
  };
  const auto& views = books.heap().views();
  if (books.primary() == heap::no_view || room_in(views[books.primary()]) < bytes + largest_bulk) {
    heap::view_id other = 0;
    const auto serves = [&](const heap::heap::view_record& in) {
      return in.kind == heap::view_kind::primary && in.end < in.farthest_end &&
             room_in(in) >= bytes + largest_bulk;
    };
    while (other < views.size() && !serves(views[other])) ++other;
    if (other == views.size()) return {};
    books.set_primary(other);
  }
  const auto& in = views[books.primary()];
  return {books.primary(), in.end, room_in(in), bytes};
}

error physical_memory::limit_error(std::uint64_t reserved, std::uint64_t more) const {
  return {error_code::out_of_memory, "the pool's limit of " + format_bytes(limit_bytes()) +
                                         " would be passed: " + format_bytes(reserved) +
                                         " reserved, " + format_bytes(more) + " more needed"};
}

// Managed memory, or pinned where the driver maps no host handles. A chunk is one view of one span;
// it starts on 2 MiB, which the driver does not promise, so it is asked for larger.
result<void> physical_memory::add_chunk(std::uint64_t bytes) {
  std::uint64_t size = 0;
  {
    const block_store::locked books(blocks_);
    size = align_up(std::max({bytes, smallest_chunk, books.reserved() / 16}), 2 * MiB);
    if (over_limit(books.reserved(), size + 2 * MiB)) size = align_up(bytes, 2 * MiB);
    if (over_limit(books.reserved(), size + 2 * MiB))
      return limit_error(books.reserved(), size + 2 * MiB);
    // A chunk that the heap would not take in could not go back, since its free waits for the
    // device.
    if (!books.heap().prepare_chunk(size)) return books.heap().why();
  }
  make_room(reservations_);
  const std::uint64_t asked =
      options_.host_memory ? size : size + 2 * MiB;  // such a source's blocks start on 2 MiB
  if (!take_budget(asked))
    return growth_error({driver_status::out_of_memory, "memory_budget"}, asked);
  const auto start = chunk_from_driver(asked);
  if (!start) {
    give_budget(asked);
    return start.error();
  }
  reservations_.emplace_back(*start, asked);
  const block_store::locked books(blocks_);
  books.heap().enter_chunk(align_up(*start, 2 * MiB), size, *start);
  books.add_reserved(asked);
  growths_.fetch_add(1, std::memory_order_relaxed);
  return {};
}

result<device_address> physical_memory::chunk_from_driver(std::uint64_t bytes) {
  if (options_.host_memory) {
    const auto pinned = options_.host_memory->allocate(bytes);
    if (!pinned) return pinned.error();
    return reinterpret_cast<std::uintptr_t>(*pinned);
  }
  device_address start = 0;
  call_result answer;
  if (options_.kind == memory_kind::pinned) {
    void* host = nullptr;
    answer = gpu_.host_allocate(&host, bytes, driver::host_flags::none);
    start = reinterpret_cast<std::uintptr_t>(host);
  } else if (options_.kind == memory_kind::managed) {
    answer = gpu_.managed_allocate(&start, bytes);
  } else {
    answer = gpu_.memory_allocate(&start, bytes);
  }
  if (!answer.ok()) return to_error(answer, "growing the pool by " + format_bytes(bytes));
  return start;
}

void physical_memory::count(pool_statistics& out) const {
  out.growths = growths_.load(std::memory_order_relaxed);
  out.stitches = stitches_.load(std::memory_order_relaxed);
  out.stitch_reuses = stitch_reuses_.load(std::memory_order_relaxed);
  out.given_back_bytes = given_back_bytes_.load(std::memory_order_relaxed);
  out.soft_limit_passes = soft_limit_passes_.load(std::memory_order_relaxed);
  out.asleep_bytes = asleep_bytes();
}

}  // namespace millpond
