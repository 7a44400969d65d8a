#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

#include "heap/extent.hpp"
#include "order/stream_batches.hpp"
#include "pool/cache/reuse_streak.hpp"
#include "pool/cache/stream_cache.hpp"

namespace millpond {

// A stream as the pool knows it: by identity, never by handle.
struct stream_state {
  std::shared_ptr<order::stream_batches> batches;
  heap::owner_id owner = heap::anyone;
  std::atomic<std::uint32_t> holders{0};     // caches and guarded blocks that point here
  std::atomic<std::uint64_t> seals_seen{0};  // the pool's wish for seals that it last answered
  std::atomic<std::uint64_t> retired{
      0};  // batches up to here are known to the heap as passed; written under its lock
  stream_cache shared;  // free blocks for any cache of the stream
  reuse_streak streak;  // for large ones of them, beyond what caches share
};

}  // namespace millpond
