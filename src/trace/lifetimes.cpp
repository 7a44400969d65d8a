#include "trace/lifetimes.hpp"

#include "trace/event_views.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace millpond::trace {
namespace {

constexpr std::uint32_t end_of_uses = UINT32_MAX;
constexpr std::uint32_t few_streams = 32;

// A block of no bytes still occupies its address: it may be freed, and nothing else may be there.
std::uint64_t extent(std::uint64_t bytes) {
  return std::max<std::uint64_t>(bytes, 1);
}

}  // namespace

lifetime_builder::lifetime_builder(std::string trace_name, lifetime_options options)
    : name_(std::move(trace_name)), options_(options) {}

result<void> lifetime_builder::add(const event& next) {
  result<void> done;
  switch (next.what) {
    case action::allocate: done = allocated(next); break;
    case action::free:
      if (next.status == 0) done = freed(next);  // a free that was refused ends no life
      break;
    case action::free_complete: completed(next); break;
    case action::use:
      if (!used(next.address, next.stream)) ++made_.unknown_uses;
      break;
    case action::copy:  // either side may be memory that the trace does not know
      used(next.address, next.stream);
      used(as_copy(next).from, next.stream);
      break;
    case action::memset:
    case action::prefetch: used(next.address, next.stream); break;
    default: break;
  }
  if (next.what != action::free) last_freed_ = never;
  ++made_.events;
  return done;
}

result<void> lifetime_builder::allocated(const event& next) {
  if (next.status != 0) {
    ++made_.failed_allocations;
    return {};
  }
  if (next.bytes == 0 && next.address == 0) return {};  // nothing was asked, nothing was given
  const std::uint64_t index = made_.events;
  const std::uint64_t end = next.address + extent(next.bytes);
  if (end < next.address) {
    return fault(
        made_.faults.overflows,
        fmt::format("event {} allocates {} bytes at {:#x}, past the end of the address space",
                    index, next.bytes, next.address));
  }
  if (const auto* there = live_.overlapping(next.address, end)) {
    return fault(made_.faults.overlaps,
                 fmt::format("event {} allocates {} bytes at {:#x}, over the live {}", index,
                             next.bytes, next.address, name_block(there->id)));
  }
  const std::uint64_t id = made_.blocks.size();
  block& made = made_.blocks.emplace_back();
  made.bytes = next.bytes;
  made.address = next.address;
  made.allocate_event = index;
  made.stream = next.stream;
  made.streams_first = end_of_uses;
  made.stack = next.stack;
  made.device = next.device;
  made.of = next.of;
  live_.insert({next.address, end, id});
  last_block_.set(next.address, id);

  live_bytes_ += next.bytes;
  made_.allocated_bytes += next.bytes;
  made_.largest_bytes = std::max(made_.largest_bytes, next.bytes);
  if (live_bytes_ > made_.peak_live_bytes) {
    made_.peak_live_bytes = live_bytes_;
    made_.peak_event = index;
  }
  made_.peak_live_blocks = std::max(made_.peak_live_blocks, live_.size());
  const auto of = static_cast<std::size_t>(next.of);
  if (of < std::size(live_by_kind_)) {
    live_by_kind_[of] += next.bytes;
    made_.peak_live_by_kind[of] = std::max(made_.peak_live_by_kind[of], live_by_kind_[of]);
  }
  return {};
}

result<void> lifetime_builder::freed(const event& next) {
  last_freed_ = never;
  const std::uint64_t index = made_.events;
  const std::uint64_t id = last_block_.find(next.address);
  if (id == address_map::none) {
    if (next.address == 0) return {};  // freeing null is legal
    const auto* around = live_.holding(next.address);
    return fault(made_.faults.unknown_frees,
                 fmt::format("event {} frees {:#x}, which {}", index, next.address,
                             around == nullptr ? std::string("was never allocated")
                                               : "is inside the live " + name_block(around->id)));
  }
  block& dead = made_.blocks[id];
  if (dead.free_event != never) {
    return fault(made_.faults.double_frees,
                 fmt::format("event {} frees {:#x} a second time: event {} had freed the {}", index,
                             next.address, dead.free_event, name_block(id)));
  }
  result<void> done;
  if (next.bytes != 0 && next.bytes != dead.bytes) {  // the block dies all the same
    done = fault(made_.faults.wrong_sizes,
                 fmt::format("event {} frees {:#x} as {} bytes: it is the {}", index, next.address,
                             next.bytes, name_block(id)));
  }
  dead.free_event = index;
  dead.free_stream = next.stream;
  live_.erase(dead.address);
  live_bytes_ -= dead.bytes;
  const auto of = static_cast<std::size_t>(dead.of);
  if (of < std::size(live_by_kind_)) live_by_kind_[of] -= dead.bytes;
  ++made_.frees;
  last_freed_ = id;
  return done;
}

void lifetime_builder::completed(const event& next) {
  const std::uint64_t id = last_block_.find(next.address);
  if (id == address_map::none || id == last_freed_) return;
  block& dead = made_.blocks[id];
  // A recording may begin between a free and its completion: then the last block here is a live
  // one.
  if (dead.free_event == never || dead.deferred) return;
  dead.deferred = true;
  ++made_.deferred_frees;
}

bool lifetime_builder::used(std::uint64_t address, std::uint64_t stream) {
  const auto* there = live_.holding(address);
  if (there == nullptr) return false;
  block& of = made_.blocks[there->id];
  if (of.stream == stream) return true;
  // A list where there are few, as nearly always; thousands of streams on one block would make it
  // quadratic.
  const bool many = of.streams_count >= few_streams;
  if (many && many_uses_.contains({there->id, stream})) return true;
  for (std::uint32_t at = of.streams_first; !many && at != end_of_uses; at = uses_[at].next) {
    if (uses_[at].stream == stream) return true;
  }
  if (uses_.size() >= end_of_uses)
    return true;  // more than can be distinguished: 4 thousand million
  uses_.push_back({stream, of.streams_first});
  of.streams_first = static_cast<std::uint32_t>(uses_.size() - 1);
  if (++of.streams_count < few_streams) return true;
  if (many) {
    many_uses_.insert({there->id, stream});
    return true;
  }
  for (std::uint32_t at = of.streams_first; at != end_of_uses; at = uses_[at].next)
    many_uses_.insert({there->id, uses_[at].stream});
  return true;
}

lifetimes lifetime_builder::finish() {
  // From a list a block to one array.
  made_.streams.reserve(uses_.size());
  for (block& each : made_.blocks) {
    std::uint32_t at = each.streams_first;
    each.streams_first = static_cast<std::uint32_t>(made_.streams.size());
    for (; at != end_of_uses; at = uses_[at].next) made_.streams.push_back(uses_[at].stream);
    std::reverse(made_.streams.begin() + each.streams_first, made_.streams.end());
  }
  made_.end_live_bytes = live_bytes_;
  made_.end_live_blocks = live_.size();
  if (made_.faults.total() > made_.warnings.size()) {
    made_.warnings.push_back(fmt::format(
        "{}: and {} faults more: {} double frees, {} frees of unknown addresses, {} overlaps, "
        "{} frees with a wrong size, {} past the address space in all",
        name_, made_.faults.total() - made_.warnings.size(), made_.faults.double_frees,
        made_.faults.unknown_frees, made_.faults.overlaps, made_.faults.wrong_sizes,
        made_.faults.overflows));
  }
  return std::move(made_);
}

result<void> lifetime_builder::fault(std::uint64_t& counter, std::string text) {
  ++counter;
  text = name_ + ": " + text;
  if (options_.on_fault == strictness::strict) return error{error_code::bad_input, std::move(text)};
  if (made_.warnings.size() < options_.most_warnings) made_.warnings.push_back(std::move(text));
  return {};
}

std::string lifetime_builder::name_block(std::uint64_t id) const {
  const block& named = made_.blocks[id];
  return fmt::format("block of {} bytes at {:#x} that event {} allocated", named.bytes,
                     named.address, named.allocate_event);
}

result<lifetimes> find_lifetimes(std::span<const event> events, std::string trace_name,
                                 const lifetime_options& options) {
  lifetime_builder builder(std::move(trace_name), options);
  for (const event& each : events) {
    if (auto done = builder.add(each); !done) return done.error();
  }
  return builder.finish();
}

result<lifetimes> find_lifetimes(const trace_data& trace, const lifetime_options& options) {
  return find_lifetimes(trace.events, trace.info.name, options);
}

}  // namespace millpond::trace
