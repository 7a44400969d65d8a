#include "driver/sim/memory.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

namespace millpond::sim {
namespace {

constexpr std::uint64_t host_page = 4 * KiB;
constexpr std::uint64_t small_limit = 1 * MiB;  // below it, device allocations share pages
constexpr std::uint64_t small_alignment = 512;

}  // namespace

memory_kind kind_of(const region& r) noexcept {
  switch (r.kind) {
    case region_kind::device: return memory_kind::device;
    case region_kind::pinned:
    case region_kind::registered: return memory_kind::pinned;
    case region_kind::managed: return memory_kind::managed;
    case region_kind::pool_block:
    case region_kind::pool_segment: return memory_kind::driver_pool;
    case region_kind::mapping:
      return r.memory->location == memory_location::host ? memory_kind::pinned
                                                         : memory_kind::device;
  }
  return memory_kind::pageable;
}

std::unique_ptr<memory> memory::create(limits most, contents mode) {
  std::unique_ptr<memory> out(new memory(most, mode));
  out->backing_ = backing::create();
  if (out->backing_ == nullptr) return nullptr;
  const std::uint64_t begin = align_up(out->backing_->arena_begin(), page_bytes);
  out->addresses_.give(begin, align_down(out->backing_->arena_end(), page_bytes));
  return out;
}

memory::~memory() {
  for (const auto& [id, handle] : handles_) {
    if (handle.memory->fd >= 0 && handle.memory.use_count() == 1) ::close(handle.memory->fd);
  }
}

// --- Physical memory
// --------------------------------------------------------------------------------

driver_status memory::take(std::uint64_t bytes, memory_location location) {
  if (bytes > absurd) return driver_status::out_of_memory;
  if (location == memory_location::host) {
    if (bytes > limits_.host_bytes - std::min(limits_.host_bytes, host_used_))
      return driver_status::out_of_memory;
    host_used_ += bytes;
    return driver_status::success;
  }
  if (bytes > largest_piece_ || bytes > device_free()) return driver_status::out_of_memory;
  device_used_ += bytes;
  device_peak_ = std::max(device_peak_, device_used_);
  return driver_status::success;
}

void memory::give(std::uint64_t bytes, memory_location location) {
  std::uint64_t& used = location == memory_location::host ? host_used_ : device_used_;
  MILLPOND_CHECK(used >= bytes, used, bytes);
  used -= bytes;
}

std::uint64_t memory::device_free() const noexcept {
  const std::uint64_t gone = device_used_ + taken_;
  return gone >= limits_.device_bytes ? 0 : limits_.device_bytes - gone;
}

std::shared_ptr<physical> memory::make_physical(std::uint64_t bytes, memory_location location) {
  auto p = std::make_shared<physical>();
  p->base = next_physical_;
  p->bytes = bytes;
  p->location = location;
  p->real = real() || location == memory_location::host;
  p->host_written = location == memory_location::host;
  // A gap after each keeps neighbours apart in every map of physical ranges.
  next_physical_ += align_up(bytes, page_bytes) + page_bytes;
  return p;
}

void memory::drop_physical(const std::shared_ptr<physical>& p) {
  if (p->handles != 0 || p->mappings != 0) return;
  if (released_) released_(*p);
  if (p->counted) give(p->bytes, p->location);
  if (p->fd >= 0) {
    ::close(p->fd);
    p->fd = -1;
  } else if (p->real) {
    backing_->discard(p->base, p->bytes);
  }
}

bool memory::show(std::uint64_t address, const physical& p) {
  if (!p.real) return true;
  return backing_->attach(address, p.bytes, p.fd, p.fd >= 0 ? 0 : p.base);
}

// --- Plain kinds
// ------------------------------------------------------------------------------------

void memory::add_region(std::uint64_t address, region r) {
  ++counts_[static_cast<std::size_t>(r.kind)];
  regions_.emplace(address, std::move(r));
}

driver_status memory::allocate(std::uint64_t bytes, std::uint64_t unit, region_kind kind,
                               memory_location location, std::uint64_t& address) {
  if (bytes > absurd) return driver_status::out_of_memory;
  const std::uint64_t taken = align_up(bytes, unit);
  // Managed pages are not counted against either memory: they are where they are needed, and only a
  // model of pages can say where that is.
  const bool counted = kind != region_kind::managed;
  const driver_status status = counted ? take(taken, location) : driver_status::success;
  if (status != driver_status::success) return status;
  const auto at = addresses_.take(taken, unit);
  const auto p = at ? make_physical(taken, location) : nullptr;
  if (p == nullptr || !show(*at, *p)) {
    if (at) addresses_.give(*at, *at + taken);
    if (counted) give(taken, location);
    return driver_status::out_of_memory;
  }
  p->counted = counted;
  p->mappings = 1;
  region r;
  r.bytes = bytes;
  r.memory = p;
  r.kind = kind;
  add_region(*at, std::move(r));
  address = *at;
  return driver_status::success;
}

driver_status memory::allocate_small(std::uint64_t bytes, std::uint64_t& address) {
  const std::uint64_t taken = align_up(bytes, small_alignment);
  auto at = small_.take(taken, small_alignment);
  if (!at) {
    const driver_status status = take(page_bytes, memory_location::device);
    if (status != driver_status::success) return status;
    // Twice the addresses: a block must never lie across two pages that happen to be neighbours.
    const auto page = addresses_.take(2 * page_bytes, page_bytes);
    const auto p = page ? make_physical(page_bytes, memory_location::device) : nullptr;
    if (p == nullptr || !show(*page, *p)) {
      if (page) addresses_.give(*page, *page + 2 * page_bytes);
      give(page_bytes, memory_location::device);
      return driver_status::out_of_memory;
    }
    small_.give(*page, *page + page_bytes);
    chunks_.emplace(*page, chunk{p, 0});
    at = small_.take(taken, small_alignment);
  }
  auto in = std::prev(chunks_.upper_bound(*at));
  MILLPOND_CHECK(*at + taken <= in->first + page_bytes, *at, taken);
  in->second.used += taken;
  ++in->second.memory->mappings;
  region r;
  r.bytes = bytes;
  r.memory = in->second.memory;
  r.offset = *at - in->first;
  r.kind = region_kind::device;
  add_region(*at, std::move(r));
  address = *at;
  return driver_status::success;
}

driver_status memory::allocate_device(std::uint64_t bytes, std::uint64_t& address) {
  if (bytes < small_limit && bytes <= largest_piece_) return allocate_small(bytes, address);
  return allocate(bytes, page_bytes, region_kind::device, memory_location::device, address);
}

driver_status memory::allocate_pinned(std::uint64_t bytes, std::uint64_t& address) {
  return allocate(bytes, host_page, region_kind::pinned, memory_location::host, address);
}

driver_status memory::allocate_managed(std::uint64_t bytes, std::uint64_t& address) {
  return allocate(bytes, bytes >= page_bytes ? page_bytes : host_page, region_kind::managed,
                  memory_location::host, address);
}

driver_status memory::register_host(std::uint64_t address, std::uint64_t bytes) {
  if (address == 0 || bytes == 0 || backing_->in_arena(address))
    return driver_status::invalid_value;
  const auto next = regions_.lower_bound(address + bytes);
  if (next != regions_.begin()) {
    const auto before = std::prev(next);
    // CUDA answers CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED.
    if (before->first + before->second.bytes > address) return static_cast<driver_status>(712);
  }
  const driver_status status = take(align_up(bytes, host_page), memory_location::host);
  if (status != driver_status::success) return status;
  const auto p = make_physical(align_up(bytes, host_page), memory_location::host);
  p->real = false;  // the bytes are the program's own
  p->mappings = 1;
  region r;
  r.bytes = bytes;
  r.memory = p;
  r.kind = region_kind::registered;
  add_region(address, std::move(r));
  return driver_status::success;
}

void memory::free_region(std::uint64_t address) {
  const auto it = regions_.find(address);
  MILLPOND_CHECK(it != regions_.end(), address);
  const region r = std::move(it->second);
  regions_.erase(it);
  --counts_[static_cast<std::size_t>(r.kind)];
  --r.memory->mappings;
  if (r.kind == region_kind::registered) {
    drop_physical(r.memory);
    return;
  }
  const auto in = chunks_.upper_bound(address);
  const auto home = in == chunks_.begin() ? chunks_.end() : std::prev(in);
  if (home == chunks_.end() || home->second.memory != r.memory) {
    if (r.memory->real) backing_->detach(address, r.memory->bytes);
    addresses_.give(address, address + r.memory->bytes);
    drop_physical(r.memory);
    return;
  }
  const std::uint64_t taken = align_up(r.bytes, small_alignment);
  small_.give(address, address + taken);
  home->second.used -= taken;
  if (home->second.used != 0) return;
  const std::uint64_t page = home->first;
  MILLPOND_CHECK(small_.take_exactly(page, page + page_bytes), page);
  chunks_.erase(home);
  if (r.memory->real) backing_->detach(page, page_bytes);
  addresses_.give(page, page + 2 * page_bytes);
  drop_physical(r.memory);
}

// --- Pools
// ------------------------------------------------------------------------------------------

driver_status memory::add_range(std::uint64_t bytes, memory_location location,
                                std::uint64_t& address) {
  const auto at = addresses_.take(bytes, page_bytes);
  if (!at) return driver_status::out_of_memory;
  const auto p = make_physical(bytes, location);
  p->counted = false;  // its segments are
  p->mappings = 1;
  ranges_.emplace(*at, p);
  address = *at;
  return driver_status::success;
}

void memory::remove_range(std::uint64_t address) {
  const auto it = ranges_.find(address);
  MILLPOND_CHECK(it != ranges_.end(), address);
  const std::shared_ptr<physical> p = std::move(it->second);
  ranges_.erase(it);
  --p->mappings;
  addresses_.give(address, address + p->bytes);
  drop_physical(p);
}

driver_status memory::add_segments(std::uint64_t range, std::uint64_t address, std::uint64_t bytes,
                                   std::uint64_t step, pool_handle pool) {
  const std::shared_ptr<physical>& p = ranges_.at(range);
  const driver_status status = take(bytes, p->location);
  if (status != driver_status::success) return status;
  if (p->real && !backing_->attach(address, bytes, -1, p->base + (address - range))) {
    give(bytes, p->location);
    return driver_status::out_of_memory;
  }
  for (std::uint64_t done = 0; done < bytes;) {
    region r;
    r.bytes = std::min(step, bytes - done);
    r.memory = p;
    r.offset = address + done - range;
    r.kind = region_kind::pool_segment;
    r.pool = pool;
    const std::uint64_t part = r.bytes;
    segments_.emplace(address + done, std::move(r));
    done += part;
  }
  return driver_status::success;
}

void memory::remove_segment(std::uint64_t address) {
  const auto it = segments_.find(address);
  MILLPOND_CHECK(it != segments_.end(), address);
  const region r = std::move(it->second);
  segments_.erase(it);
  if (released_) {
    physical gone;
    gone.base = r.physical_begin();
    gone.bytes = r.bytes;
    gone.location = r.memory->location;
    released_(gone);
  }
  give(r.bytes, r.memory->location);
  if (!r.memory->real) return;
  backing_->detach(address, r.bytes);
  backing_->discard(r.physical_begin(), r.bytes);
}

void memory::add_block(std::uint64_t range, std::uint64_t address, std::uint64_t bytes,
                       pool_handle pool) {
  const std::shared_ptr<physical>& p = ranges_.at(range);
  region r;
  r.bytes = bytes;
  r.memory = p;
  r.offset = address - range;
  r.kind = region_kind::pool_block;
  r.pool = pool;
  ++p->mappings;
  add_region(address, std::move(r));
}

void memory::remove_block(std::uint64_t address) {
  const auto it = regions_.find(address);
  MILLPOND_CHECK(it != regions_.end() && it->second.kind == region_kind::pool_block, address);
  --it->second.memory->mappings;
  --counts_[static_cast<std::size_t>(region_kind::pool_block)];
  regions_.erase(it);
}

// --- Looking up
// -------------------------------------------------------------------------------------

region* memory::find(std::uint64_t address, std::uint64_t& start) {
  for (auto* const map : {&regions_, &segments_}) {
    auto it = map->upper_bound(address);
    if (it == map->begin()) continue;
    --it;
    if (address - it->first >= it->second.bytes) continue;
    start = it->first;
    return &it->second;
  }
  return nullptr;
}

region* memory::find_start(std::uint64_t address) {
  const auto it = regions_.find(address);
  return it == regions_.end() ? nullptr : &it->second;
}

bool memory::pieces_of(std::uint64_t address, std::uint64_t bytes, std::vector<piece>& out) {
  if (address + bytes < address) return false;
  auto it = regions_.upper_bound(address);
  if (it != regions_.begin()) --it;
  while (bytes > 0) {
    if (it != regions_.end() && it->first <= address && address - it->first >= it->second.bytes)
      ++it;
    piece p{address, bytes, 0, nullptr};
    if (it != regions_.end() && address >= it->first && address - it->first < it->second.bytes) {
      region& r = it->second;
      if (!r.accessible) return false;
      p.bytes = std::min(bytes, it->first + r.bytes - address);
      p.physical = r.physical_begin() + (address - it->first);
      p.in = &r;
    } else if (backing_->in_arena(address)) {
      // Freed pool memory is still there on a card: the checker reports its use, the device does
      // not.
      std::uint64_t start = 0;
      region* const segment = find(address, start);
      if (segment == nullptr) return false;
      p.bytes = std::min(bytes, start + segment->bytes - address);
      if (it != regions_.end() && it->first > address)
        p.bytes = std::min(p.bytes, it->first - address);
      p.physical = segment->physical_begin() + (address - start);
      p.in = segment;
    } else if (it != regions_.end() && it->first > address) {
      p.bytes = std::min(bytes, it->first - address);
    }
    out.push_back(p);
    address += p.bytes;
    bytes -= p.bytes;
  }
  return true;
}

std::uint64_t memory::count(region_kind kind) const noexcept {
  return counts_[static_cast<std::size_t>(kind)];
}

}  // namespace millpond::sim
