#include "report/picture_sums.hpp"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/bits.hpp"
#include "report/holes.hpp"

namespace millpond::report {
namespace {

// Goes through allocations and frees in the order of events; `visit(event, time, block index,
// began)`. A block that ends because another one lies over it ends before that one begins.
template <class Visit>
void in_order(const picture& of, const std::vector<std::uint32_t>& ends, Visit&& visit) {
  std::size_t next_end = 0;
  for (std::size_t id = 0; id < of.blocks.size(); ++id) {
    const picture_block& block = of.blocks[id];
    for (; next_end < ends.size() && of.blocks[ends[next_end]].end_event <= block.begin_event;
         ++next_end) {
      const picture_block& over = of.blocks[ends[next_end]];
      visit(over.end_event, over.end_ns, ends[next_end], false);
    }
    visit(block.begin_event, block.begin_ns, static_cast<std::uint32_t>(id), true);
  }
  for (; next_end < ends.size(); ++next_end) {
    const picture_block& over = of.blocks[ends[next_end]];
    visit(over.end_event, over.end_ns, ends[next_end], false);
  }
}

std::vector<std::uint32_t> order_of_ends(const picture& of) {
  std::vector<std::uint32_t> ends;
  for (std::size_t id = 0; id < of.blocks.size(); ++id) {
    if (of.blocks[id].end_event != lives_on) ends.push_back(static_cast<std::uint32_t>(id));
  }
  std::ranges::sort(ends, {}, [&](std::uint32_t id) { return of.blocks[id].end_event; });
  return ends;
}

void find_peak(picture& of, const std::vector<std::uint32_t>& ends) {
  std::uint64_t live = 0, blocks = 0;
  in_order(of, ends, [&](std::uint64_t event, std::uint64_t, std::uint32_t id, auto began) {
    live = began ? live + of.blocks[id].bytes : live - of.blocks[id].bytes;
    blocks = began ? blocks + 1 : blocks - 1;
    if (live > of.peak_bytes) {
      of.peak_bytes = live;
      of.peak_event = event;
    }
  });
  of.end_bytes = live;
  of.end_blocks = blocks;
  for (const picture_block& each : of.blocks) {
    if (each.begin_event <= of.peak_event && each.end_event > of.peak_event)
      of.sites[each.site].peak_bytes += each.bytes;
  }
}

// Renumbers by `order`: what was order[i] becomes i, what is behind `most` becomes the last.
std::vector<std::uint32_t> new_numbers(const std::vector<std::uint32_t>& order, std::size_t most) {
  std::vector<std::uint32_t> to(order.size());
  for (std::size_t n = 0; n < order.size(); ++n)
    to[order[n]] = static_cast<std::uint32_t>(std::min(n, most - 1));
  return to;
}

void rank_sites(picture& of, std::size_t most) {
  std::vector<std::uint32_t> order(of.sites.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, [&](std::uint32_t a, std::uint32_t b) {
    const picture_site &x = of.sites[a], &y = of.sites[b];
    return x.peak_bytes != y.peak_bytes ? x.peak_bytes > y.peak_bytes : x.bytes > y.bytes;
  });
  const auto to = new_numbers(order, most);
  for (picture_block& each : of.blocks) each.site = to[each.site];
  std::vector<picture_site> sites;
  for (const std::uint32_t id : order) {
    if (sites.size() < most) {
      sites.push_back(std::move(of.sites[id]));
      continue;
    }
    picture_site& rest = sites.back();
    rest.stack = rest.call = 0;
    rest.blocks += of.sites[id].blocks;
    rest.bytes += of.sites[id].bytes;
    rest.peak_bytes += of.sites[id].peak_bytes;
    rest.call_ns += of.sites[id].call_ns;
    rest.label = "all other call sites";
  }
  of.sites = std::move(sites);
}

void rank_streams(picture& of) {
  std::vector<std::uint64_t> count(of.streams.size());
  for (const picture_block& each : of.blocks) ++count[each.stream];
  std::vector<std::uint32_t> order(of.streams.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order,
                           [&](std::uint32_t a, std::uint32_t b) { return count[a] > count[b]; });
  const auto to = new_numbers(order, order.size());
  for (picture_block& each : of.blocks) each.stream = to[each.stream];
  for (picture_mark& each : of.marks) each.stream = to[each.stream];
  std::vector<std::uint64_t> streams;
  streams.reserve(order.size());
  for (const std::uint32_t id : order) streams.push_back(of.streams[id]);
  of.streams = std::move(streams);
}

void find_regions(picture& of) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  ranges.reserve(of.blocks.size() + of.segments.size());
  for (const picture_block& each : of.blocks)
    ranges.emplace_back(each.address, each.address + each.bytes);
  for (const picture_segment& each : of.segments)
    ranges.emplace_back(each.address, each.address + each.bytes);
  std::ranges::sort(ranges);
  std::uint64_t position = 0;
  for (const auto& [begin, end] : ranges) {
    if (!of.regions.empty()) {
      picture_region& last = of.regions.back();
      const std::uint64_t last_end = last.address + last.bytes;
      if (begin <= last_end || begin - last_end <= most_gap) {
        if (end > last_end) last.bytes = end - last.address;
        continue;
      }
      position = last.position + last.bytes;
    }
    of.regions.push_back({begin, end - begin, position});
  }
}

// Reserved bytes as a curve: change by event.
class reserved_curve {
 public:
  explicit reserved_curve(const picture& of) {
    for (const picture_segment& each : of.segments) {
      changes_.push_back({each.begin_event, static_cast<std::int64_t>(each.bytes)});
      if (each.end_event != lives_on)
        changes_.push_back({each.end_event, -static_cast<std::int64_t>(each.bytes)});
    }
    std::ranges::stable_sort(changes_, {}, &change::event);
  }
  // Events in growing order.
  std::uint64_t behind(std::uint64_t event) {
    for (; next_ < changes_.size() && changes_[next_].event <= event; ++next_)
      now_ += changes_[next_].bytes;
    return static_cast<std::uint64_t>(std::max<std::int64_t>(0, now_));
  }
  std::uint64_t peak() {
    std::int64_t now = 0, most = 0;
    for (std::size_t n = 0; n < changes_.size(); ++n) {
      now += changes_[n].bytes;
      if (n + 1 == changes_.size() || changes_[n + 1].event != changes_[n].event)
        most = std::max(most, now);
    }
    return static_cast<std::uint64_t>(most);
  }

 private:
  struct change {
    std::uint64_t event;
    std::int64_t bytes;
  };
  std::vector<change> changes_;
  std::size_t next_ = 0;
  std::int64_t now_ = 0;
};

void fill_bins(picture& of, const std::vector<std::uint32_t>& ends, std::size_t most) {
  if (of.events == 0) return;
  const std::uint64_t width = (of.events + most - 1) / most;
  reserved_curve reserved(of);
  of.peak_reserved_bytes = reserved.peak();
  picture_bin now;
  now.by_stream.assign(std::min(of.streams.size(), shown_apart) + 1, 0);
  now.by_site.assign(std::min(of.sites.size(), shown_apart) + 1, 0);
  picture_bin best = now;
  std::uint64_t bin = 0, allocations = 0, frees = 0;
  const auto close = [&] {
    best.first_event = bin * width;
    best.allocations = allocations;
    best.frees = frees;
    best.reserved_bytes = reserved.behind(best.event);
    of.bins.push_back(best);
    allocations = frees = 0;
    ++bin;
    // What lives on is the least that the next stretch can show.
    best = now;
    best.event = bin * width;
  };
  in_order(of, ends, [&](std::uint64_t event, std::uint64_t time_ns, std::uint32_t id, auto began) {
    while (event / width > bin) close();
    const picture_block& block = of.blocks[id];
    const std::uint64_t change = began ? block.bytes : std::uint64_t{0} - block.bytes;
    now.live_bytes += change;
    now.live_blocks += began ? 1 : UINT64_MAX;
    now.by_kind[static_cast<std::size_t>(block.of)] += change;
    now.by_stream[std::min<std::size_t>(block.stream, now.by_stream.size() - 1)] += change;
    now.by_site[std::min<std::size_t>(block.site, now.by_site.size() - 1)] += change;
    ++(began ? allocations : frees);
    now.event = event;
    now.time_ns = time_ns;
    if (now.live_bytes > best.live_bytes) best = now;
  });
  while (bin * width < of.events) close();
  of.bins.back().time_ns = std::max(of.bins.back().time_ns,
                                    of.bins.size() == 1 ? 0 : of.bins[of.bins.size() - 2].time_ns);
}

// The holes between live blocks within `spaces`, both sorted by address.
void measure_holes(picture_fragmentation& into, const std::map<std::uint64_t, std::uint64_t>& live,
                   const std::vector<std::pair<std::uint64_t, std::uint64_t>>& spaces) {
  const auto hole = [&](std::uint64_t bytes) {
    if (bytes == 0) return;
    into.free_bytes += bytes;
    into.largest_hole = std::max(into.largest_hole, bytes);
    ++into.holes;
  };
  for (const auto& [begin, end] : spaces) {
    std::uint64_t at = begin;
    for (auto next = live.lower_bound(begin); next != live.end() && next->first < end; ++next) {
      hole(next->first > at ? next->first - at : 0);
      at = std::max(at, next->second);
    }
    hole(end > at ? end - at : 0);
  }
}

void sample_fragmentation(picture& of, const std::vector<std::uint32_t>& ends) {
  // Each sample looks at every live block; this keeps all of them under some 30 million looks.
  const std::uint64_t live_guess =
      std::max<std::uint64_t>(1, of.end_blocks + of.blocks.size() / 16);
  const std::uint64_t samples = std::clamp<std::uint64_t>(30'000'000 / live_guess, 50, 400);
  const std::uint64_t every = std::max<std::uint64_t>(1, of.events / samples);
  std::map<std::uint64_t, std::uint64_t> live;
  std::uint64_t live_bytes = 0, next = 0;
  std::vector<std::uint32_t> open;
  std::size_t next_segment = 0;
  const auto sample = [&](std::uint64_t event, std::uint64_t time_ns) {
    picture_fragmentation one{event, time_ns, live_bytes, 0, 0, 0};
    std::vector<std::pair<std::uint64_t, std::uint64_t>> spaces;
    if (of.segments.empty()) {
      for (const picture_region& each : of.regions) {
        // Where nothing says what is reserved, only what lies between two live blocks counts as a
        // hole.
        const auto first = live.lower_bound(each.address);
        if (first == live.end() || first->first >= each.address + each.bytes) continue;
        const auto behind = live.lower_bound(each.address + each.bytes);
        spaces.emplace_back(first->first, std::prev(behind)->second);
      }
    } else {
      for (; next_segment < of.segments.size() && of.segments[next_segment].begin_event <= event;
           ++next_segment) {
        open.push_back(static_cast<std::uint32_t>(next_segment));
      }
      std::erase_if(open, [&](std::uint32_t id) { return of.segments[id].end_event <= event; });
      for (const std::uint32_t id : open) {
        spaces.emplace_back(of.segments[id].address,
                            of.segments[id].address + of.segments[id].bytes);
      }
      std::ranges::sort(spaces);
      // Neighbours are one: a hole may cross from one handle to the next.
      std::vector<std::pair<std::uint64_t, std::uint64_t>> joined;
      for (const auto& each : spaces) {
        if (!joined.empty() && joined.back().second >= each.first)
          joined.back().second = std::max(joined.back().second, each.second);
        else
          joined.push_back(each);
      }
      spaces = std::move(joined);
    }
    measure_holes(one, live, spaces);
    of.fragmentation.push_back(one);
  };
  in_order(of, ends, [&](std::uint64_t event, std::uint64_t time_ns, std::uint32_t id, auto began) {
    const picture_block& block = of.blocks[id];
    if (began) {
      live[block.address] = block.address + block.bytes;
      live_bytes += block.bytes;
    } else {
      live.erase(block.address);
      live_bytes -= block.bytes;
    }
    if (event >= next || event == of.peak_event) {
      sample(event, time_ns);
      next = std::max(next, event + every);
    }
  });
}

void count_lifetimes(picture& of) {
  std::map<std::pair<std::uint32_t, std::uint32_t>, picture_cell> cells;
  for (const picture_block& each : of.blocks) {
    const std::uint64_t life = each.end_event == lives_on ? 0
                               : of.times_known           ? each.end_ns - each.begin_ns
                                                          : each.end_event - each.begin_event;
    const std::uint32_t size = floor_log2(each.bytes);
    const std::uint32_t length =
        each.end_event == lives_on ? 64 : floor_log2(std::max<std::uint64_t>(1, life));
    picture_cell& cell = cells[{size, length}];
    cell.size = size;
    cell.life = length;
    ++cell.blocks;
    cell.bytes += each.bytes;
  }
  for (const auto& [at, cell] : cells) of.lifetimes.push_back(cell);
}

}  // namespace

void sum_up(picture& of, const picture_options& options) {
  const std::vector<std::uint32_t> ends = order_of_ends(of);
  find_peak(of, ends);
  rank_sites(of, std::max<std::size_t>(1, options.most_sites));
  rank_streams(of);
  find_regions(of);
  fill_bins(of, ends, std::max<std::size_t>(1, options.most_bins));
  sample_fragmentation(of, ends);
  count_lifetimes(of);
}

}  // namespace millpond::report
