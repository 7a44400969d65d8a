#include "driver/sim/pools.hpp"

#include <algorithm>

namespace millpond::sim {
namespace {

constexpr std::uint64_t block_alignment = 512;

}  // namespace

pool::~pool() {
  for (const auto& [address, bytes] : segments_) memory_.remove_segment(address);
}

bool pool::usable(const hole& h, const timeline& line, std::uint64_t now_ns) const noexcept {
  if (h.ready_ns <= now_ns || h.owner == line.number) return true;
  return std::all_of(h.after.points().begin(), h.after.points().end(),
                     [&](const point& p) { return order_.ordered(p, line); });
}

// The smallest hole that fits; with a line, only one that it may have without waiting.
pool::holes::iterator pool::best(std::uint64_t bytes, const timeline* line, std::uint64_t now_ns) {
  // Only so many are looked at: the driver's search is bounded too.
  int looks = 64;
  for (auto it = by_size_.lower_bound({bytes, 0}); it != by_size_.end() && looks-- > 0; ++it) {
    const auto found = holes_.find(it->first.second);
    if (line == nullptr || usable(found->second, *line, now_ns)) return found;
  }
  return holes_.end();
}

driver_status pool::grow(std::uint64_t bytes, std::uint64_t now_ns, std::uint64_t& grown) {
  std::uint64_t ask = align_up(bytes, step_);
  if (max_ != 0 && reserved_ + ask > max_) {
    // The last step may be a part of one.
    ask = align_up(bytes, page_bytes);
    if (reserved_ + ask > max_) return driver_status::out_of_memory;
  }
  std::uint64_t address = 0;
  driver_status status = memory_.add_segment(ask, place_, self_, address);
  if (status != driver_status::success && ask > align_up(bytes, page_bytes)) {
    ask = align_up(bytes, page_bytes);
    status = memory_.add_segment(ask, place_, self_, address);
  }
  if (status != driver_status::success) return status;
  segments_.emplace(address, ask);
  reserved_ += ask;
  reserved_high_ = std::max(reserved_high_, reserved_);
  grown = ask;
  hole h;
  h.bytes = ask;
  h.segment = address;
  insert(address, std::move(h), now_ns);
  return driver_status::success;
}

// Joins neighbours of the same segment that serve the same streams: what is ready with what is ready, and
// what waits for a stream with what waits for the same one.
pool::holes::iterator pool::insert(std::uint64_t address, hole h, std::uint64_t now_ns) {
  if (h.ready_ns <= now_ns) {
    h.ready_ns = h.owner = 0;
  } else {
    ++waiting_;
  }
  const auto joins = [&](const hole& other) {
    if (other.segment != h.segment) return false;
    return h.ready_ns == 0 ? other.ready_ns <= now_ns : other.ready_ns > now_ns && other.owner == h.owner;
  };
  const auto absorb = [&](holes::iterator other) {
    const hole& o = other->second;
    if (h.ready_ns != 0) h.ready_ns = std::max(h.ready_ns, o.ready_ns);
    h.after.join(o.after);
    h.bytes += o.bytes;
    by_size_.erase({o.bytes, other->first});
    return holes_.erase(other);
  };
  auto next = holes_.lower_bound(address);
  if (next != holes_.end() && next->first == address + h.bytes && joins(next->second)) next = absorb(next);
  if (next != holes_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second.bytes == address && joins(before->second)) {
      address = before->first;
      next = absorb(before);
    }
  }
  by_size_.emplace(std::pair{h.bytes, address}, address);
  return holes_.emplace_hint(next, address, std::move(h));
}

// Time has passed: joins the holes that have become ready meanwhile.
void pool::join_ready(std::uint64_t now_ns) {
  if (waiting_ == 0) return;
  waiting_ = 0;
  for (auto it = holes_.begin(); it != holes_.end();) {
    if (it->second.ready_ns == 0 || it->second.ready_ns > now_ns) {
      if (it->second.ready_ns != 0) ++waiting_;
      ++it;
      continue;
    }
    hole ready = std::move(it->second);
    const std::uint64_t address = it->first;
    by_size_.erase({ready.bytes, address});
    holes_.erase(it);
    it = std::next(insert(address, std::move(ready), now_ns));
  }
}

// What this line may have already, because it is over or because the line itself is behind it, becomes one
// range wherever it lies side by side. The range is then the line's alone until it is over.
void pool::join_for(const timeline& line, std::uint64_t now_ns) {
  for (auto it = holes_.begin(); it != holes_.end();) {
    const auto next = std::next(it);
    if (next == holes_.end()) break;
    hole& a = it->second;
    hole& b = next->second;
    const bool side_by_side = a.segment == b.segment && it->first + a.bytes == next->first;
    if (!side_by_side || !usable(a, line, now_ns) || !usable(b, line, now_ns)) {
      it = next;
      continue;
    }
    by_size_.erase({a.bytes, it->first});
    by_size_.erase({b.bytes, next->first});
    a.bytes += b.bytes;
    a.ready_ns = std::max(a.ready_ns, b.ready_ns);
    a.owner = a.ready_ns > now_ns ? line.number : 0;
    a.after.join(b.after);
    by_size_.emplace(std::pair{a.bytes, it->first}, it->first);
    holes_.erase(next);
  }
}

pool::answer pool::allocate(std::uint64_t bytes, const timeline& line, std::uint64_t now_ns) {
  answer out;
  const std::uint64_t size = align_up(bytes, block_alignment);
  if (size < bytes || size > memory_.device_total() + (std::uint64_t{1} << 46)) {
    out.status = driver_status::out_of_memory;
    return out;
  }
  auto it = best(size, &line, now_ns);
  if (it == holes_.end() && waiting_ > 0) {
    join_ready(now_ns);
    it = best(size, &line, now_ns);
  }
  if (it == holes_.end() && waiting_ > 0) {
    join_for(line, now_ns);
    it = best(size, &line, now_ns);
  }
  if (it == holes_.end()) {
    it = best(size, nullptr, now_ns);
    if (it != holes_.end()) out.wait_until_ns = it->second.ready_ns;
  }
  if (it == holes_.end()) {
    // Free segments that are each too small are given up for one that is large enough: the driver maps its
    // pages anew, which is why its pools stay near what one heap would reserve (1.05 to 1.33 of the peak of
    // live bytes on the recorded traces).
    const std::uint64_t ask = align_up(size, step_);
    trim(reserved_ > ask ? reserved_ - ask : 0, now_ns);
    out.status = grow(size, now_ns, out.grown_bytes);
    if (out.status != driver_status::success) return out;
    it = best(size, &line, now_ns);
    MILLPOND_CHECK(it != holes_.end(), size);
  }
  // The driver has seen, or makes sure, that the work before these frees is over.
  out.after = it->second.after;
  out.address = it->first;
  hole rest = std::move(it->second);
  by_size_.erase({rest.bytes, it->first});
  holes_.erase(it);
  const std::uint64_t segment = rest.segment;
  if (rest.bytes > size) {
    rest.bytes -= size;
    by_size_.emplace(std::pair{rest.bytes, out.address + size}, out.address + size);
    holes_.emplace(out.address + size, std::move(rest));
  }
  memory_.add_block(segment, out.address, bytes);
  blocks_.emplace(out.address, block{size, segment});
  used_ += size;
  used_high_ = std::max(used_high_, used_);
  return out;
}

void pool::free(std::uint64_t address, point freed, const vector_clock& clock, std::uint64_t ready_ns,
                std::uint64_t now_ns) {
  const auto it = blocks_.find(address);
  MILLPOND_CHECK(it != blocks_.end(), address);
  const block b = it->second;
  blocks_.erase(it);
  memory_.remove_block(address);
  used_ -= b.bytes;
  hole h;
  h.bytes = b.bytes;
  h.segment = b.segment;
  h.ready_ns = ready_ns;
  h.owner = freed.timeline;
  h.after = clock;
  insert(address, std::move(h), now_ns);
}

std::uint64_t pool::trim(std::uint64_t keep, std::uint64_t now_ns) {
  std::uint64_t given = 0;
  join_ready(now_ns);
  for (auto it = segments_.begin(); it != segments_.end() && reserved_ > keep;) {
    const auto whole = holes_.find(it->first);
    if (whole == holes_.end() || whole->second.bytes != it->second || whole->second.ready_ns > now_ns ||
        reserved_ - it->second < keep) {
      ++it;
      continue;
    }
    by_size_.erase({whole->second.bytes, whole->first});
    holes_.erase(whole);
    memory_.remove_segment(it->first);
    reserved_ -= it->second;
    given += it->second;
    it = segments_.erase(it);
  }
  return given;
}

}  // namespace millpond::sim
