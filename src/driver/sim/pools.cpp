#include "driver/sim/pools.hpp"

#include <algorithm>

namespace millpond::sim {
namespace {

constexpr std::uint64_t block_alignment = 512;
// A pool's first range of addresses has room for this many steps at least; each further one is
// twice as large.
constexpr std::uint64_t least_steps = 16;

// What a block takes of the heap.
std::uint64_t size_of(std::uint64_t bytes) noexcept {
  return align_up(bytes, bytes < page_bytes ? block_alignment : page_bytes);
}

}  // namespace

pool::~pool() {
  for (const auto& [address, bytes] : segments_) memory_.remove_segment(address);
  for (const auto& [address, each] : ranges_) memory_.remove_range(address);
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

driver_status pool::add_range(std::uint64_t bytes) {
  std::uint64_t size = std::max(least_steps * step_, align_up(memory_.device_total() / 32, step_))
                       << ranges_.size();
  for (size = std::max(size, bytes);; size = std::max(align_up(size / 2, page_bytes), bytes)) {
    std::uint64_t address = 0;
    const driver_status status = memory_.add_range(size, location_, address);
    if (status == driver_status::success) {
      ranges_.emplace(address, range{address + size, address});
      last_range_ = address;
      return status;
    }
    if (size == bytes) return status;
  }
}

// At the end of the range that grows. What is there already (the last hole) is for the caller to
// count.
driver_status pool::add_segments(std::uint64_t bytes, std::uint64_t now_ns) {
  range& grows = ranges_.at(last_range_);
  const driver_status status = memory_.add_segments(last_range_, grows.top, bytes, step_, self_);
  if (status != driver_status::success) return status;
  for (std::uint64_t at = grows.top; at < grows.top + bytes; at += step_) {
    segments_.emplace(at, std::min(step_, grows.top + bytes - at));
  }
  reserved_ += bytes;
  reserved_high_ = std::max(reserved_high_, reserved_);
  hole h;
  h.bytes = bytes;
  h.range = last_range_;
  const std::uint64_t at = grows.top;
  grows.top += bytes;
  insert(at, std::move(h), now_ns);
  return status;
}

driver_status pool::grow(std::uint64_t bytes, const timeline& line, std::uint64_t now_ns,
                         answer& out) {
  // What is free at the end serves too.
  std::uint64_t there = 0;
  if (!ranges_.empty() && !holes_.empty()) {
    const range& grows = ranges_.at(last_range_);
    auto last = holes_.lower_bound(grows.top);
    if (last != holes_.begin()) {
      --last;
      const bool ends =
          last->second.range == last_range_ && last->first + last->second.bytes == grows.top;
      if (ends && usable(last->second, line, now_ns)) there = last->second.bytes;
    }
  }
  if (ranges_.empty() ||
      ranges_.at(last_range_).end - ranges_.at(last_range_).top < align_up(bytes - there, step_)) {
    const driver_status status = add_range(align_up(bytes, step_));
    if (status != driver_status::success) return status;
    there = 0;
  }
  std::uint64_t ask = align_up(bytes - there, step_);
  out.moved_bytes = remove_free(ask, ranges_.at(last_range_).top - there, now_ns);
  // The last step may be a part of one.
  const std::uint64_t least = align_up(bytes - there, page_bytes);
  if (max_ != 0 && reserved_ + ask > max_) ask = least;
  if (max_ != 0 && reserved_ + ask > max_) return driver_status::out_of_memory;
  driver_status status = add_segments(ask, now_ns);
  if (status != driver_status::success && ask > least) {
    ask = least;
    status = add_segments(ask, now_ns);
  }
  if (status == driver_status::success) out.grown_bytes = ask;
  return status;
}

// Removes free segments that lie before an address of the last range, out of the smallest holes
// first, until `most` bytes are.
std::uint64_t pool::remove_free(std::uint64_t most, std::uint64_t before, std::uint64_t now_ns) {
  std::uint64_t removed = 0;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> candidates;  // {address, bytes}
  for (auto it = by_size_.lower_bound({page_bytes, 0}); it != by_size_.end(); ++it) {
    const hole& h = holes_.at(it->second);
    if (h.ready_ns <= now_ns) candidates.emplace_back(it->second, h.bytes);
  }
  for (const auto& [address, bytes] : candidates) {
    const bool at_the_end = holes_.at(address).range == last_range_ && address + bytes > before;
    if (at_the_end) continue;
    for (auto it = segments_.lower_bound(address); removed < most && it != segments_.end();) {
      if (it->first + it->second > address + bytes || removed + it->second > most) break;
      removed += it->second;
      const auto next = std::next(it);
      remove_segment(it);
      it = next;
    }
    if (removed >= most) break;
  }
  return removed;
}

// One that is free, whole and ready: what is left of its hole stays on either side.
void pool::remove_segment(std::map<std::uint64_t, std::uint64_t>::iterator segment) {
  const auto [begin, bytes] = *segment;
  auto it = std::prev(holes_.upper_bound(begin));
  const std::uint64_t address = it->first;
  const std::uint64_t end = address + it->second.bytes;
  MILLPOND_CHECK(begin + bytes <= end, begin, bytes);
  hole left = it->second, right = std::move(it->second);
  by_size_.erase({end - address, address});
  holes_.erase(it);
  left.bytes = begin - address;
  right.bytes = end - begin - bytes;
  const std::uint64_t home = right.range;
  for (auto& [at, part] : {std::pair{address, &left}, std::pair{begin + bytes, &right}}) {
    if (part->bytes == 0) continue;
    by_size_.emplace(std::pair{part->bytes, at}, at);
    holes_.emplace(at, std::move(*part));
  }
  memory_.remove_segment(begin);
  reserved_ -= bytes;
  const auto next = segments_.erase(segment);
  // The addresses after the last segment serve again.
  range& r = ranges_.at(home);
  if (begin + bytes != r.top) return;
  r.top = home;
  if (next != segments_.begin() && std::prev(next)->first >= home)
    r.top = std::prev(next)->first + std::prev(next)->second;
}

// Joins neighbours of the same range that serve the same streams: what is ready with what is ready,
// and what waits for a stream with what waits for the same one.
pool::holes::iterator pool::insert(std::uint64_t address, hole h, std::uint64_t now_ns) {
  if (h.ready_ns <= now_ns) {
    h.ready_ns = h.owner = 0;
  } else {
    ++waiting_;
  }
  const auto joins = [&](const hole& other) {
    if (other.range != h.range) return false;
    return h.ready_ns == 0 ? other.ready_ns <= now_ns
                           : other.ready_ns > now_ns && other.owner == h.owner;
  };
  const auto absorb = [&](holes::iterator other) {
    hole& o = other->second;
    if (h.ready_ns != 0) h.ready_ns = std::max(h.ready_ns, o.ready_ns);
    h.after.join(std::move(o.after));
    h.bytes += o.bytes;
    by_size_.erase({o.bytes, other->first});
    return holes_.erase(other);
  };
  auto next = holes_.lower_bound(address);
  if (next != holes_.end() && next->first == address + h.bytes && joins(next->second))
    next = absorb(next);
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

// What this line may have already, because it is over or because the line itself is behind it,
// becomes one range wherever it lies side by side. The range is then the line's alone until it is
// over.
void pool::join_for(const timeline& line, std::uint64_t now_ns) {
  for (auto it = holes_.begin(); it != holes_.end();) {
    const auto next = std::next(it);
    if (next == holes_.end()) break;
    hole& a = it->second;
    hole& b = next->second;
    const bool side_by_side = a.range == b.range && it->first + a.bytes == next->first;
    if (!side_by_side || !usable(a, line, now_ns) || !usable(b, line, now_ns)) {
      it = next;
      continue;
    }
    by_size_.erase({a.bytes, it->first});
    by_size_.erase({b.bytes, next->first});
    a.bytes += b.bytes;
    a.ready_ns = std::max(a.ready_ns, b.ready_ns);
    a.owner = a.ready_ns > now_ns ? line.number : 0;
    a.after.join(std::move(b.after));
    by_size_.emplace(std::pair{a.bytes, it->first}, it->first);
    holes_.erase(next);
  }
}

pool::answer pool::allocate(std::uint64_t bytes, const timeline& line, std::uint64_t now_ns) {
  answer out;
  const std::uint64_t size = size_of(bytes);
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
    out.status = grow(size, line, now_ns, out);
    if (out.status == driver_status::success) {
      it = best(size, &line, now_ns);
      if (it == holes_.end()) {
        join_for(line, now_ns);
        it = best(size, &line, now_ns);
      }
      MILLPOND_CHECK(it != holes_.end(), size);
    } else {
      // No more to be had: the stream is made to wait for another's free.
      it = best(size, nullptr, now_ns);
      if (it == holes_.end()) return out;
      out.status = driver_status::success;
      out.wait_until_ns = it->second.ready_ns;
    }
  }
  // The driver has seen, or makes sure, that the work before these frees is over.
  out.after = it->second.after;
  out.address = it->first;
  hole rest = std::move(it->second);
  by_size_.erase({rest.bytes, it->first});
  holes_.erase(it);
  const std::uint64_t home = rest.range;
  if (rest.bytes > size) {
    rest.bytes -= size;
    by_size_.emplace(std::pair{rest.bytes, out.address + size}, out.address + size);
    holes_.emplace(out.address + size, std::move(rest));
  }
  memory_.add_block(home, out.address, bytes, self_);
  blocks_.emplace(out.address, block{size, home, align_up(bytes, block_alignment)});
  used_ += align_up(bytes, block_alignment);
  used_high_ = std::max(used_high_, used_);
  return out;
}

void pool::free(std::uint64_t address, point freed, const vector_clock& clock,
                std::uint64_t ready_ns, std::uint64_t now_ns) {
  const auto it = blocks_.find(address);
  MILLPOND_CHECK(it != blocks_.end(), address);
  const block b = it->second;
  blocks_.erase(it);
  memory_.remove_block(address);
  used_ -= b.used;
  hole h;
  h.bytes = b.bytes;
  h.range = b.range;
  h.ready_ns = ready_ns;
  h.owner = freed.timeline;
  h.after = clock;
  insert(address, std::move(h), now_ns);
}

std::uint64_t pool::trim(std::uint64_t keep, std::uint64_t now_ns) {
  std::uint64_t given = 0;
  join_ready(now_ns);
  // From the end, whose addresses then serve again.
  for (auto hole_end = holes_.rbegin(); hole_end != holes_.rend() && reserved_ > keep;) {
    const std::uint64_t address = hole_end->first, end = address + hole_end->second.bytes;
    bool removed = false;
    if (hole_end->second.ready_ns <= now_ns) {
      auto it = segments_.lower_bound(end);
      while (it != segments_.begin() && reserved_ > keep) {
        --it;
        if (it->first + it->second > end) continue;
        if (it->first < address || reserved_ - it->second < keep) break;
        given += it->second;
        const std::uint64_t at = it->first;
        remove_segment(it);
        it = segments_.lower_bound(at);
        removed = true;
      }
    }
    // Removing may have split the hole or ended it: go on below its begin.
    hole_end = removed ? holes::reverse_iterator(holes_.lower_bound(address)) : std::next(hole_end);
  }
  return given;
}

}  // namespace millpond::sim
