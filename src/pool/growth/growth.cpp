// Growth: the driver calls that bring physical memory, each undone where a later one fails.
#include <algorithm>

#include "base/bits.hpp"
#include "driver/relaxed_capture.hpp"
#include "millpond/base/units.hpp"
#include "millpond/memory/host_pinner.hpp"
#include "pool/core.hpp"

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
// What mapping costs does not grow with the pool, so neither does what is kept to save it.
constexpr std::uint64_t slack_counts_to = 3 * GiB;
// A pool of a few MiB would otherwise empty its caches for every other request.
constexpr std::uint64_t least_slack = 8 * MiB;
// What a cache may keep of a small pool, where the options leave it open.
constexpr std::uint64_t least_small_cache = 1 * MiB;
constexpr std::uint64_t least_large_cache = 4 * MiB;
constexpr std::uint64_t small_pool_a_cache =
    32 * MiB;  // up to here what caches keep is most of what there is
constexpr std::uint64_t least_small_share = 256 * KiB;
constexpr std::uint64_t least_large_share = 1 * MiB;
// The unit in which a handle's pages can serve elsewhere: small against the pool, so that little is
// wasted, and not so small that planning has much to look at.
constexpr std::uint64_t spans_of_a_pool = 1024;
constexpr std::uint64_t smallest_chunk = 32 * MiB;

}  // namespace

pool::core::core(std::shared_ptr<driver> gpu, pool_options options)
    : gpu_(std::move(gpu)), options_(std::move(options)), events_(*gpu_) {
  limbo_.batches = std::make_shared<order::stream_batches>(0, nullptr);
  limbo_.batches->set_gone();
  limbo_.owner = new_owner();
  cache_small_.store(
      options_.cache_small_bytes != 0 ? options_.cache_small_bytes : least_small_cache,
      std::memory_order_relaxed);
  cache_large_.store(
      options_.cache_large_bytes != 0 ? options_.cache_large_bytes : least_large_cache,
      std::memory_order_relaxed);
}

pool::core::~core() = default;

result<void> pool::core::open() {
  join_budget();
  const device_info& info = gpu_->info();
  if (info.virtual_memory) {
    if (options_.kind == memory_kind::device) granularity_ = info.granularity;
    if (options_.kind == memory_kind::pinned && !options_.host_memory)
      granularity_ = info.host_granularity;
  }
  if (granularity_ != 0) {
    const std::lock_guard lock(growth_mutex_);
    if (auto made = open_primary(options_.initial_bytes); !made) return made;
  }
  if (options_.initial_bytes > 0) {
    const relaxed_capture_scope relaxed(*gpu_);
    const std::lock_guard lock(growth_mutex_);
    return granularity_ != 0 ? extend(options_.initial_bytes) : add_chunk(options_.initial_bytes);
  }
  return {};
}

// A range of addresses for the primary view: twice the device's memory, so that holes left
// by trim never end it early. Addresses cost nothing until they are mapped. A range stays when
// nothing is mapped in it any more, for what comes next: who looks an address up takes no lock.
result<void> pool::core::open_primary(std::uint64_t at_least) {
  {
    const std::lock_guard lock(heap_mutex_);
    if (!heap_.room_for_region()) return heap_.why();
  }
  make_room(reservations_);
  std::uint64_t total = gpu_->info().total_bytes;
  if (options_.kind == memory_kind::pinned) total = std::max<std::uint64_t>(total, 256 * GiB);
  std::uint64_t bytes =
      align_up(std::max(2 * total, 2 * at_least), std::max<std::uint64_t>(granularity_, 2 * MiB));
  device_address base = 0;
  const relaxed_capture_scope relaxed(*gpu_);
  // Where the process may not have so many addresses (a limit, a sanitizer) a smaller range
  // serves; the next one is opened when it is full.
  call_result answer = gpu_->address_reserve(&base, bytes, 2 * MiB);
  const std::uint64_t least = std::max<std::uint64_t>(2 * at_least, GiB);
  while (!answer.ok() && answer.status == driver_status::out_of_memory && bytes / 2 >= least) {
    bytes = align_down(bytes / 2, std::max<std::uint64_t>(granularity_, 2 * MiB));
    answer = gpu_->address_reserve(&base, bytes, 2 * MiB);
  }
  if (!answer.ok()) return to_error(answer, "reserving " + format_bytes(bytes) + " of addresses");
  {
    const std::lock_guard lock(heap_mutex_);
    const heap::view_id made = heap_.open_view(base, bytes);
    if (made != heap::no_view) {
      primary_ = made;
      has_primary_ = true;
      reservations_.emplace_back(base, bytes);
      return {};
    }
  }
  static_cast<void>(gpu_->address_free(base, bytes));
  const std::lock_guard lock(heap_mutex_);
  return heap_.why();
}

void pool::core::note_failure(error what) {
  const std::lock_guard lock(heap_mutex_);
  last_failure_ = std::move(what);
}
void pool::core::note_fence_failure(error what) {
  const std::lock_guard lock(heap_mutex_);
  last_fence_failure_ = std::move(what);
}

// Under heap_mutex_. How much more than its peak the pool may reserve for a request of `size`, for
// the sake of speed, where the slack counts so many times.
std::uint64_t pool::core::slack_bytes(std::uint64_t size, std::uint32_t times) const {
  const double peak =
      static_cast<double>(std::min(std::max(peak_carved_, carved_ + size), slack_counts_to));
  return std::max(static_cast<std::uint64_t>(options_.slack * times * peak), least_slack);
}

// Under heap_mutex_. What the pool may reserve for a request of `size` before it rather reclaims
// what it has. Where threads queue, all of them wait for what a reclaim costs: there the slack
// counts once for each. Where reclaiming does not end the slack counts from what is reserved.
std::uint64_t pool::core::allowed_bytes(std::uint64_t size) const {
  const std::uint64_t peak = std::max(peak_carved_, carved_ + size);
  const std::uint64_t granted = std::min(
      reclaims_.granted_bytes(), peak + slack_bytes(size, contention_estimate::most_slack_times));
  return std::max(peak + slack_bytes(size, queue_.slack_times()), granted);
}

// Under heap_mutex_. Where the fewest new bytes make room for the request: in a hole that a handle
// has left, or at the end of the primary range.
heap::heap::place pool::core::place_for(const request& what) const {
  const std::uint64_t need =
      what.size + (what.alignment > heap::granule ? what.alignment - heap::granule : 0);
  const std::uint64_t unit = std::max<std::uint64_t>(granularity_, heap::granule);
  heap::heap::place end;
  end.missing = align_up(need, unit);
  if (!has_primary_) return end;
  end = {primary_, heap_.views()[primary_].end, 0,
         align_up(need - std::min(need, heap_.tail_bytes(primary_, what.owner)), unit)};
  const heap::heap::place hole = heap_.hole_for(need, what.owner, unit);
  const bool full = heap_.vacant_at(primary_, end.at) < end.missing + largest_bulk;
  return hole.view != heap::no_view && (full || hole.missing <= end.missing) ? hole : end;
}

// Under heap_mutex_. How large the next handle is: bulk as far as the slack goes, then just what is
// missing.
std::uint64_t pool::core::piece_bytes(std::uint64_t reserved, std::uint64_t missing) const {
  const std::uint64_t handles =
      fallen_ > peak_carved_ / churn_share ? handles_of_a_churn : handles_of_a_load;
  const std::uint64_t bulk =
      align_up(std::clamp(reserved / handles, smallest_bulk, largest_bulk), granularity_);
  const std::uint64_t least = std::min(align_up(missing, granularity_), bulk);
  // Ahead of need only while the peak itself rises: what is missing below it is missing for being
  // in pieces.
  const std::uint64_t allowed = carved_ + missing >= peak_carved_ ? allowed_bytes(missing) : 0;
  const std::uint64_t room = allowed > reserved ? align_down(allowed - reserved, granularity_) : 0;
  return std::max(least, std::min(bulk, room));
}

// Under heap_mutex_.
std::uint64_t pool::core::span_bytes() const {
  std::uint64_t out = granularity_;
  while (2 * out <= reserved_ / spans_of_a_pool) out *= 2;
  return out;
}

// Makes room for a request: at the end of the primary range while that stays within the slack, or
// by stitching where that costs no more; beyond the slack by stitching, which may answer the block
// itself; else by more memory. last_failure_ says why there is none.
pool::core::growth pool::core::grow(const request& what, heap::extent** block) {
  const std::lock_guard lock(growth_mutex_);
  if (!serving()) {
    note_failure(not_serving());
    return growth::none;
  }
  if (granularity_ == 0) {
    const auto grown = add_chunk(
        what.size + (what.alignment > heap::granule ? what.alignment - heap::granule : 0));
    if (!grown) note_failure(grown.error());
    return grown ? growth::more : growth::none;
  }
  heap::heap::place where;
  std::uint64_t missing = 0;
  std::uint64_t pieces = 0;
  bool pays = false;
  {
    const std::lock_guard heap_lock(heap_mutex_);
    if (!heap_.ready()) {  // no memory helps where there is no record for a block
      last_failure_ = heap_.why();
      return growth::none;
    }
    where = place_for(what);
    missing = where.missing;
    if (missing == 0) return growth::more;  // another thread grew meanwhile
    pieces = divide_up(missing, piece_bytes(reserved_, missing));
    pays = reserved_ + missing <= allowed_bytes(what.size) && !over_limit(reserved_, missing);
  }
  if (pays) {
    if (const growth moved = stitch(what, {.as_cheap_as = pieces}, block); moved != growth::none)
      return moved;
    const auto grown = extend(where);
    if (grown) return growth::more;
    note_failure(grown.error());
  }
  if (const growth moved = stitch(what, {.instead_of = missing}, block); moved != growth::none)
    return moved;
  if (pays) return growth::none;
  const auto grown = extend(where);
  if (!grown) note_failure(grown.error());
  return grown ? growth::more : growth::none;
}

// New memory on its way to a primary range. What has not entered the heap at the end goes back.
class pool::core::extension {
 public:
  explicit extension(core& of) : of_(of) {}
  ~extension();
  extension(const extension&) = delete;
  extension& operator=(const extension&) = delete;
  // room: of the addresses that it is to be mapped at.
  result<void> create(std::uint64_t bytes, std::uint64_t room);
  result<void> map(device_address at);
  // Under the heap mutex.
  result<void> enter_heap(heap::view_id view);

 private:
  struct piece {
    physical_handle name;
    std::uint64_t bytes;
  };
  core& of_;
  std::vector<piece> pieces_;
  std::vector<heap::handle_id> entered_;  // room for each piece
  std::uint64_t bytes_ = 0;
  device_address at_ = 0;
  std::uint64_t mapped_ = 0;  // of the bytes
};

pool::core::extension::~extension() {
  std::uint64_t x = 0;
  for (const piece& p : pieces_) {
    if (x < mapped_) static_cast<void>(of_.gpu_->unmap(at_ + x, p.bytes));
    static_cast<void>(of_.release_physical(p.name, p.bytes));
    x += p.bytes;
  }
}

result<void> pool::core::extension::create(std::uint64_t bytes, std::uint64_t room) {
  while (bytes_ < bytes) {
    const std::uint64_t least = align_up(bytes - bytes_, of_.granularity_);
    std::uint64_t size = 0;
    std::uint64_t reserved = 0;
    {
      const std::lock_guard lock(of_.heap_mutex_);
      reserved = of_.reserved_ + bytes_;
      size = of_.piece_bytes(reserved, bytes - bytes_);
    }
    size = std::min(size, room - bytes_);
    // The limit is met to the granule before it refuses.
    if (of_.over_limit(reserved, size)) size = std::min(size, least);
    if (of_.over_limit(reserved, size)) {
      return error{error_code::out_of_memory,
                   "the pool's limit of " + format_bytes(of_.limit_bytes()) +
                       " would be passed: " + format_bytes(reserved) + " reserved, " +
                       format_bytes(least) + " more needed"};
    }
    make_room(pieces_);
    if (entered_.capacity() < pieces_.capacity()) entered_.reserve(pieces_.capacity());
    physical_handle handle = 0;
    call_result answer = of_.create_physical(&handle, size);
    if (answer.status == driver_status::out_of_memory && size > least) {
      size = least;
      answer = of_.create_physical(&handle, size);
    }
    if (!answer.ok()) return of_.growth_error(answer, size);
    pieces_.push_back({handle, size});
    bytes_ += size;
  }
  return {};
}

result<void> pool::core::extension::map(device_address at) {
  at_ = at;
  for (const piece& p : pieces_) {
    if (const call_result answer = of_.gpu_->map(at + mapped_, p.bytes, p.name); !answer.ok())
      return to_error(answer, "mapping " + format_bytes(p.bytes));
    mapped_ += p.bytes;
  }
  if (const call_result answer = of_.gpu_->set_access(at, bytes_, of_.location()); !answer.ok())
    return to_error(answer, "giving access to " + format_bytes(bytes_));
  return {};
}

result<void> pool::core::extension::enter_heap(heap::view_id view) {
  heap::heap& books = of_.heap_;
  const std::uint64_t span = of_.span_bytes();
  for (const piece& p : pieces_) {
    const heap::handle_id id = books.add_handle(p.bytes, span, p.name);
    if (id == heap::no_handle) break;
    entered_.push_back(id);
  }
  if (entered_.size() < pieces_.size() || !books.map_handles(view, at_, entered_)) {
    // Mapped nowhere, so that this is never refused.
    for (const heap::handle_id id : entered_) static_cast<void>(books.remove_handle(id));
    return books.why();
  }
  of_.counts_.growths.fetch_add(pieces_.size(), std::memory_order_relaxed);
  pieces_.clear();
  of_.reserved_ += bytes_;
  of_.peak_reserved_ = std::max(of_.peak_reserved_, of_.reserved_);
  of_.set_cache_limits();
  return {};
}

// Under growth_mutex_: so much new memory in the lowest hole that is long enough, or at the end of
// a primary range.
result<void> pool::core::extend(std::uint64_t new_bytes) {
  heap::heap::place where;
  {
    const std::lock_guard lock(heap_mutex_);
    where = heap_.lowest_hole(heap::view_kind::primary, new_bytes);
  }
  where.missing = new_bytes;
  return extend(where);
}

// Under growth_mutex_: new memory at the place, or at the end of a primary range where something
// lies there by now or the range is full; all of it or nothing.
result<void> pool::core::extend(heap::heap::place where) {
  const std::uint64_t bytes = where.missing;
  {
    const std::lock_guard lock(heap_mutex_);
    const bool hole = where.view != heap::no_view && where.at != heap_.views()[where.view].end;
    where.room = hole ? heap_.vacant_at(where.view, where.at) : 0;
    if (where.room < bytes) where = end_with_room(bytes);
  }
  if (where.view == heap::no_view) {
    if (auto opened = open_primary(bytes + largest_bulk); !opened) return opened;
    const std::lock_guard lock(heap_mutex_);
    where = end_with_room(bytes);
  }
  extension made(*this);
  if (auto created = made.create(bytes, where.room); !created) return created;
  if (auto mapped = made.map(where.at); !mapped) return mapped;
  const std::lock_guard lock(heap_mutex_);
  return made.enter_heap(where.view);
}

// Under growth_mutex_ and heap_mutex_: the end of the primary view; where that is full, of another
// one that has given addresses back, which is the primary view from now on. no_view where none has
// room for so many bytes and a handle ahead of need.
heap::heap::place pool::core::end_with_room(std::uint64_t bytes) {
  const auto room_in = [&](const heap::heap::view_record& in) {
    return in.base + in.capacity - in.end;
  };
  const auto& views = heap_.views();
  if (!has_primary_ || room_in(views[primary_]) < bytes + largest_bulk) {
    heap::view_id other = 0;
    const auto serves = [&](const heap::heap::view_record& in) {
      return in.kind == heap::view_kind::primary && in.end < in.farthest_end &&
             room_in(in) >= bytes + largest_bulk;
    };
    while (other < views.size() && !serves(views[other])) ++other;
    if (other == views.size()) return {};
    primary_ = other;
  }
  const auto& in = views[primary_];
  return {primary_, in.end, room_in(in), bytes};
}

// Under heap_mutex_. A cache may keep 0.5% of the peak in small blocks, where that is more than 1
// MiB, and 0.1% in large ones, where that is more than 4 MiB: those lie in the way of larger
// blocks. Several caches in a pool that is not small share 0.25% and 1%: four that kept 5 MiB each
// cost a recorded program of four streams 5% of its peak. A cache learns it when it next misses.
void pool::core::set_cache_limits() noexcept {
  const std::uint64_t caches =
      std::max<std::uint64_t>(1, cache_count_.load(std::memory_order_relaxed));
  std::uint64_t small = std::max(least_small_cache, peak_carved_ / 200);
  std::uint64_t large = std::max(least_large_cache, peak_carved_ / 1000);
  if (caches > 1 && peak_carved_ > caches * small_pool_a_cache) {
    small = std::min(small, std::max(least_small_share, peak_carved_ / 400 / caches));
    large = std::min(large, std::max(least_large_share, peak_carved_ / 100 / caches));
  }
  if (options_.cache_small_bytes == 0) cache_small_.store(small, std::memory_order_relaxed);
  if (options_.cache_large_bytes == 0) cache_large_.store(large, std::memory_order_relaxed);
}

// A program that gives everything back begins something new: what it needed before is no measure of
// what it may hold and keep from now on.
void pool::core::forget_peak() noexcept {
  const std::lock_guard lock(heap_mutex_);
  peak_out_ = std::max(peak_out_, peak_carved_);
  peak_carved_ = carved_;
  fallen_ = 0;
  reclaims_.forget();
  set_cache_limits();
}

// Under growth_mutex_: managed memory, or pinned where the driver maps no host handles. A chunk is
// one view of one span; it starts on 2 MiB, which the driver does not promise, so it is asked for
// larger.
result<void> pool::core::add_chunk(std::uint64_t bytes) {
  std::uint64_t size = 0;
  {
    const std::lock_guard lock(heap_mutex_);
    size = align_up(std::max({bytes, smallest_chunk, reserved_ / 16}), 2 * MiB);
    if (limit_bytes() != 0 && reserved_ + size + 2 * MiB > limit_bytes())
      size = align_up(bytes, 2 * MiB);
    if (limit_bytes() != 0 && reserved_ + size + 2 * MiB > limit_bytes()) {
      return error{error_code::out_of_memory, "the pool's limit of " + format_bytes(limit_bytes()) +
                                                  " would be passed: " + format_bytes(reserved_) +
                                                  " reserved, " + format_bytes(size + 2 * MiB) +
                                                  " more needed"};
    }
    // A chunk that the heap would not take in could not go back, since its free waits for the
    // device.
    if (!heap_.prepare_chunk(size)) return heap_.why();
  }
  make_room(reservations_);
  const std::uint64_t asked =
      options_.host_memory ? size : size + 2 * MiB;  // such a source's blocks start on 2 MiB
  if (!take_budget(asked))
    return growth_error({driver_status::out_of_memory, "memory_budget"}, asked);
  device_address start = 0;
  call_result answer;
  if (options_.host_memory) {
    const auto pinned = options_.host_memory->allocate(asked);
    if (!pinned) {
      give_budget(asked);
      return pinned.error();
    }
    start = reinterpret_cast<std::uintptr_t>(*pinned);
  } else if (options_.kind == memory_kind::pinned) {
    void* host = nullptr;
    answer = gpu_->host_allocate(&host, asked, driver::host_flags::none);
    start = reinterpret_cast<std::uintptr_t>(host);
  } else if (options_.kind == memory_kind::managed) {
    answer = gpu_->managed_allocate(&start, asked);
  } else {
    answer = gpu_->memory_allocate(&start, asked);
  }
  if (!answer.ok()) {
    give_budget(asked);
    return to_error(answer, "growing the pool by " + format_bytes(asked));
  }
  reservations_.emplace_back(start, asked);
  const std::lock_guard lock(heap_mutex_);
  heap_.enter_chunk(align_up(start, 2 * MiB), size, start);
  reserved_ += asked;
  peak_reserved_ = std::max(peak_reserved_, reserved_);
  counts_.growths.fetch_add(1, std::memory_order_relaxed);
  return {};
}

}  // namespace millpond
