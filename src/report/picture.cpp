#include "report/picture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "report/explanation.hpp"
#include "report/picture_sums.hpp"
#include "report/sites.hpp"
#include "trace/address_map.hpp"
#include "trace/event_views.hpp"
#include "trace/live_index.hpp"

namespace millpond::report {
namespace {

using trace::action;

// Reads events into blocks, marks and segments.
class collector {
 public:
  collector(picture& into, const trace::trace_info& info) : made_(into), info_(info) {}

  void add(const trace::event& at) {
    const std::uint64_t index = made_.events++;
    if (index == 0) first_ns_ = at.time_ns;
    // Threads may be noted slightly out of order; charts need a time that does not step back.
    now_ns_ = std::max(now_ns_, at.time_ns - std::min(first_ns_, at.time_ns));
    timed(at);
    switch (at.what) {
      case action::allocate: allocated(at, index); return;
      case action::free: freed(at, index); return;
      case action::free_complete: completed(at, index); break;
      case action::segment_allocate:
      case action::segment_map: segment_began(at, index); break;
      case action::segment_free:
      case action::segment_unmap: segment_ended(at, index); break;
      default: break;
    }
    const bool named = at.what == action::kernel || at.what == action::mark;
    made_.marks.push_back(
        {index, now_ns_, at.bytes, stream_of(at.stream), named ? trace::name_of(at) : 0, at.what});
  }

  void finish() {
    made_.duration_ns = now_ns_;
    made_.times_known = now_ns_ > 0;
    for (auto& [name, call] : calls_) made_.calls.push_back(std::move(call));
    std::ranges::sort(made_.calls, {}, &picture_call::name);
  }

 private:
  void timed(const trace::event& at) {
    if (at.duration_ns == 0 || (at.what != action::allocate && at.what != action::free)) return;
    const std::string name = name_of_call(at, info_);
    picture_call& call = calls_[name];
    call.name = name;
    call.times.add(at.duration_ns);
  }

  void allocated(const trace::event& at, std::uint64_t index) {
    if (at.status != 0) {
      ++made_.failed;
      return;
    }
    if (at.address == 0 || at.bytes == 0 || at.address > UINT64_MAX - at.bytes) return;
    while (const auto* under = live_.overlapping(at.address, at.address + at.bytes))
      end(under->id, index);
    ++made_.allocations;
    made_.allocated_bytes += at.bytes;
    picture_block block;
    block.begin_event = index;
    block.begin_ns = now_ns_;
    block.address = at.address;
    block.bytes = at.bytes;
    block.stream = stream_of(at.stream);
    block.of = at.of;
    block.site = site_of(at);
    const std::uint64_t id = made_.blocks.size();
    live_.insert({at.address, at.address + at.bytes, id});
    last_block_.set(at.address, id);
    made_.blocks.push_back(block);
  }

  void freed(const trace::event& at, std::uint64_t index) {
    if (at.status != 0 || at.address == 0) return;
    const auto* found = live_.holding(at.address);
    if (found == nullptr || found->begin != at.address) {
      ++made_.unmatched_frees;
      return;
    }
    ++made_.frees;
    end(found->id, index);
  }

  void end(std::uint64_t id, std::uint64_t index) {
    picture_block& block = made_.blocks[id];
    block.end_event = index;
    block.end_ns = now_ns_;
    made_.freed_bytes += block.bytes;
    live_.erase(block.address);
  }

  void completed(const trace::event& at, std::uint64_t index) {
    const std::uint64_t id = last_block_.find(at.address);
    if (id == trace::address_map::none) return;
    picture_block& block = made_.blocks[id];
    if (block.end_event != lives_on && index > block.end_event + 1) block.held_event = index;
  }

  void segment_began(const trace::event& at, std::uint64_t index) {
    if (at.bytes == 0 || at.address > UINT64_MAX - at.bytes) return;
    made_.segments.push_back({index, lives_on, now_ns_, 0, at.address, at.bytes});
    open_segments_.push_back(made_.segments.size() - 1);
  }

  // An unmap may take a part of what was mapped, or many maps at once: what is left of a segment
  // goes on as a new one.
  void segment_ended(const trace::event& at, std::uint64_t index) {
    if (at.bytes == 0 || at.address > UINT64_MAX - at.bytes) return;
    const std::uint64_t begin = at.address, stop = at.address + at.bytes;
    std::vector<std::size_t> kept;
    for (const std::size_t id : open_segments_) {
      const picture_segment old = made_.segments[id];
      const std::uint64_t old_stop = old.address + old.bytes;
      if (old_stop <= begin || old.address >= stop) {
        kept.push_back(id);
        continue;
      }
      made_.segments[id].end_event = index;
      made_.segments[id].end_ns = now_ns_;
      const auto go_on = [&](std::uint64_t from, std::uint64_t to) {
        if (from >= to) return;
        made_.segments.push_back({index, lives_on, now_ns_, 0, from, to - from});
        kept.push_back(made_.segments.size() - 1);
      };
      go_on(old.address, begin);
      go_on(stop, old_stop);
    }
    open_segments_ = std::move(kept);
  }

  std::uint32_t stream_of(std::uint64_t stream) {
    const auto [at, added] =
        streams_.try_emplace(stream, static_cast<std::uint32_t>(made_.streams.size()));
    if (added) made_.streams.push_back(stream);
    return at->second;
  }

  std::uint32_t site_of(const trace::event& at) {
    const std::uint32_t call = trace::as_allocation(at).call;
    const auto [found, added] =
        sites_.try_emplace(key_of_site(at), static_cast<std::uint32_t>(made_.sites.size()));
    if (added) made_.sites.push_back({at.stack, call, label_of(at), 0, 0, 0, 0});
    picture_site& site = made_.sites[found->second];
    ++site.blocks;
    site.bytes += at.bytes;
    site.call_ns += at.duration_ns;
    return found->second;
  }

  std::string label_of(const trace::event& at) const {
    const auto lines = stack_lines(at.stack, info_);
    if (!lines.empty()) return lines.front();
    return label_without_stack(at, info_);
  }

  picture& made_;
  const trace::trace_info& info_;
  trace::live_index live_;
  trace::address_map last_block_;
  std::vector<std::size_t> open_segments_;
  std::unordered_map<std::uint64_t, std::uint32_t> streams_, sites_;
  std::unordered_map<std::string, picture_call> calls_;
  std::uint64_t first_ns_ = 0, now_ns_ = 0;
};

// The event that a place means: the first that is not before it.
std::uint64_t event_of(const picture& of, const picture_call_site& call_site) {
  if (call_site.in == picture_call_site::unit::event) return call_site.value;
  std::uint64_t found = of.events;
  const auto block =
      std::ranges::lower_bound(of.blocks, call_site.value, {}, &picture_block::begin_ns);
  if (block != of.blocks.end()) found = block->begin_event;
  const auto mark = std::ranges::lower_bound(of.marks, call_site.value, {}, &picture_mark::time_ns);
  if (mark != of.marks.end()) found = std::min(found, mark->event);
  return found;
}

result<void> window_as_asked(picture& of, const picture_options& options) {
  const std::uint64_t from = options.from ? event_of(of, *options.from) : 0;
  std::uint64_t to = options.to ? std::min(of.events, event_of(of, *options.to)) : of.events;
  if (from >= to) {
    return error{
        error_code::invalid_argument,
        fmt::format("--from and --to: expected a range within {} events, found event {} to {}",
                    of.events, from, to)};
  }
  std::string why = "asked for";
  if (to - from > options.most_events) {
    why = fmt::format("the first {} of the {} events asked for", options.most_events, to - from);
    to = from + options.most_events;
  }
  of.windows.push_back({from, to, why});
  return {};
}

}  // namespace

std::optional<picture_call_site> parse_call_site(std::string_view text) {
  double number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc{} || !(number >= 0) || number > 1e15) return std::nullopt;
  const std::string_view unit(read.ptr,
                              static_cast<std::size_t>(text.data() + text.size() - read.ptr));
  using in = picture_call_site::unit;
  if (unit.empty()) {
    if (number != static_cast<double>(static_cast<std::uint64_t>(number))) return std::nullopt;
    return picture_call_site{static_cast<std::uint64_t>(number), in::event};
  }
  for (const auto& [name, scale] : {std::pair{"ns", 1.0}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}}) {
    if (unit == name && number * scale < 1e18)
      return picture_call_site{static_cast<std::uint64_t>(number * scale), in::nanoseconds};
  }
  return std::nullopt;
}

result<picture> read_picture(trace::trace_source& from, const picture_options& options) {
  picture made;
  collector collect(made, from.info());
  std::vector<trace::event> batch(4096);
  for (;;) {
    const auto got = from.read(batch);
    if (!got) return got.error();
    if (*got == 0) break;
    if (made.events + *got >= UINT32_MAX) {
      return error{error_code::bad_input,
                   fmt::format("{}: expected fewer than 2^32 events", from.info().name)};
    }
    for (std::size_t at = 0; at < *got; ++at) collect.add(batch[at]);
    if (options.progress) options.progress(made.events);
  }
  collect.finish();
  made.name = from.info().name;
  made.format = trace::to_string(from.info().from);
  sum_up(made, options);
  return made;
}

result<void> choose_windows(picture& of, std::span<const std::uint64_t> call_sites,
                            const picture_options& options) {
  of.windows.clear();
  if (options.from || options.to) {
    if (auto done = window_as_asked(of, options); !done) return done;
  } else if (of.events <= options.most_events) {
    of.windows.push_back({0, of.events, "everything"});
  } else {
    // Half of what may be shown lies round the peak, the other half is shared by the other places;
    // where there are none, all.
    const auto add = [&](std::uint64_t event, std::uint64_t width, std::string why) {
      // Near an end it lies to one side: what may be shown is shown.
      const std::uint64_t first = std::min(event > width / 2 ? event - width / 2 : 0,
                                           of.events > width ? of.events - width : 0);
      of.windows.push_back({first, std::min(of.events, first + width), std::move(why)});
    };
    const std::size_t most = std::min<std::size_t>(call_sites.size(), 64);
    add(of.peak_event, most == 0 ? options.most_events : options.most_events / 2, "round the peak");
    for (std::size_t n = 0; n < most; ++n)
      add(call_sites[n], options.most_events / 2 / most, "round a finding");
    std::ranges::sort(of.windows, {}, &picture_window::first);
    std::vector<picture_window> merged;
    for (picture_window& each : of.windows) {
      if (!merged.empty() && each.first <= merged.back().end) {
        merged.back().end = std::max(merged.back().end, each.end);
        if (each.why != merged.back().why) merged.back().why = "round the peak and findings";
      } else {
        merged.push_back(std::move(each));
      }
    }
    of.windows = std::move(merged);
  }
  of.events_shown = 0;
  for (const picture_window& each : of.windows) of.events_shown += each.end - each.first;
  return {};
}

std::uint64_t live_at(const picture& of, std::uint64_t event) {
  std::uint64_t live = 0;
  for (const picture_block& each : of.blocks) {
    if (each.begin_event <= event && each.end_event > event) live += each.bytes;
  }
  return live;
}

}  // namespace millpond::report
