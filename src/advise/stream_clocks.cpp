#include "advise/stream_clocks.hpp"

#include <algorithm>

namespace millpond::advise {
namespace {

constexpr std::uint32_t untracked = UINT32_MAX;

// Streams are numbered over all devices, but each device has a default stream of its own.
std::uint64_t key_of(std::uint64_t stream, std::uint16_t device) {
  return stream != 0 ? stream : (UINT64_MAX - device);
}

}  // namespace

void stream_clocks::join(clock& into, const clock& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

std::uint32_t stream_clocks::slot_of(std::uint64_t stream, std::uint16_t device) {
  const auto found = slots_.find(key_of(stream, device));
  if (found != slots_.end()) return found->second;
  if (caches_.size() >= most_streams) {
    overflowed_ = true;
    return untracked;
  }
  const auto slot = static_cast<std::uint32_t>(caches_.size());
  cache& made = caches_.emplace_back();
  made.device = device;
  made.is_default = stream == 0;
  slots_.emplace(key_of(stream, device), slot);
  if (made.is_default) defaults_[device] = slot;
  return slot;
}

void stream_clocks::stream_created(std::uint64_t stream, std::uint16_t device,
                                   bool waits_for_default) {
  const std::uint32_t slot = slot_of(stream, device);
  if (slot != untracked && stream != 0) caches_[slot].waits_for_default = waits_for_default;
}

stream_clocks::cache& stream_clocks::brought_up(std::uint32_t slot) {
  cache& mine = caches_[slot];
  if (mine.host_version != host_version_) {
    join(mine.seen, host_);
    mine.host_version = host_version_;
    ++mine.version;
  }
  if (mine.is_default) {
    for (cache& other : caches_) {
      if (&other == &mine || other.device != mine.device || !other.waits_for_default ||
          other.is_default)
        continue;
      if (other.default_version == other.version) continue;
      join(mine.seen, other.seen);
      other.default_version = other.version;
      ++mine.version;
    }
  } else if (mine.waits_for_default) {
    const auto found = defaults_.find(mine.device);
    if (found != defaults_.end()) {
      cache& first = caches_[found->second];
      if (at(mine.seen, found->second) < at(first.seen, found->second)) {
        join(mine.seen, first.seen);
        ++mine.version;
      }
    }
  }
  return mine;
}

epoch stream_clocks::issue(std::uint64_t stream, std::uint16_t device) {
  const std::uint32_t slot = slot_of(stream, device);
  if (slot == untracked) return {};
  cache& mine = brought_up(slot);
  if (mine.seen.size() <= slot) mine.seen.resize(slot + 1);
  ++mine.version;
  return {slot, ++mine.seen[slot]};
}

void stream_clocks::record(std::uint64_t event, std::uint64_t stream, std::uint16_t device) {
  const std::uint32_t slot = slot_of(stream, device);
  if (slot == untracked) {
    events_.erase(event);
    return;
  }
  events_[event] = brought_up(slot).seen;
}

void stream_clocks::wait(std::uint64_t event, std::uint64_t stream, std::uint16_t device) {
  const std::uint32_t slot = slot_of(stream, device);
  const auto found = events_.find(event);
  if (slot == untracked || found == events_.end()) return;
  cache& mine = brought_up(slot);
  join(mine.seen, found->second);
  ++mine.version;
}

void stream_clocks::host_waits_for_stream(std::uint64_t stream, std::uint16_t device) {
  const std::uint32_t slot = slot_of(stream, device);
  if (slot == untracked) return;
  join(host_, brought_up(slot).seen);
  ++host_version_;
}

void stream_clocks::host_waits_for_event(std::uint64_t event) {
  const auto found = events_.find(event);
  if (found == events_.end()) return;
  join(host_, found->second);
  ++host_version_;
}

void stream_clocks::host_waits_for_device(std::uint16_t device) {
  for (const cache& each : caches_) {
    if (each.device == device) join(host_, each.seen);
  }
  ++host_version_;
}

bool stream_clocks::knows(std::uint64_t stream, std::uint16_t device, epoch work) {
  if (!work.tracked()) return true;
  const std::uint32_t slot = slot_of(stream, device);
  if (slot == untracked || slot == work.slot) return true;
  return at(brought_up(slot).seen, work.slot) >= work.value;
}

bool stream_clocks::host_knows(epoch work) const noexcept {
  return !work.tracked() || at(host_, work.slot) >= work.value;
}

bool stream_clocks::device_busy(std::uint16_t device) const noexcept {
  for (std::uint32_t slot = 0; slot < caches_.size(); ++slot) {
    if (caches_[slot].device == device && at(caches_[slot].seen, slot) > at(host_, slot))
      return true;
  }
  return false;
}

}  // namespace millpond::advise
