#include "advise/checks/object_patterns.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "advise/prices.hpp"
#include "advise/recorded_part.hpp"
#include "millpond/base/units.hpp"
#include "trace/event_views.hpp"

namespace millpond::advise {
namespace {

// Places that are looked at one by one: each costs a pass over the blocks.
constexpr std::size_t most_call_sites = 8;
// Blocks that are compared with each other: those that take most of the peak.
constexpr std::size_t most_pairs = 256;

// Bringing a block's contents away and back takes longer than it is idle.
bool parking_is_too_dear(const block_facts& of) {
  return of.gap_ns > 0 && prices::parking_ns(of.of, of.bytes) > static_cast<double>(of.gap_ns);
}

std::string parking_text(const block_facts& of) {
  const std::string cost = format_duration(prices::parking_ns(of.of, of.bytes));
  if (of.gap_ns == 0) return fmt::format(" Bringing its contents away and back takes {}.", cost);
  const std::string gap = format_duration(static_cast<double>(of.gap_ns));
  return parking_is_too_dear(of)
             ? fmt::format(
                   " The gap lasts {}, and bringing its contents away and back takes about "
                   "{}: it pays only where they are not needed after it.",
                   gap, cost)
             : fmt::format(" The gap lasts {}; bringing its contents away and back takes about {}.",
                           gap, cost);
}

std::uint64_t place_on_device(std::uint32_t site, std::uint16_t device) {
  return (std::uint64_t{device} << 32) | site;
}

std::uint32_t end_of(const block_facts& of, std::uint64_t events) {
  return of.freed == no_index ? static_cast<std::uint32_t>(events) : of.freed;
}

}  // namespace

object_patterns::stretches object_patterns::as_it_is(const block_facts& of) const {
  return {of.allocated, end_of(of, of_.what.events), 0, 0, of.bytes};
}

bool object_patterns::analysed_kind(const block_facts& of) const {
  // The CPU's own touches of managed memory are not seen, so that nothing is said of managed
  // blocks.
  return trace::is_out_of_the_cpus_reach(of.of) && of.device == device_ && !of.of_graph;
}

std::uint64_t object_patterns::peak_with(const std::vector<bool>& changed, const change& how) {
  changes_.assign(of_.what.events + 2, 0);
  const auto& blocks = of_.book.blocks();
  for (std::uint32_t id = 0; id < blocks.size(); ++id) {
    const block_facts& each = blocks[id];
    if (!trace::is_gpu_memory(each.of) || each.device != device_) continue;
    const stretches when = changed[id] ? how(id, each) : as_it_is(each);
    const auto bytes = static_cast<std::int64_t>(when.bytes);
    changes_[when.begin] += bytes;
    changes_[when.end] -= bytes;
    if (when.hole_end > when.hole_begin) {
      changes_[when.hole_begin] -= bytes;
      changes_[when.hole_end] += bytes;
    }
  }
  std::int64_t live = 0, peak = 0;
  for (const std::int64_t each : changes_) {
    live += each;
    peak = std::max(peak, live);
  }
  return static_cast<std::uint64_t>(peak);
}

std::uint64_t object_patterns::most_at_once(
    const std::vector<std::uint32_t>& ids,
    const std::function<std::uint64_t(const block_facts&)>& wasted) {
  changes_.assign(of_.what.events + 2, 0);
  for (const std::uint32_t id : ids) {
    const block_facts& each = of_.book.blocks()[id];
    const auto bytes = static_cast<std::int64_t>(wasted(each));
    changes_[each.allocated] += bytes;
    changes_[end_of(each, of_.what.events)] -= bytes;
  }
  std::int64_t live = 0, most = 0;
  for (const std::int64_t each : changes_) {
    live += each;
    most = std::max(most, live);
  }
  return static_cast<std::uint64_t>(most);
}

bool object_patterns::one_after_another(const block_facts& first, const block_facts& second) const {
  if (first.last_use >= second.first_use || first.device != second.device) return false;
  const bool one_stream = !first.on_several_streams && !second.on_several_streams &&
                          first.use_stream == second.use_stream;
  if (one_stream) return true;
  return first.on_several_streams
             ? of_.waits.device_between(device_, first.last_use, second.first_use)
             : of_.waits.stream_between(first.use_stream, device_, first.last_use,
                                        second.first_use);
}

bool object_patterns::worth(std::uint64_t after) const {
  if (after >= peak_) return false;
  const std::uint64_t saved = peak_ - after;
  return saved >= of_.options.least_bytes &&
         static_cast<double>(saved) >= of_.options.least_peak_share * static_cast<double>(peak_);
}

void object_patterns::report(flaw which, const std::vector<std::uint32_t>& ids,
                             std::uint64_t after) {
  const auto& blocks = of_.book.blocks();
  const block_facts& first = blocks[ids.front()];
  auto [made, is_new] =
      of_.found.add(which, call_site_key(first.stack, first.call),
                    place_on_device(first.site, device_), first.allocated, ids.size());
  made.peak_bytes = peak_;
  made.peak_after_bytes = after;
  made.bytes += peak_ > after ? peak_ - after : 0;
  of_.place_allocation(made, first);
  const std::string who =
      ids.size() == 1 ? "The " + of_.name_block(first)
                      : fmt::format("{} blocks, first the {},", ids.size(), of_.name_block(first));
  const std::string then =
      fmt::format("the peak of {} would be {}", format_bytes(peak_), format_bytes(after));
  const std::string allocate = of_.allocate_code(first);
  switch (which) {
    case flaw::early_allocation:
      made.events.push_back(first.first_use);
      made.summary = fmt::format(
          "{} waits {} kernels and copies for its first use (event {}); allocated there, {}.", who,
          first.first_used_at - first.allocated_at, first.first_use, then);
      made.remedy = {"Move the allocation to just before the first launch that is given the block:",
                     fmt::format("    {}(&ptr, {}{});", allocate, first.bytes,
                                 allocate.ends_with("Async") ? ", stream" : "")};
      break;
    case flaw::late_deallocation:
      made.events.push_back(first.last_use);
      made.summary = fmt::format(
          "{} is held {} kernels and copies after its last use (event {}); freed there, {}.", who,
          first.freed_at - first.last_used_at, first.last_use, then);
      of_.place_free(made, first, "its free");
      made.remedy = {
          "Free in stream order right after the last launch that is given the block; that waits "
          "for nothing:",
          "    cudaFreeAsync(ptr, stream);"};
      break;
    case flaw::temporary_idleness:
      made.events = {first.gap_begin, first.gap_end};
      made.summary = fmt::format(
          "{} is not used for {} kernels and copies (events {} to {}); parked meanwhile, {}.{}",
          who, first.longest_gap, first.gap_begin, first.gap_end, then, parking_text(first));
      if (parking_is_too_dear(first)) made.how_bad = severity::note;
      made.remedy = {
          "Free it before the gap and allocate it after, or park its contents in pinned memory:",
          "    cudaMemcpyAsync(host, ptr, bytes, cudaMemcpyDeviceToHost, stream);",
          "    cudaFreeAsync(ptr, stream);",
          "    ...",
          "    cudaMallocAsync(&ptr, bytes, stream);",
          "    cudaMemcpyAsync(ptr, host, bytes, cudaMemcpyHostToDevice, stream);"};
      break;
    default: break;
  }
  made.seen =
      "seen: copies, memsets and the pointers among kernels' arguments; not seen: pointers that "
      "kernels find in memory";
}

void object_patterns::timed(flaw which, const std::function<bool(const block_facts&)>& holds,
                            const change& how) {
  const auto& blocks = of_.book.blocks();
  std::vector<bool> changed(blocks.size(), false);
  std::map<std::uint32_t, std::vector<std::uint32_t>> call_sites;
  std::map<std::uint32_t, std::uint64_t>
      weight;  // bytes live at the peak: no other block can lower it
  bool any = false;
  for (std::uint32_t id = 0; id < blocks.size(); ++id) {
    const block_facts& each = blocks[id];
    if (!analysed_kind(each) || each.first_use == no_index || each.stored || shared_[id] ||
        !holds(each))
      continue;
    changed[id] = true;
    any = true;
    call_sites[each.site].push_back(id);
    if (each.allocated <= peak_event_ && end_of(each, of_.what.events) > peak_event_) {
      weight[each.site] += each.bytes;
    }
  }
  if (!any || !worth(peak_with(changed, how))) return;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> heaviest;
  heaviest.reserve(weight.size());
  for (const auto& [site, bytes] : weight) heaviest.emplace_back(bytes, site);
  std::ranges::sort(heaviest, std::greater{});
  if (heaviest.size() > most_call_sites) heaviest.resize(most_call_sites);
  for (const auto& [bytes, site] : heaviest) {
    std::vector<bool> alone(blocks.size(), false);
    for (const std::uint32_t id : call_sites[site]) alone[id] = true;
    const std::uint64_t after = peak_with(alone, how);
    if (worth(after)) report(which, call_sites[site], after);
  }
}

// Nobody can say of a block that was live when the recording stopped, before the program did, what
// it was for.
bool object_patterns::life_is_known(const block_facts& of) const {
  return of.freed != no_index || ended_;
}

void object_patterns::unused() {
  const auto& blocks = of_.book.blocks();
  std::map<std::uint32_t, std::vector<std::uint32_t>> call_sites;
  for (std::uint32_t id = 0; id < blocks.size(); ++id) {
    const block_facts& each = blocks[id];
    const bool waited_long =
        of_.book.on_device(device_).kernels - each.allocated_at >= of_.options.idle_kernels;
    if (analysed_kind(each) && each.first_use == no_index && !each.stored && !each.in_structure &&
        each.bytes > 0 && (life_is_known(each) || waited_long)) {
      // Without call stacks a place is no more than a size: then the call is the place.
      call_sites[each.stack != 0 ? each.site
                                 : no_index - static_cast<std::uint32_t>(each.call % 1024)]
          .push_back(id);
    }
  }
  for (const auto& [site, ids] : call_sites) {
    std::uint64_t all_bytes = 0;
    for (const std::uint32_t id : ids) all_bytes += blocks[id].bytes;
    const std::uint64_t bytes = most_at_once(ids, [](const block_facts& of) { return of.bytes; });
    if (bytes < of_.options.least_bytes / 16) continue;
    std::vector<bool> without(blocks.size(), false);
    for (const std::uint32_t id : ids) without[id] = true;
    const block_facts& first = blocks[ids.front()];
    auto [made, is_new] =
        of_.found.add(flaw::unused_allocation, call_site_key(first.stack, first.call),
                      place_on_device(site, device_), first.allocated, ids.size());
    made.bytes += bytes;
    made.peak_bytes = peak_;
    made.peak_after_bytes =
        peak_with(without, [](std::uint32_t, const block_facts&) { return stretches{}; });
    if (!is_new) continue;
    made.summary = fmt::format(
        "{} from {}, {} in all{}, {} given to no kernel, copy or memset that was seen; without, "
        "the "
        "peak "
        "of {} would be {}.",
        plural(ids.size(), "block"), of_.allocate_call(first), format_bytes(all_bytes),
        bytes < all_bytes ? fmt::format(" and {} at one time", format_bytes(bytes)) : "",
        ids.size() == 1 ? "was" : "were", format_bytes(peak_), format_bytes(made.peak_after_bytes));
    of_.place_allocation(made, first);
    made.seen =
        "not seen: pointers that kernels find in memory or compute from another block's address";
    made.remedy = {"If nothing reaches it by another way, leave the allocation out."};
  }
}

void object_patterns::too_large() {
  const auto& blocks = of_.book.blocks();
  std::map<std::uint32_t, std::vector<std::uint32_t>> call_sites;
  for (std::uint32_t id = 0; id < blocks.size(); ++id) {
    const block_facts& each = blocks[id];
    if (!analysed_kind(each) || each.by_kernel || each.in_structure || each.stored ||
        !life_is_known(each))
      continue;
    if (each.extent == 0 || each.extent * 2 > each.bytes ||
        each.bytes - each.extent < of_.options.least_bytes)
      continue;
    call_sites[each.site].push_back(id);
  }
  for (const auto& [site, ids] : call_sites) {
    std::vector<bool> smaller(blocks.size(), false);
    std::uint64_t extent = 0;
    for (const std::uint32_t id : ids) {
      smaller[id] = true;
      extent = std::max(extent, blocks[id].extent);
    }
    const block_facts& first = blocks[ids.front()];
    auto [made, is_new] =
        of_.found.add(flaw::overallocation, call_site_key(first.stack, first.call),
                      place_on_device(site, device_), first.allocated, ids.size());
    made.peak_bytes = peak_;
    made.peak_after_bytes = peak_with(smaller, [&](std::uint32_t, const block_facts& of) {
      stretches when = as_it_is(of);
      when.bytes = of.extent;
      return when;
    });
    made.bytes += most_at_once(
        ids, [](const block_facts& of) { return of.bytes - std::min(of.bytes, of.extent); });
    if (!is_new) continue;
    made.summary = fmt::format(
        "Of the {} only the first {} are ever reached by a copy or memset, and no kernel is given "
        "it; at "
        "that size, the peak of {} would be {}.",
        of_.name_block(first), format_bytes(extent), format_bytes(peak_),
        format_bytes(made.peak_after_bytes));
    of_.place_allocation(made, first);
    made.seen =
        "seen: the extents of copies and memsets; not seen: pointers that kernels find in memory";
    made.remedy = {"Ask for what is used:",
                   fmt::format("    {}(&ptr, {});", of_.allocate_code(first), extent)};
  }
}

void object_patterns::redundant() {
  const auto& blocks = of_.book.blocks();
  shared_.assign(blocks.size(), false);
  std::vector<std::uint32_t> at_peak;
  const auto least = std::max(static_cast<double>(of_.options.least_bytes),
                              of_.options.least_peak_share * static_cast<double>(peak_));
  for (std::uint32_t id = 0; id < blocks.size(); ++id) {
    const block_facts& each = blocks[id];
    if (analysed_kind(each) && each.first_use != no_index && !each.stored &&
        static_cast<double>(each.bytes) >= least && each.allocated <= peak_event_ &&
        end_of(each, of_.what.events) > peak_event_) {
      at_peak.push_back(id);
    }
  }
  std::ranges::stable_sort(
      at_peak, [&](std::uint32_t a, std::uint32_t b) { return blocks[a].bytes > blocks[b].bytes; });
  if (at_peak.size() > most_pairs) at_peak.resize(most_pairs);
  for (const std::uint32_t a : at_peak) {
    for (const std::uint32_t b : at_peak) {
      if (a == b || shared_[a] || shared_[b]) continue;
      const block_facts& first = blocks[a];
      const block_facts& second = blocks[b];
      const bool fits =
          second.bytes <= first.bytes && second.bytes >= first.bytes - first.bytes / 8;
      if (!fits || !one_after_another(first, second)) continue;
      std::vector<bool> without(blocks.size(), false);
      without[b] = true;
      const std::uint64_t after =
          peak_with(without, [](std::uint32_t, const block_facts&) { return stretches{}; });
      if (!worth(after)) continue;
      shared_[a] = shared_[b] = true;
      auto [made, is_new] =
          of_.found.add(flaw::redundant_allocation, call_site_key(first.stack, first.site),
                        call_site_key(second.stack, second.site), second.allocated);
      made.peak_bytes = peak_;
      made.peak_after_bytes = after;
      made.bytes += peak_ - after;
      if (!is_new) continue;
      made.events = {first.last_use, second.first_use};
      made.summary = fmt::format(
          "The {} is used last by event {}, the {} first by event {}, and both are held: one could "
          "use "
          "the other's memory. Then the peak of {} would be {}.",
          of_.name_block(first), first.last_use, of_.name_block(second), second.first_use,
          format_bytes(peak_), format_bytes(after));
      of_.place_allocation(made, first);
      of_.place_allocation(made, second);
      made.seen =
          "seen: copies, memsets and the pointers among kernels' arguments; not seen: pointers "
          "that kernels find in memory";
      made.remedy = {
          "Use one block for both, in stream order, or free the first before the second is "
          "allocated:",
          "    cudaFreeAsync(first, stream);", "    cudaMallocAsync(&second, bytes, stream);",
          "`millpond plan` packs all blocks of an iteration this way."};
    }
  }
}

void object_patterns::finish() {
  ended_ = part_of(of_.info.meta).ended;
  // What a graph does whose capture was not seen, nobody knows.
  if (!of_.what.kernel_pointers || of_.unknown_graphs) return;
  for (const auto& [device, sums] : of_.book.devices()) {
    if (sums.peak_bytes == 0) continue;
    peak_ = sums.peak_bytes;
    peak_event_ = sums.peak_event;
    look_at(device);
  }
}

void object_patterns::look_at(std::uint16_t device) {
  device_ = device;
  unused();
  too_large();
  redundant();
  const std::uint32_t idle = of_.options.idle_kernels;
  timed(
      flaw::early_allocation,
      [&](const block_facts& of) { return of.first_used_at - of.allocated_at >= idle; },
      [&](std::uint32_t, const block_facts& of) {
        stretches when = as_it_is(of);
        when.begin = of.first_use;
        return when;
      });
  timed(
      flaw::late_deallocation,
      [&](const block_facts& of) {
        return of.freed != no_index && of.freed_at - of.last_used_at >= idle;
      },
      [&](std::uint32_t, const block_facts& of) {
        stretches when = as_it_is(of);
        when.end = of.last_use + 1;
        return when;
      });
  timed(
      flaw::temporary_idleness, [&](const block_facts& of) { return of.longest_gap >= idle; },
      [&](std::uint32_t, const block_facts& of) {
        stretches when = as_it_is(of);
        when.hole_begin = of.gap_begin + 1;
        when.hole_end = of.gap_end;
        return when;
      });
}

}  // namespace millpond::advise
