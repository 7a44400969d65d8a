#include "advise/block_book.hpp"

#include "advise/prices.hpp"
#include "trace/event_views.hpp"

#include <algorithm>
#include <bit>

namespace millpond::advise {
namespace {

std::uint64_t extent_of(std::uint64_t bytes) {
  return std::max<std::uint64_t>(bytes, 1);
}

constexpr double first_call_factor = 8;

// Sizes that differ by less than an eighth of a doubling fall together.
std::uint64_t size_step(std::uint64_t bytes) {
  if (bytes < 16) return bytes;
  const int shift = static_cast<int>(std::bit_width(bytes)) - 4;
  return (static_cast<std::uint64_t>(shift) << 8) | (bytes >> shift);
}

}  // namespace

std::uint32_t block_book::site_of(const trace::event& of) {
  std::uint64_t key = of.stack != 0 ? (std::uint64_t{1} << 63) | (std::uint64_t{of.stack} << 24)
                                    : size_step(of.bytes) << 24;
  key ^= (std::uint64_t{trace::as_allocation(of).call} & 0xffff) << 8 ^
         static_cast<std::uint64_t>(of.of);
  const auto [found, is_new] =
      site_index_.try_emplace(key, static_cast<std::uint32_t>(sites_.size()));
  if (is_new) {
    site_facts& made = sites_.emplace_back();
    made.stack = of.stack;
    made.call = trace::as_allocation(of).call;
    made.of = of.of;
  }
  sites_[found->second].on_devices |= std::uint64_t{1} << std::min<std::uint16_t>(of.device, 63);
  return found->second;
}

void site_facts::loses(flaw by, double ns, double after_ns, bool estimated) {
  if (ns - after_ns <= loss_ns - loss_after_ns) return;
  loses_by = by;
  loss_ns = ns;
  loss_after_ns = after_ns;
  loss_estimated = estimated;
}

// The first allocation of a kind may make a context or a pool, which no remedy saves: where it took
// far longer than its size asks for, it counts as its size asks.
float block_book::allocation_cost(const trace::event& of) {
  const double usual = prices::allocation_ns(of.of, of.bytes);
  const bool first = !known_kinds_[static_cast<std::size_t>(of.of)];
  known_kinds_[static_cast<std::size_t>(of.of)] = true;
  const bool makes_more = first && of.duration_ns > first_call_factor * usual;
  return static_cast<float>(of.duration_ns == 0 || makes_more ? usual : of.duration_ns);
}

void block_book::forget_freed(std::uint64_t begin, std::uint64_t end) {
  while (const auto* old = freed_.overlapping(begin, end)) freed_.erase(old->begin);
}

std::uint32_t block_book::allocate(const trace::event& of, std::uint32_t index) {
  const std::uint64_t end_address = of.address + extent_of(of.bytes);
  while (const auto* there = live_.overlapping(of.address, end_address))
    end(static_cast<std::uint32_t>(there->id), index);
  forget_freed(of.address, end_address);
  const auto id = static_cast<std::uint32_t>(blocks_.size());
  block_facts& made = blocks_.emplace_back();
  made.address = of.address;
  made.bytes = of.bytes;
  made.allocated = index;
  made.allocated_at = on(of.device).kernels;
  made.allocate_ns = allocation_cost(of);
  made.stack = of.stack;
  made.call = trace::as_allocation(of).call;
  made.device = of.device;
  made.of = of.of;
  made.site = site_of(of);
  live_.insert({of.address, end_address, id});
  last_block_.set(of.address, id);

  site_facts& site = sites_[made.site];
  if (site.count == 0) site.first_event = index;
  ++site.count;
  site.bytes += of.bytes;
  site.largest_bytes = std::max(site.largest_bytes, of.bytes);
  site.smallest_bytes = std::min(site.smallest_bytes, of.bytes);
  site.most_live = std::max(site.most_live, ++site.live);
  site.live_bytes += of.bytes;
  if (site.freed_since > 0) ++site.rounds;
  site.freed_since = 0;
  if (site.last_activity != activity_) ++site.while_running;
  site.last_activity = activity_;
  site.recorded_ns += of.duration_ns;
  if (of.duration_ns != 0) ++site.timed_calls;

  if (trace::is_gpu_memory(of.of)) {
    device_sums& sums = on(of.device);
    ++sums.live_blocks;
    sums.live_bytes += of.bytes;
    if (sums.live_bytes > sums.peak_bytes) {
      sums.peak_bytes = sums.live_bytes;
      sums.peak_event = index;
    }
  }
  return id;
}

block_book::free_answer block_book::look_up_free(std::uint64_t address) const {
  const std::uint64_t id = last_block_.find(address);
  if (id != trace::address_map::none && blocks_[id].freed == no_index) {
    return {free_status::freed, static_cast<std::uint32_t>(id)};
  }
  if (const auto* around = live_.holding(address))
    return {free_status::inside, static_cast<std::uint32_t>(around->id)};
  if (id != trace::address_map::none)
    return {free_status::already_freed, static_cast<std::uint32_t>(id)};
  if (const auto* around = freed_.holding(address))
    return {free_status::unknown, static_cast<std::uint32_t>(around->id)};
  return {};
}

void block_book::end(std::uint32_t block, std::uint32_t index) {
  block_facts& dead = blocks_[block];
  dead.freed = index;
  dead.freed_at = on(dead.device).kernels;
  live_.erase(dead.address);
  site_facts& site = sites_[dead.site];
  --site.live;
  site.live_bytes -= dead.bytes;
  if (trace::is_gpu_memory(dead.of)) {
    device_sums& sums = on(dead.device);
    --sums.live_blocks;
    sums.live_bytes -= dead.bytes;
  }
  forget_freed(dead.address, dead.address + extent_of(dead.bytes));
  freed_.insert({dead.address, dead.address + extent_of(dead.bytes), block});
}

void block_book::free(std::uint32_t block, const trace::event& of, std::uint32_t index) {
  end(block, index);
  block_facts& dead = blocks_[block];
  dead.free_stack = of.stack;
  site_facts& site = sites_[dead.site];
  if (site.first_free_event == no_index) site.first_free_event = index;
  site.free_call = trace::as_free(of).call;
  site.free_stack = of.stack;
  ++site.freed_since;
  ++site.pairs;
  const bool touched = dead.first_use != no_index;
  site.pair_ns +=
      dead.allocate_ns + (of.duration_ns != 0 ? static_cast<double>(of.duration_ns)
                                              : prices::free_ns(dead.of, dead.bytes, touched));
  site.recorded_ns += of.duration_ns;
  if (of.duration_ns != 0) ++site.timed_calls;
  active();
}

void block_book::used(std::uint32_t block, std::uint32_t index, const trace::event& by) {
  block_facts& of = blocks_[block];
  const std::uint32_t kernels = on(of.device).kernels;
  if (of.first_use == no_index) {
    of.first_use = index;
    of.first_used_at = kernels;
    of.use_stream = by.stream;
  } else if (kernels - of.last_used_at > of.longest_gap) {
    of.longest_gap = kernels - of.last_used_at;
    of.gap_begin = of.last_use;
    of.gap_end = index;
    of.gap_ns = by.time_ns > of.last_use_ns ? by.time_ns - of.last_use_ns : 0;
  }
  of.on_several_streams = of.on_several_streams || by.stream != of.use_stream;
  of.last_use = index;
  of.last_use_ns = by.time_ns;
  of.last_used_at = kernels;
}

}  // namespace millpond::advise
