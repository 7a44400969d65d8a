#include "adapters/torch/graph_pool.hpp"

#include <algorithm>

#include "base/bits.hpp"
#include "millpond/memory_resource.hpp"
#include "millpond/units.hpp"

namespace millpond::torch {
namespace {
constexpr std::uint64_t granule = default_alignment;
// Of twelve captured BERT graphs (the workload cuda_graphs of docs/pytorch.md) chunks of at least 1 MiB, to 64 KiB, hold 1.13 times
// what lives at the graphs' peaks; of 2 MiB 1.20, of 8 MiB 1.27.
constexpr std::uint64_t least_chunk = 1 * MiB;
constexpr std::uint64_t chunk_unit = 64 * KiB;
}  // namespace

std::uint64_t graph_pool::chunk_bytes_for(std::uint64_t bytes) noexcept {
  return align_up(std::max(bytes, least_chunk), chunk_unit);
}

void graph_pool::add_chunk(chunk lent, stream_handle stream) {
  chunks_.push_back(lent);
  chunk_bytes_ += lent.bytes;
  blocks_[lent.start] = {lent.bytes, 0, stream, state::free, false, true};
  free_.insert({stream, lent.bytes, lent.start});
}

void* graph_pool::allocate(std::uint64_t bytes, stream_handle stream) {
  const std::uint64_t size = align_up(bytes, granule);
  const auto found = free_.lower_bound({stream, size, 0});
  if (found == free_.end() || std::get<0>(*found) != stream) return nullptr;
  const std::uint64_t start = std::get<2>(*found);
  free_.erase(found);
  block& taken = blocks_[start];
  if (taken.bytes > size) {
    blocks_[start + size] = {taken.bytes - size, 0, stream, state::free, false, false};
    free_.insert({stream, taken.bytes - size, start + size});
    taken.bytes = size;
  }
  taken.is = state::live;
  taken.requested = bytes;
  taken.other_use = false;
  ++live_blocks_;
  live_bytes_ += bytes;
  peak_live_bytes_ = std::max(peak_live_bytes_, live_bytes_);
  return reinterpret_cast<void*>(start);
}

std::uint64_t graph_pool::deallocate(void* ptr) {
  const auto at = blocks_.find(reinterpret_cast<std::uint64_t>(ptr));
  if (at == blocks_.end() || at->second.is != state::live) return 0;
  --live_blocks_;
  const std::uint64_t requested = at->second.requested;
  live_bytes_ -= requested;
  if (at->second.other_use && captures > 0) {
    at->second.is = state::kept_back;
  } else {
    make_free(at);
  }
  return requested;
}

void graph_pool::make_free(blocks::iterator at) {
  const auto joins = [](const blocks::iterator& first, const blocks::iterator& second) {
    return first->second.is == state::free && !second->second.first_of_chunk && first->second.stream == second->second.stream &&
           first->first + first->second.bytes == second->first;
  };
  at->second.is = state::free;
  at->second.other_use = false;
  if (const auto next = std::next(at); next != blocks_.end() && next->second.is == state::free && joins(at, next)) {
    free_.erase({next->second.stream, next->second.bytes, next->first});
    at->second.bytes += next->second.bytes;
    blocks_.erase(next);
  }
  if (at != blocks_.begin()) {
    if (const auto before = std::prev(at); joins(before, at)) {
      free_.erase({before->second.stream, before->second.bytes, before->first});
      before->second.bytes += at->second.bytes;
      blocks_.erase(at);
      at = before;
    }
  }
  free_.insert({at->second.stream, at->second.bytes, at->first});
}

bool graph_pool::note_other_use(void* ptr) {
  const auto at = blocks_.find(reinterpret_cast<std::uint64_t>(ptr));
  if (at == blocks_.end() || at->second.is != state::live) return false;
  at->second.other_use = true;
  return true;
}

void graph_pool::capture_ended() {
  // make_free joins neighbours, so the walk starts again after each: kept-back blocks are few.
  for (auto at = blocks_.begin(); at != blocks_.end();) {
    if (at->second.is != state::kept_back) {
      ++at;
      continue;
    }
    make_free(at);
    at = blocks_.begin();
  }
}

std::vector<graph_pool::chunk> graph_pool::take_idle_chunks() {
  std::vector<chunk> out;
  std::erase_if(chunks_, [&](const chunk& each) {
    const auto at = blocks_.find(each.start);
    if (at->second.is != state::free || at->second.bytes != each.bytes) return false;
    free_.erase({at->second.stream, each.bytes, each.start});
    blocks_.erase(at);
    chunk_bytes_ -= each.bytes;
    out.push_back(each);
    return true;
  });
  return out;
}

std::uint64_t graph_pool::forget_peak() noexcept {
  const std::uint64_t fell = peak_live_bytes_ - live_bytes_;
  peak_live_bytes_ = live_bytes_;
  return fell;
}

graph_pool::chunk graph_pool::find(const void* ptr) const noexcept {
  const auto address = reinterpret_cast<std::uint64_t>(ptr);
  auto at = blocks_.upper_bound(address);
  if (at == blocks_.begin()) return {};
  --at;
  if (at->second.is != state::live || address >= at->first + at->second.bytes) return {};
  return {at->first, at->second.bytes};
}

}  // namespace millpond::torch
