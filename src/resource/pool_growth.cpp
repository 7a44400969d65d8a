// Growth and giving back: the driver calls that bring physical memory and take it away, each undone where a
// later one fails.
#include <algorithm>

#include "base/bits.hpp"
#include "driver/relaxed_capture.hpp"
#include "millpond/units.hpp"
#include "resource/pool_core.hpp"
#include "resource/thread_lanes.hpp"

namespace millpond {
namespace {

// A handle costs about 35 us to map whatever its size (H200, driver 580.159), so bulk comes in large pieces.
// 48 MiB is where the cold rounds of recorded workloads cost no more than their peers'.
constexpr std::uint64_t bulk_piece = 48 * MiB;
constexpr std::uint64_t smallest_piece = 4 * MiB;
// A pool of a few MiB would otherwise empty its lanes for every other request.
constexpr std::uint64_t least_slack = 8 * MiB;
constexpr std::uint64_t smallest_chunk = 32 * MiB;

}  // namespace

pool::core::core(std::shared_ptr<driver> gpu, pool_options options)
    : gpu_(std::move(gpu)), options_(std::move(options)), events_(*gpu_) {
  limbo_.line = std::make_shared<order::line>(0, nullptr);
  limbo_.line->set_gone();
  limbo_.owner = new_owner();
  constexpr std::uint64_t at_least = 4 * MiB;
  lane_small_.store(options_.lane_small_bytes != 0 ? options_.lane_small_bytes : at_least / 4, std::memory_order_relaxed);
  lane_large_.store(options_.lane_large_bytes != 0 ? options_.lane_large_bytes : at_least, std::memory_order_relaxed);
}

pool::core::~core() = default;

result<void> pool::core::open() {
  const device_info& info = gpu_->info();
  if (info.virtual_memory) {
    if (options_.kind == memory_kind::device) granularity_ = info.granularity;
    if (options_.kind == memory_kind::pinned) granularity_ = info.host_granularity;
  }
  if (granularity_ != 0) {
    const std::lock_guard lock(growth_mutex_);
    if (auto made = open_home(options_.initial_bytes); !made) return made;
  }
  if (options_.initial_bytes > 0) {
    const relaxed_capture_scope relaxed(*gpu_);
    const std::lock_guard lock(growth_mutex_);
    return granularity_ != 0 ? extend({true, home_, {}, {}, options_.initial_bytes}, heap::anyone) : add_chunk(options_.initial_bytes);
  }
  return {};
}

// A window of addresses for the home view: twice the device's memory, so that holes left by trim never end it
// early. Addresses cost nothing until they are mapped.
result<void> pool::core::open_home(std::uint64_t at_least) {
  std::uint64_t total = gpu_->info().total_bytes;
  if (options_.kind == memory_kind::pinned) total = std::max<std::uint64_t>(total, 256 * GiB);
  std::uint64_t bytes = align_up(std::max(2 * total, 2 * at_least), std::max<std::uint64_t>(granularity_, 2 * MiB));
  device_address base = 0;
  const relaxed_capture_scope relaxed(*gpu_);
  // Where the process may not have so many addresses (a limit, a sanitizer) a smaller window serves; the next one is
  // opened when it is full.
  call_result answer = gpu_->address_reserve(&base, bytes, 2 * MiB);
  const std::uint64_t least = std::max<std::uint64_t>(2 * at_least, GiB);
  while (!answer.ok() && answer.status == driver_status::out_of_memory && bytes / 2 >= least) {
    bytes = align_down(bytes / 2, std::max<std::uint64_t>(granularity_, 2 * MiB));
    answer = gpu_->address_reserve(&base, bytes, 2 * MiB);
  }
  if (!answer.ok()) return to_error(answer, "reserving " + format_bytes(bytes) + " of addresses");
  reservations_.emplace_back(base, bytes);
  const std::lock_guard lock(heap_mutex_);
  heap_.add_region(base, bytes);
  home_ = heap_.add_view(base, bytes);
  has_home_ = true;
  return {};
}

void pool::core::note_failure(error what) {
  const std::lock_guard lock(heap_mutex_);
  last_failure_ = std::move(what);
}

// Under heap_mutex_. Whether `more` reserved bytes, for a request of `size`, stay within the slack.
bool pool::core::within_slack(std::uint64_t more, std::uint64_t size) const {
  const double peak = static_cast<double>(std::max(peak_carved_, carved_ + size));
  return static_cast<double>(reserved_ + more) <= peak + std::max(options_.slack * peak, static_cast<double>(least_slack));
}

// Under heap_mutex_. How large the next handle is: bulk while that stays within the slack, then just what is missing.
std::uint64_t pool::core::piece_bytes(std::uint64_t missing) const {
  const auto allowed = static_cast<std::uint64_t>((1 + options_.slack) * static_cast<double>(std::max(peak_carved_, carved_ + missing)));
  if (reserved_ + bulk_piece <= allowed) return align_up(bulk_piece, granularity_);
  std::uint64_t step = std::max(smallest_piece, granularity_);
  while (2 * step <= reserved_ / 128) step *= 2;
  return std::min(align_up(missing, step), align_up(bulk_piece, step));
}

// Makes room for a request: at the end of the home view while that stays within the slack; else by the window with the
// fewest new bytes. False where there is no memory; last_failure_ says why.
bool pool::core::grow(const request& what) {
  const std::lock_guard growth(growth_mutex_);
  const std::uint64_t need = what.size + (what.alignment > heap::granule ? what.alignment - heap::granule : 0);
  if (granularity_ == 0) {
    const auto grown = add_chunk(need);
    if (!grown) note_failure(grown.error());
    return grown.has_value();
  }
  heap::window_plan plan;
  {
    const std::lock_guard lock(heap_mutex_);
    const std::uint64_t tail = heap_.tail_bytes(home_, what.owner);
    if (tail >= need) return true;  // another thread grew meanwhile
    const auto& home = heap_.views()[home_];
    const std::uint64_t missing = need - tail;
    plan.possible = home.end - home.base + missing + 2 * bulk_piece <= home.capacity;
    plan.view = home_;
    plan.new_bytes = missing;
    const auto round_new = [this](std::uint64_t bytes) { return divide_up(bytes, piece_bytes(bytes)) * piece_bytes(bytes); };
    const std::uint64_t grown = round_new(missing);
    const bool over_limit = limit_bytes() != 0 && reserved_ + align_up(missing, granularity_) > limit_bytes();
    if (!within_slack(grown, what.size) || over_limit) {
      heap::window_plan window = heap::plan_window(heap_, need, what.owner, round_new);
      if (window.possible && window.new_bytes < grown && heap_.mappings() < most_mappings()) plan = std::move(window);
    }
  }
  auto grown = plan.possible ? extend(plan, what.owner) : result<void>{};
  if (!plan.possible) {
    grown = open_home(need);
    if (grown) grown = extend({true, home_, {}, {}, need}, what.owner);
  }
  // A window that cannot be mapped is no reason to fail while plain growth might do.
  if (!grown && !plan.spans.empty()) {
    note_failure(grown.error());
    grown = extend({true, home_, {}, {}, need}, what.owner);
  }
  if (!grown) note_failure(grown.error());
  return grown.has_value();
}

// Under growth_mutex_: second mappings and new memory at the end of a view; all of it or nothing.
result<void> pool::core::extend(const heap::window_plan& plan, heap::owner_id owner) {
  heap::view_id view = plan.view;
  std::uint64_t at = 0;
  struct piece {
    std::uint64_t handle;
    std::uint64_t bytes;
    heap::span_id span;  // no_span: new
  };
  std::vector<piece> pieces;
  std::uint64_t total = 0;
  if (view == heap::new_view) {
    std::uint64_t bytes = plan.new_bytes + bulk_piece;
    {
      const std::lock_guard lock(heap_mutex_);
      for (const heap::span_id id : plan.spans) bytes += heap_.spans()[id].bytes;
    }
    auto opened = open_window(bytes);
    if (!opened) return opened.error();
    view = *opened;
  }
  {
    const std::lock_guard lock(heap_mutex_);
    at = heap_.views()[view].end;
    for (const heap::span_id id : plan.spans) {
      pieces.push_back({heap_.spans()[id].handle, heap_.spans()[id].bytes, id});
      total += pieces.back().bytes;
    }
  }
  const auto undo = [&](std::uint64_t mapped) {
    std::uint64_t x = 0;
    for (const piece& p : pieces) {
      if (x < mapped) static_cast<void>(gpu_->unmap(at + x, p.bytes));
      if (p.span == heap::no_span) static_cast<void>(gpu_->physical_release(p.handle));
      x += p.bytes;
    }
  };
  std::uint64_t fresh = 0;
  while (fresh < plan.new_bytes) {
    const std::uint64_t least = align_up(plan.new_bytes - fresh, granularity_);
    std::uint64_t size = 0;
    std::uint64_t reserved = 0;
    {
      const std::lock_guard lock(heap_mutex_);
      reserved = reserved_ + fresh;
      size = piece_bytes(plan.new_bytes - fresh);
    }
    // The limit is met to the granule before it refuses.
    if (limit_bytes() != 0 && reserved + size > limit_bytes()) size = least;
    if (limit_bytes() != 0 && reserved + size > limit_bytes()) {
      undo(0);
      return error{error_code::out_of_memory, "the pool's limit of " + format_bytes(limit_bytes()) + " would be passed: " +
                                                  format_bytes(reserved) + " reserved, " + format_bytes(least) + " more needed"};
    }
    physical_handle handle = 0;
    call_result answer = gpu_->physical_create(&handle, size, place(), driver::shareable::no);
    if (answer.status == driver_status::out_of_memory && size > least) {
      size = least;
      answer = gpu_->physical_create(&handle, size, place(), driver::shareable::no);
    }
    if (!answer.ok()) {
      undo(0);
      return to_error(answer, "growing the pool by " + format_bytes(size));
    }
    pieces.push_back({handle, size, heap::no_span});
    fresh += size;
    total += size;
  }
  std::uint64_t mapped = 0;
  for (const piece& p : pieces) {
    if (const call_result answer = gpu_->map(at + mapped, p.bytes, p.handle); !answer.ok()) {
      undo(mapped);
      return to_error(answer, "mapping " + format_bytes(p.bytes));
    }
    mapped += p.bytes;
  }
  if (total > 0) {
    if (const call_result answer = gpu_->set_access(at, total, place()); !answer.ok()) {
      undo(mapped);
      return to_error(answer, "giving access to " + format_bytes(total));
    }
  }
  // A span that another thread has taken from meanwhile stays where it is; the caller finds no room and plans again.
  const std::lock_guard lock(heap_mutex_);
  for (const std::uint64_t dormant : plan.activate) {
    if (heap_.activate(view, dormant, owner)) counts_.activations.fetch_add(1, std::memory_order_relaxed);
  }
  for (const piece& p : pieces) {
    const bool is_new = p.span == heap::no_span;
    heap_.map_span(view, at, is_new ? heap_.add_span(p.bytes, p.handle) : p.span, owner);
    at += p.bytes;
    (is_new ? counts_.growths : counts_.moves).fetch_add(1, std::memory_order_relaxed);
  }
  reserved_ += fresh;
  peak_reserved_ = std::max(peak_reserved_, reserved_);
  // Lanes may keep 1% of the peak where that is more than 4 MiB, half of it in small blocks; a lane learns it when it next
  // misses.
  const std::uint64_t half = peak_carved_ / 200;
  if (options_.lane_small_bytes == 0) lane_small_.store(std::max(lane_small_.load(std::memory_order_relaxed), half), std::memory_order_relaxed);
  if (options_.lane_large_bytes == 0) lane_large_.store(std::max(lane_large_.load(std::memory_order_relaxed), half), std::memory_order_relaxed);
  return {};
}

// Under growth_mutex_: an empty view of its own for a window, with room to be lengthened.
result<heap::view_id> pool::core::open_window(std::uint64_t at_least) {
  const std::uint64_t capacity = align_up(std::max<std::uint64_t>(2 * at_least, GiB), granularity_);
  if (windows_end_ - windows_at_ < capacity) {
    if (heap_.regions_full()) return error{error_code::out_of_memory, "no more addresses"};
    const std::uint64_t bytes = align_up(std::max(gpu_->info().total_bytes, 16 * capacity), granularity_);
    device_address base = 0;
    if (const call_result answer = gpu_->address_reserve(&base, bytes, 2 * MiB); !answer.ok()) {
      return to_error(answer, "reserving " + format_bytes(bytes) + " of addresses");
    }
    reservations_.emplace_back(base, bytes);
    const std::lock_guard lock(heap_mutex_);
    heap_.add_region(base, bytes);
    windows_at_ = base;
    windows_end_ = base + bytes;
  }
  const std::lock_guard lock(heap_mutex_);
  const heap::view_id made = heap_.add_view(windows_at_, capacity);
  windows_at_ += capacity;
  return made;
}

// Mappings cost host memory and a little time on each allocation that crosses them, so their number is bounded: on
// average eight a handle.
std::uint64_t pool::core::most_mappings() const { return 256 + 8 * heap_.spans().size(); }

// Under growth_mutex_: managed memory, or pinned where the driver maps no host handles. A chunk is one view of one
// span; it starts on 2 MiB, which the driver does not promise, so it is asked for larger.
result<void> pool::core::add_chunk(std::uint64_t bytes) {
  std::uint64_t size = 0;
  {
    const std::lock_guard lock(heap_mutex_);
    size = align_up(std::max({bytes, smallest_chunk, reserved_ / 16}), 2 * MiB);
    if (limit_bytes() != 0 && reserved_ + size + 2 * MiB > limit_bytes()) size = align_up(bytes, 2 * MiB);
    if (limit_bytes() != 0 && reserved_ + size + 2 * MiB > limit_bytes()) {
      return error{error_code::out_of_memory, "the pool's limit of " + format_bytes(limit_bytes()) +
                                                  " would be passed: " + format_bytes(reserved_) + " reserved, " +
                                                  format_bytes(size + 2 * MiB) + " more needed"};
    }
    if (heap_.regions_full()) return error{error_code::out_of_memory, "the pool holds as many chunks as it can"};
  }
  const std::uint64_t asked = size + 2 * MiB;
  device_address start = 0;
  call_result answer;
  if (options_.kind == memory_kind::pinned) {
    void* host = nullptr;
    answer = gpu_->host_allocate(&host, asked, driver::host_flags::none);
    start = reinterpret_cast<std::uintptr_t>(host);
  } else if (options_.kind == memory_kind::managed) {
    answer = gpu_->managed_allocate(&start, asked);
  } else {
    answer = gpu_->memory_allocate(&start, asked);
  }
  if (!answer.ok()) return to_error(answer, "growing the pool by " + format_bytes(asked));
  reservations_.emplace_back(start, asked);
  const std::lock_guard lock(heap_mutex_);
  const std::uint64_t base = align_up(start, 2 * MiB);
  heap_.add_region(base, size);
  const heap::view_id view = heap_.add_view(base, size);
  heap_.map_span(view, base, heap_.add_span(size, start));
  reserved_ += asked;
  peak_reserved_ = std::max(peak_reserved_, reserved_);
  counts_.growths.fetch_add(1, std::memory_order_relaxed);
  return {};
}

std::uint64_t pool::core::trim(std::uint64_t keep_bytes) {
  if (closed()) return 0;
  thread_lanes::drop_idle(this);
  drain_released();
  flush_lanes_of(nullptr);
  const relaxed_capture_scope relaxed(*gpu_);
  wide_seal();
  poll_fences();
  collect_dead_streams();
  return give_back(keep_bytes);
}

// Whole idle spans, the last mapped first. Idle means that the host has seen the fence, so that nothing runs on them.
std::uint64_t pool::core::give_back(std::uint64_t keep_bytes) {
  if (granularity_ == 0) return 0;  // a chunk's own free waits for the whole device: close() does that
  const relaxed_capture_scope relaxed(*gpu_);
  const std::lock_guard growth(growth_mutex_);
  std::uint64_t given = 0;
  std::vector<heap::span_id> candidates;
  {
    const std::lock_guard lock(heap_mutex_);
    for (heap::span_id id = 0; id < heap_.spans().size(); ++id) {
      if (heap_.spans()[id].present && heap_.wholly_free(id, heap::anyone)) candidates.push_back(id);
    }
    std::sort(candidates.begin(), candidates.end(), [this](heap::span_id a, heap::span_id b) {
      return heap_.spans()[a].home().at > heap_.spans()[b].home().at;
    });
  }
  for (const heap::span_id id : candidates) {
    {
      const std::lock_guard lock(heap_mutex_);
      if (reserved_ <= keep_bytes || reserved_ - heap_.spans()[id].bytes < keep_bytes) continue;
    }
    std::uint64_t bytes = 0;
    {
      const std::lock_guard lock(heap_mutex_);
      bytes = heap_.spans()[id].bytes;
    }
    if (give_back_span(id)) given += bytes;
  }
  return given;
}

// Takes the span out of use, then asks the driver. Where the driver refuses, what was unmapped is mapped again and the
// span goes on as before.
bool pool::core::give_back_span(heap::span_id span) {
  heap::segment* held = nullptr;
  std::uint64_t active = 0;
  std::vector<heap::heap::mapping> mappings;
  physical_handle handle = 0;
  std::uint64_t bytes = 0;
  {
    const std::lock_guard lock(heap_mutex_);
    mappings = heap_.spans()[span].mappings;
    handle = heap_.spans()[span].handle;
    bytes = heap_.spans()[span].bytes;
    held = heap_.allocate_at(heap_.spans()[span].home().at, bytes);
    active = heap_.spans()[span].home().at;
  }
  if (held == nullptr) return false;  // taken meanwhile
  call_result answer;
  std::size_t unmapped = 0;
  for (; unmapped < mappings.size(); ++unmapped) {
    answer = gpu_->unmap(mappings[unmapped].at, bytes);
    if (!answer.ok()) break;
  }
  if (answer.ok()) answer = gpu_->physical_release(handle);
  if (!answer.ok()) {
    // Unmapped from some of its addresses but not given back: map it again.
    bool restored = true;
    for (std::size_t i = 0; i < unmapped; ++i) {
      restored = gpu_->map(mappings[i].at, bytes, handle).ok() && gpu_->set_access(mappings[i].at, bytes, place()).ok() && restored;
    }
    note_failure(to_error(answer, "giving back " + format_bytes(bytes)));
    const std::lock_guard lock(heap_mutex_);
    if (restored) heap_.release(held, heap::anyone, 0, heap::absorb_idle::no);
    // Otherwise the addresses stay out of use until the pool is closed: nothing is handed out that is not mapped.
    return false;
  }
  const std::lock_guard lock(heap_mutex_);
  heap_.release(held, heap::anyone, 0, heap::absorb_idle::no);
  for (const auto& m : mappings) {
    if (m.at != active) heap_.unmap_span(m.view, m.at);
  }
  heap_.unmap_span(heap_.spans()[span].home().view, active);
  heap_.remove_span(span);
  reserved_ -= bytes;
  return true;
}

}  // namespace millpond
