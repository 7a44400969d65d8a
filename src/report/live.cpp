#include "report/live.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "millpond/base/units.hpp"
#include "report/holes.hpp"
#include "report/sites.hpp"
#include "trace/event_views.hpp"
#include "trace/on_stream.hpp"

namespace millpond::report {
namespace {

using trace::action;

// "step" of "ns::(anonymous namespace)::step(float*, int)"; templates are left as they are.
std::string_view short_name(std::string_view symbol) {
  constexpr std::string_view nameless = "(anonymous namespace)::";
  if (const std::size_t at = symbol.rfind(nameless); at != std::string_view::npos)
    symbol.remove_prefix(at + nameless.size());
  // "? (+0x2a1c9)" is an address.
  if (symbol.starts_with('?')) return symbol;
  return symbol.substr(0, symbol.find('('));
}

}  // namespace

std::string call_site_of(const std::vector<live_frame>& frames) {
  std::string made;
  for (std::size_t n = 0; n < frames.size() && n < 2; ++n) {
    const live_frame& each = frames[n];
    if (n > 0) made += " < ";
    made += each.symbol.empty() ? std::string_view("?") : short_name(each.symbol);
    if (!each.file.empty()) made += fmt::format(" {}", each.file.substr(each.file.rfind('/') + 1));
    if (each.line != 0) made += fmt::format(":{}", each.line);
  }
  return made;
}

void live_account::add(const trace::event& at, const trace::trace_info& info) {
  if (events_++ == 0) {
    first_ns_ = at.time_ns;
    program_ = info.meta.program;
  }
  if (device_.empty()) device_ = info.meta.device_name;
  simulated_ = info.meta.simulated;
  dropped_ = info.meta.dropped_events;
  now_ns_ = std::max(now_ns_, at.time_ns - std::min(first_ns_, at.time_ns));
  if (trace::on_stream(at)) streams_.try_emplace(at.stream, true);
  if (at.duration_ns != 0 && (at.what == action::allocate || at.what == action::free)) {
    calls_[name_of_call(at, info)].recent.add(at.duration_ns);
  }
  switch (at.what) {
    case action::allocate: allocated(at, info); break;
    case action::free:
      if (const auto found = blocks_.find(at.address); at.status == 0 && found != blocks_.end()) {
        ++kinds_[static_cast<std::size_t>(found->second.of)].frees;
        ended(found);
      }
      break;
    case action::kernel: ++kernels_; break;
    case action::copy: ++copies_; break;
    case action::segment_allocate:
    case action::segment_map: segment_began(at.address, at.address + at.bytes); break;
    case action::segment_free:
    case action::segment_unmap: segment_ended(at.address, at.address + at.bytes); break;
    default: break;
  }
}

void live_account::allocated(const trace::event& at, const trace::trace_info& info) {
  if (at.status != 0) {
    ++failed_;
    return;
  }
  if (at.address == 0 || at.bytes == 0 || at.address > UINT64_MAX - at.bytes) return;
  // A block whose free was not seen (dropped, or by another way) ends where its bytes are handed
  // out again.
  auto next = blocks_.lower_bound(at.address);
  if (next != blocks_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second.bytes > at.address) ended(before);
  }
  while (next != blocks_.end() && next->first < at.address + at.bytes) {
    const auto under = next++;
    ended(under);
  }
  const std::uint32_t id = site_of(at, info);
  blocks_[at.address] = {at.bytes, id, at.of};
  live_site& site = sites_[id];
  ++site.live_blocks;
  ++site.allocations;
  site.live_bytes += at.bytes;
  site.call_ns += at.duration_ns;
  live_kind& kind = kinds_[static_cast<std::size_t>(at.of)];
  ++kind.live_blocks;
  ++kind.allocations;
  kind.allocated_bytes += at.bytes;
  kind.live_bytes += at.bytes;
  kind.peak_bytes = std::max(kind.peak_bytes, kind.live_bytes);
  if (trace::is_gpu_memory(at.of)) {
    gpu_live_bytes_ += at.bytes;
    gpu_peak_bytes_ = std::max(gpu_peak_bytes_, gpu_live_bytes_);
  }
}

void live_account::ended(std::map<std::uint64_t, block>::iterator which) {
  const block& gone = which->second;
  live_kind& kind = kinds_[static_cast<std::size_t>(gone.of)];
  --kind.live_blocks;
  kind.live_bytes -= gone.bytes;
  if (trace::is_gpu_memory(gone.of)) gpu_live_bytes_ -= gone.bytes;
  --sites_[gone.site].live_blocks;
  sites_[gone.site].live_bytes -= gone.bytes;
  blocks_.erase(which);
}

void live_account::segment_began(std::uint64_t begin, std::uint64_t end) {
  if (begin >= end) return;
  segments_known_ = true;
  segment_ended(begin, end);
  segments_[begin] = end;
}

// An unmap may take a part of what was mapped, or many maps at once.
void live_account::segment_ended(std::uint64_t begin, std::uint64_t end) {
  if (begin >= end) return;
  auto at = segments_.lower_bound(begin);
  if (at != segments_.begin() && std::prev(at)->second > begin) --at;
  while (at != segments_.end() && at->first < end) {
    const auto [old_begin, old_end] = *at;
    at = segments_.erase(at);
    if (old_begin < begin) segments_[old_begin] = begin;
    if (old_end > end) segments_[end] = old_end;
  }
}

std::uint32_t live_account::site_of(const trace::event& at, const trace::trace_info& info) {
  const auto [found, added] =
      site_ids_.try_emplace(key_of_site(at), static_cast<std::uint32_t>(sites_.size()));
  if (added) {
    live_site made;
    made.of = at.of;
    for (const trace::frame& each : info.stacks.at(at.stack).first(
             std::min<std::size_t>(4, info.stacks.at(at.stack).size()))) {
      made.frames.push_back({std::string(info.strings.at(each.symbol)),
                             std::string(info.strings.at(each.file)), each.line});
    }
    made.label = call_site_of(made.frames);
    if (made.frames.empty()) made.label = label_without_stack(at, info);
    sites_.push_back(std::move(made));
  }
  return found->second;
}

void live_account::measure_holes(live_view& into) const {
  into.segments_known = segments_known_;
  const auto hole = [&](std::uint64_t bytes) {
    into.free_bytes += bytes;
    ++into.free_pieces;
    into.largest_free = std::max(into.largest_free, bytes);
  };
  if (segments_known_) {
    // Neighbouring segments are one range: an allocator that maps pages side by side serves blocks
    // across their borders.
    for (auto at = segments_.begin(); at != segments_.end();) {
      const std::uint64_t begin = at->first;
      std::uint64_t end = at->second;
      for (++at; at != segments_.end() && at->first == end; ++at) end = at->second;
      into.reserved_bytes += end - begin;
      std::uint64_t position = begin;
      for (auto each = blocks_.lower_bound(begin); each != blocks_.end() && each->first < end;
           ++each) {
        if (each->first > position) hole(each->first - position);
        position = std::max(position, each->first + each->second.bytes);
      }
      if (position < end) hole(end - position);
    }
    return;
  }
  std::uint64_t last_end = 0;
  for (const auto& [begin, each] : blocks_) {
    if (!trace::is_gpu_memory(each.of)) continue;
    if (last_end != 0 && begin > last_end && begin - last_end <= most_gap) hole(begin - last_end);
    last_end = begin + each.bytes;
  }
}

live_view live_account::view(double elapsed_s, std::size_t most_sites, site_order by) {
  live_view made;
  made.program = program_;
  made.device = device_;
  made.simulated = simulated_;
  made.events = events_;
  made.new_events = events_ - events_before_;
  made.dropped = dropped_;
  made.streams = streams_.size();
  made.trace_ns = now_ns_;
  // Whoever catches up with a trace sees more of its time than of his own.
  made.elapsed_s =
      elapsed_s > 0 ? std::max(elapsed_s, static_cast<double>(now_ns_ - before_ns_) / 1e9) : 0;
  before_ns_ = now_ns_;
  made.kinds = kinds_;
  made.gpu_live_bytes = gpu_live_bytes_;
  made.gpu_peak_bytes = gpu_peak_bytes_;
  made.kernels = kernels_;
  made.copies = copies_;
  made.failed = failed_;
  for (auto& [name, call] : calls_) {
    if (call.recent.count() == 0) continue;
    made.calls.push_back({name, call.recent.count(), call.recent.percentile_ns(0.5),
                          call.recent.percentile_ns(0.99), call.recent.max_ns(),
                          call.recent.sum_ns()});
    call.recent = {};
  }
  std::ranges::sort(made.calls, [](const live_call& a, const live_call& b) {
    return a.sum_ns != b.sum_ns ? a.sum_ns > b.sum_ns : a.name < b.name;
  });
  measure_holes(made);
  const auto heat = [&](const live_site& each) {
    return by == site_order::bytes  ? static_cast<double>(each.live_bytes)
           : by == site_order::rate ? static_cast<double>(each.allocations)
                                    : each.call_ns;
  };
  std::vector<std::uint32_t> order;
  for (std::uint32_t id = 0; id < sites_.size(); ++id) {
    if (sites_[id].live_blocks > 0 || sites_[id].allocations > 0) order.push_back(id);
  }
  made.sites_in_all = order.size();
  const std::size_t shown = std::min(most_sites, order.size());
  std::ranges::partial_sort(order, order.begin() + static_cast<std::ptrdiff_t>(shown),
                            [&](std::uint32_t a, std::uint32_t b) {
                              const double first = heat(sites_[a]), second = heat(sites_[b]);
                              return first != second ? first > second : a < b;
                            });
  for (std::size_t n = 0; n < shown; ++n) made.sites.push_back(sites_[order[n]]);

  events_before_ = events_;
  kernels_ = copies_ = failed_ = 0;
  for (live_kind& each : kinds_) each.allocations = each.frees = each.allocated_bytes = 0;
  for (live_site& each : sites_) {
    each.allocations = 0;
    each.call_ns = 0;
  }
  return made;
}

}  // namespace millpond::report
