#include "advise/checks/segment_check.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "millpond/base/units.hpp"

namespace millpond::advise {

void segment_check::reserved(const trace::event& at, std::uint32_t index) {
  reserve& mine = devices_[at.device];
  mine.segments.push_back({at.address, at.address + at.bytes, at.stream, index, no_index,
                           static_cast<double>(at.duration_ns)});
  mine.reserved += at.bytes;
  if (mine.given_back > 0) ++mine.again;
  if (mine.reserved > mine.peak) {
    mine.peak = mine.reserved;
    mine.peak_event = index;
  }
}

void segment_check::given_back(const trace::event& at, std::uint32_t index) {
  // Newest first: most of what goes is what came last. Pages of one expandable segment go in other
  // pieces than they came.
  reserve& mine = devices_[at.device];
  std::vector<segment>& segments = mine.segments;
  for (std::size_t n = segments.size(); n-- > 0;) {
    segment& each = segments[n];
    if (each.gone != no_index || each.begin > at.address || each.end < at.address + at.bytes)
      continue;
    mine.reserved -= at.bytes;
    ++mine.given_back;
    const segment whole = each;
    each.gone = index;
    if (whole.begin < at.address)
      segments.push_back({whole.begin, at.address, whole.stream, index, no_index, 0});
    if (whole.end > at.address + at.bytes)
      segments.push_back({at.address + at.bytes, whole.end, whole.stream, index, no_index, 0});
    return;
  }
}

segment_check::gaps segment_check::gaps_at(const reserve& of, std::uint16_t device,
                                           std::uint64_t request, std::uint64_t stream) const {
  const std::uint32_t event = of.peak_event;
  std::vector<segment> there;
  for (const segment& each : of.segments) {
    if (each.made < event && each.gone > event) there.push_back(each);
  }
  std::ranges::sort(there, {}, &segment::begin);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> live;
  for (const block_facts& each : of_.book.blocks()) {
    if (each.device == device && each.allocated < event && each.freed > event && each.bytes > 0) {
      live.emplace_back(each.address, each.address + (each.bytes + 511) / 512 * 512);
    }
  }
  std::ranges::sort(live);
  gaps made;
  std::size_t next = 0;
  for (const segment& each : there) {
    std::uint64_t at = each.begin;
    const auto gap = [&](std::uint64_t end) {
      if (end <= at) return;
      const std::uint64_t bytes = end - at;
      made.largest = std::max(made.largest, bytes);
      gaps::sort& mine = bytes < request         ? made.too_small
                         : each.stream != stream ? made.other_stream
                                                 : made.would_fit;
      mine.bytes += bytes;
      ++mine.pieces;
    };
    while (next < live.size() && live[next].second <= each.begin) ++next;
    for (std::size_t n = next; n < live.size() && live[n].first < each.end; ++n) {
      gap(live[n].first);
      at = std::max(at, live[n].second);
      next = n;
    }
    gap(each.end);
  }
  return made;
}

std::string segment_check::summary(const reserve& of, std::uint16_t device, const gaps& left,
                                   std::uint64_t request) const {
  const std::uint64_t live_peak = of_.book.on_device(device).peak_bytes;
  // Sizes that read alike are given to the byte.
  std::string request_text = format_bytes(request), largest_text = format_bytes(left.largest);
  if (request_text == largest_text && request != left.largest) {
    request_text = fmt::format("{} bytes", request);
    largest_text = fmt::format("{} bytes", left.largest);
  }
  std::vector<std::string> reasons;
  const auto because = [&](const gaps::sort& of, std::string_view reason) {
    if (of.pieces > 0)
      reasons.push_back(
          fmt::format("{} in {} {}", format_bytes(of.bytes), plural(of.pieces, "piece"), reason));
  };
  because(left.too_small, "smaller than the request");
  because(left.other_stream, "kept for other streams");
  because(left.would_fit, "large enough but held for other sizes");
  if (reasons.empty()) reasons.emplace_back("none of it");
  std::string text = fmt::format(
      "The allocator reserves {} at most{}, the program never has more than {} live: {:.3f} times. "
      "When it last grew, for {}, it "
      "had {} free in {}, the largest {}: {}.",
      format_bytes(of.peak), devices_.size() > 1 ? fmt::format(" on device {}", device) : "",
      format_bytes(live_peak), static_cast<double>(of.peak) / static_cast<double>(live_peak),
      request_text,
      format_bytes(left.too_small.bytes + left.other_stream.bytes + left.would_fit.bytes),
      plural(left.too_small.pieces + left.other_stream.pieces + left.would_fit.pieces, "piece"),
      largest_text, fmt::join(reasons, ", "));
  if (of.again > 0) {
    text += fmt::format(" It gave memory back {} times and reserved {} times after that.",
                        of.given_back, of.again);
  }
  return text;
}

std::vector<std::string> segment_check::remedy(const gaps& left) const {
  std::vector<std::string> made;
  if (left.other_stream.bytes > left.too_small.bytes) {
    made.emplace_back(
        "What one stream freed serves another one only when its work has passed, which this "
        "allocator does not ask: "
        "allocate on fewer streams, or from a pool that hands idle blocks over. With millpond, for "
        "this trace:");
  } else {
    made.insert(made.end(),
                {"An allocator that can move pages joins such pieces, which saves at most "
                 "what is said above. In PyTorch, before "
                 "the first CUDA call:",
                 "    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                 "With millpond's pool, pages move to where they are needed; what it would "
                 "reserve for this trace:"});
  }
  made.push_back(fmt::format("    millpond compare {}", of_.info.name));
  return made;
}

void segment_check::finish() {
  for (const auto& [device, of] : devices_) judge(device, of);
}

void segment_check::judge(std::uint16_t device, const reserve& of) {
  const std::uint64_t live_peak = of_.book.on_device(device).peak_bytes;
  if (of.peak_event == no_index || of.peak <= live_peak || live_peak == 0) return;
  const std::uint64_t waste = of.peak - live_peak;
  if (waste < of_.options.least_bytes ||
      static_cast<double>(waste) < of_.options.least_peak_share * static_cast<double>(live_peak)) {
    return;
  }
  // The request that made the allocator reserve is the first one after it.
  const auto& blocks = of_.book.blocks();
  auto asked = std::ranges::lower_bound(blocks, of.peak_event, {}, &block_facts::allocated);
  while (asked != blocks.end() && asked->device != device) ++asked;
  const std::uint64_t request = asked == blocks.end() ? 0 : asked->bytes;
  std::uint64_t stream = 0;
  double cost = 0;
  for (const segment& each : of.segments) {
    if (each.made == of.peak_event) stream = each.stream;
    cost += each.cost_ns;
  }
  const gaps left = gaps_at(of, device, request, stream);
  auto [made, is_new] = of_.found.add(flaw::fragmentation, 0, device, of.peak_event);
  made.bytes += waste;
  made.peak_bytes = of.peak;
  made.peak_after_bytes = live_peak;
  made.time_ns += cost;
  if (asked != blocks.end()) {
    made.events.push_back(asked->allocated);
    of_.place_allocation(made, *asked);
  }
  made.summary = summary(of, device, left, request);
  made.seen =
      "seen: the recorded allocator's own segments; sizes as requested, rounded up to 512 bytes";
  made.remedy = remedy(left);
}

}  // namespace millpond::advise
