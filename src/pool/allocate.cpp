// The slow paths of an allocation: from the stream cache to the heap, and from there to growth and
// the ladder of pressure.cpp.
#include <algorithm>

#include "base/check.hpp"
#include "base/prefetch.hpp"
#include "driver/relaxed_capture.hpp"
#include "pool/fast_path.hpp"

namespace millpond {
namespace {

// From here on an allocation of a pool with several streams asks the fences before it takes a
// place. Without that, large blocks of several streams spread over all that was ever free: a
// recorded workload of four streams needed four times as many moves.
constexpr std::uint64_t worth_asking = std::uint64_t{4} << 20;

}  // namespace

pool::core::request::request(std::uint64_t asked, std::uint64_t aligned)
    : bytes(asked), alignment(std::max(aligned, heap::granule)) {
  if (bytes <= small_limit && aligned <= heap::granule) {
    size_class = static_cast<std::uint16_t>(class_of(bytes));
    size = class_bytes(size_class);
  } else {
    size = align_up(bytes, heap::granule);
  }
}

result<void*> pool::core::allocate_from(thread_cache& in, std::uint64_t bytes,
                                        std::uint64_t alignment) {
  // A pressure callback may free on other streams and trim, both of which drop idle caches of this
  // thread.
  struct call_under_way {
    thread_cache& of;
    explicit call_under_way(thread_cache& cache) noexcept : of(cache) { ++of.in_call; }
    ~call_under_way() { --of.in_call; }
    call_under_way(const call_under_way&) = delete;
    call_under_way& operator=(const call_under_way&) = delete;
  } const until_it_ends(in);
  if (alignment <= heap::granule) {
    if (void* const ptr = pop_shared(in, bytes)) return ptr;
  }
  drain_released();
  request what(bytes, alignment);
  what.stream = in.stream;
  what.owner = in.stream->owner;
  what.handle = in.handle;
  auto found = acquire(what, &in);
  if (!found) return found.error();
  const auto entered = in.lock.enter();
  hand_out(in, **found, bytes);
  in.lock.leave(entered);
  if (__builtin_expect(fell_asleep(in, **found), 0)) return not_serving();
  seal_if_wanted(*in.stream);
  return reinterpret_cast<void*>((*found)->start());
}

// The pool may have gone to sleep since the call began. A sleep says so first, then empties the
// caches behind a barrier for all threads, then notes what is live: so either it has noted this
// block, or the call sees the sleep here and takes the block back.
bool pool::core::fell_asleep(thread_cache& in, heap::extent& block) noexcept {
  if (__builtin_expect(serving(), 1)) return false;
  count_free(&in, block.requested);
  set_state(block, block_state::cached);
  block.link = nullptr;
  flush_chain(*in.stream, &block);
  return true;
}

// From the stream cache, or nullptr.
void* pool::core::pop_shared(thread_cache& in, std::uint64_t bytes) noexcept {
  const auto entered = in.lock.enter();
  set_cache_limits(in);  // the pool may have grown since the cache was made
  // A stranger who held the cache a moment ago made the fast path look elsewhere. What the cache
  // has goes first in any case: what comes from the stream cache takes its place.
  heap::extent* block = in.pop(bytes);
  heap::extent* surplus = nullptr;
  if (block == nullptr) block = from_remote(in, bytes, &surplus);
  if (block == nullptr) {
    block = bytes <= small_limit ? from_stream_cache(in, class_of(bytes))
                                 : large_from_stream_cache(in, align_up(bytes, heap::granule));
  }
  if (block != nullptr) hand_out(in, *block, bytes);
  in.lock.leave(entered);
  if (__builtin_expect(surplus != nullptr, 0)) part_with(in, surplus);
  if (block == nullptr || __builtin_expect(fell_asleep(in, *block), 0)) return nullptr;
  seal_if_wanted(*in.stream);
  return reinterpret_cast<void*>(block->start());
}

// Under the cache's lock, as the next two.
void pool::core::hand_out(thread_cache& in, heap::extent& block, std::uint64_t bytes) noexcept {
  MILLPOND_AUDIT_CHECK(block.holder == nullptr, block.start());
  serve(in, block, bytes);
  in.counts.misses.add(1);
}

heap::extent* pool::core::from_stream_cache(thread_cache& in, unsigned size_class) noexcept {
  const std::uint64_t room = in.small_limit_bytes - std::min(in.small_limit_bytes, in.small_bytes);
  const std::uint64_t most = std::min(room, in.small_limit_bytes / 2) / class_bytes(size_class);
  const stream_cache::chain taken =
      in.stream->shared.take(size_class, std::max<std::uint64_t>(most, 1));
  if (taken.head == nullptr) return nullptr;
  in.counts.stream_cache_hits.add(1);
  if (taken.count > 1) in.adopt(taken.head->link, size_class, taken.count - 1);
  return taken.head;
}

heap::extent* pool::core::large_from_stream_cache(thread_cache& in, std::uint64_t bytes) noexcept {
  const std::uint32_t id = in.stream->shared.take_large(bytes);
  if (id == 0) return nullptr;
  in.counts.stream_cache_hits.add(1);
  return heap_.by_id(id);
}

// A block that its cache keeps no longer: a large one to the stream cache where another cache of
// the stream may want it, else to the heap.
void pool::core::part_with(thread_cache& in, heap::extent* block) noexcept {
  prefetch_to_write(&block->before);  // the part of the record that the heap works on
  stream_state& stream = *in.stream;
  if (block->holder_class == large_class) {
    if (stream.shared.put_large(*block, std::max(stream_cache_limit(in), streak_limit(stream))))
      return;
    if (streaks_count()) stream.streak.gone(block->bytes);
  }
  block->link = nullptr;
  flush_chain(stream, block);
  seal_if_wanted(stream);
}

// What may lie in the stream cache for the stream's other thread caches.
std::uint64_t pool::core::stream_cache_limit(const thread_cache& in) const noexcept {
  return in.stream->holders.load(std::memory_order_relaxed) > 1 ? 4 * in.large_limit_bytes : 0;
}

// What a stream may keep there by its streak: four times an equal share, since not all streams have
// everything at once.
std::uint64_t pool::core::streak_limit(const stream_state& stream) const noexcept {
  if (!stream.streak.given()) return 0;
  const std::uint64_t reserved = reserved_lately_.load(std::memory_order_relaxed);
  return std::min(
      reserved / 4 * 3,
      4 * reserved / std::max<std::uint64_t>(1, cache_count_.load(std::memory_order_relaxed)));
}

// A large request that the stream's own free blocks do not serve goes to the heap. What the stream
// keeps by its streak goes before it: a place is chosen among all that is free.
void pool::core::stream_cache_missed(thread_cache& in, std::uint64_t bytes) noexcept {
  stream_state& stream = *in.stream;
  stream.streak.missed(bytes);
  if (stream.shared.large_bytes() > stream_cache_limit(in)) empty_large_stream_cache(stream);
}

// The heap could not serve a stream: what others keep by their streaks goes there. The streaks
// stay: with them gone, two streams whose large blocks come through stitched ranges, which the heap
// never serves at once, would take each other's away for ever.
void pool::core::reclaim_streaks(const stream_state* but) noexcept {
  const std::shared_lock lock(streams_mutex_);
  for (const auto& [id, stream] : streams_) {
    if (stream.get() != but && stream->streak.given()) empty_large_stream_cache(*stream);
  }
}

void pool::core::take(heap::extent& block, const request& what) {
  block.holder_class = what.size_class;
  carved_ += block.bytes;
  peak_carved_ = std::max(peak_carved_, carved_);
  ++carvings_;
  reclaims_.carved();
  if (carved_ > peak_carved_ / 2) was_busy_ = true;
  reserved_lately_.store(reserved_, std::memory_order_relaxed);
  if (__builtin_expect(ages_ != nullptr, 0)) ages_->touch(block.start(), block.bytes);
}

heap::extent* pool::core::carve_locked(const request& what, bool runs) {
  if (__builtin_expect(!serving(), 0)) return nullptr;  // what is free may have no memory now
  const heap::zone from = what.size_class != large_class ? heap::zone::small : heap::zone::general;
  heap::extent* block =
      heap_.allocate(what.size, what.alignment, what.owner, heap::reach::own_and_idle, from);
  if (block == nullptr && runs) block = heap_.allocate_run(what.size, what.alignment, what.owner);
  if (block == nullptr) return nullptr;
  take(*block, what);
#if defined(MILLPOND_AUDIT)
  heap_.check();
#endif
  return block;
}

heap::extent* pool::core::carve(const request& what, thread_cache* refill) {
  heap::extent* chain = nullptr;
  heap::extent* out = nullptr;
  {
    const std::lock_guard lock(heap_mutex_);
    out = carve_locked(what, false);
    if (out == nullptr) return nullptr;
    if (what.size_class != large_class && refill != nullptr) {
      for (unsigned i = 1; i < handful(what.size); ++i) {
        heap::extent* const block = carve_locked(what, false);
        if (block == nullptr) break;
        block->link = chain;
        chain = block;
      }
    }
  }
  if (refill != nullptr) {
    const auto entered = refill->lock.enter();
    refill->counts.heap_hits.add(1);
    while (chain != nullptr) {
      heap::extent* const block = chain;
      chain = block->link;
      set_state(*block, block_state::cached);
      static_cast<void>(refill->push_small(block));  // a handful is always kept
    }
    refill->lock.leave(entered);
  }
  return out;
}

// The ways to a block, cheapest first. Up to the slack the pool rather grows than takes what caches
// keep.
result<heap::extent*> pool::core::acquire(const request& what, thread_cache* refill) {
  if (lull_.load(std::memory_order_relaxed) && lull_.exchange(false, std::memory_order_relaxed)) {
    counts_.thread_caches_flushed.fetch_add(flush_caches_of(nullptr), std::memory_order_relaxed);
  }
  const bool many =
      many_streams_.load(std::memory_order_relaxed) && options_.reuse != reuse_policy::same_stream;
  if (many && what.size >= worth_asking && refill != nullptr) ask_fences_now_and_then(*refill);
  if (refill != nullptr && what.size_class == large_class && streaks_count())
    stream_cache_missed(*refill, what.size);
  if (heap::extent* const block = carve(what, refill)) return block;
  const contention_estimate::visit queueing(queue_);
  const relaxed_capture_scope relaxed(*gpu_);
  if (streaks_count()) reclaim_streaks(what.stream);
  if (many) {
    seal_wish_.fetch_add(1, std::memory_order_relaxed);
    poll_fences();
  }
  {
    const std::lock_guard lock(heap_mutex_);
    if (heap::extent* const block = carve_locked(what, true)) return block;
  }
  if (would_pass_slack(what)) {
    if (heap::extent* const block = rather_than_growing(what, many)) return block;
  }
  if (past_soft_limit(what.size)) relieve(what.size);
  for (int tries = 0; tries < 8; ++tries) {
    heap::extent* block = nullptr;
    const growth grown = grow(what, &block);
    if (grown == growth::block) return block;
    if (grown == growth::none) break;
    const std::lock_guard lock(heap_mutex_);
    if ((block = carve_locked(what, true)) != nullptr)
      return block;  // unless another thread took it
  }
  if (!serving()) return not_serving();
  return under_pressure(what);
}

// A large block takes the place that it should have only if the heap knows what is free by now.
// Asking goes over all streams, so the more there are the rarer it is done.
void pool::core::ask_fences_now_and_then(const thread_cache& asking) {
  std::uint64_t streams = 0;
  {
    const std::shared_lock lock(streams_mutex_);
    streams = streams_.size();
  }
  if (asking.counts.misses.get() % (1 + streams / 16) != 0) return;
  when_free([&] {
    const relaxed_capture_scope relaxed(*gpu_);
    poll_fences();
  });
}

// Before memory is added beyond the slack, what caches keep is looked at too: it may be what holds
// a stretch in pieces. Then what can be had by stitching, by asking fences and by waiting on the
// GPU.
heap::extent* pool::core::rather_than_growing(const request& what, bool many) {
  const bool flushed = many || flush_is_due();
  const bool much = many && what.stream != nullptr && much_unsealed(*what.stream);
  if (flushed)
    counts_.thread_caches_flushed.fetch_add(flush_caches_of(nullptr), std::memory_order_relaxed);
  if (many) {
    if (what.stream != nullptr) seal(*what.stream);
    // Streams that make no call keep what was freed on them last unsealed. An event over the
    // whole context would cover it, and would break a capture that the pool knows nothing of: not
    // for the sake of some bytes, but rather than grow by what such a stream had by its streak.
    if (much || any_gone()) seal_context();
    poll_fences();
  }
  {
    const std::lock_guard lock(heap_mutex_);
    heap::extent* const block = carve_locked(what, true);
    if (flushed) flush_helped(block != nullptr);
    if (block != nullptr) return block;
  }
  if (!flushed && granularity_ != 0) {
    // Where pages can be moved nothing is added; where not, the caches are emptied first after
    // all.
    heap::extent* block = nullptr;
    {
      const std::lock_guard growing(growth_mutex_);
      if (stitch(what, {}, &block) == growth::block) return block;
    }
    counts_.thread_caches_flushed.fetch_add(flush_caches_of(nullptr), std::memory_order_relaxed);
    const std::lock_guard lock(heap_mutex_);
    block = carve_locked(what, true);
    flush_helped(block != nullptr);
    if (block != nullptr) return block;
  }
  if (many) {
    if (heap::extent* const block = settled(what)) return block;
  }
  return options_.reuse == reuse_policy::may_wait && what.stream != nullptr ? chained(what)
                                                                            : nullptr;
}

// Emptying all caches makes the next requests of all threads slow, so that on one stream it is done
// less often where it did not help: at once after a help, at last once in most_skipped occasions.
// With several streams each holds what another needs, and skipping it cost 4% of the peak on a
// recorded trace of four.
bool pool::core::flush_is_due() noexcept {
  const std::uint32_t skip = flushes_to_skip_.load(std::memory_order_relaxed);
  if (skip == 0) return true;
  flushes_to_skip_.store(skip - 1, std::memory_order_relaxed);
  return false;
}
void pool::core::flush_helped(bool helped) noexcept {
  static constexpr std::uint32_t most_skipped = 15;
  const std::uint32_t pause =
      helped ? 0 : std::min(most_skipped, 2 * flush_pause_.load(std::memory_order_relaxed) + 1);
  flush_pause_.store(pause, std::memory_order_relaxed);
  flushes_to_skip_.store(pause, std::memory_order_relaxed);
}

bool pool::core::would_pass_slack(const request& what) {
  const std::lock_guard lock(heap_mutex_);
  const auto passes = [&] { return reserved_ + missing_bytes(what) > allowed_bytes(what.size); };
  if (!passes()) return false;
  reclaims_.reclaimed(reserved_, slack_bytes(what.size, 1));
  return passes();
}

// Before memory is added beyond the slack, fences that are about to pass are given about as long as
// growing would take: asking is the clock, a question costs about 0.2 us (H200). Where that helped
// the next time gets more, where it did not less, so that a program whose queue is long does not
// pay for it.
heap::extent* pool::core::settled(const request& what) {
  static constexpr std::uint32_t most_questions = 1024;
  // Where others queue behind this thread each question also costs more, and they all wait for the
  // answer.
  std::uint64_t left = patience_.load(std::memory_order_relaxed) / (1 + queue_.others());
  while (left > 0 && nearest_fence() != nullptr) {
    const std::uint64_t asked = counts_.fence_queries.load(std::memory_order_relaxed);
    const bool passed = poll_fences();
    left -= std::min(left, std::max<std::uint64_t>(
                               1, counts_.fence_queries.load(std::memory_order_relaxed) - asked));
    if (!passed) continue;
    const std::lock_guard lock(heap_mutex_);
    if (heap::extent* const block = carve_locked(what, true)) {
      patience_.store(std::min(most_questions, 2 * patience_.load(std::memory_order_relaxed)),
                      std::memory_order_relaxed);
      return block;
    }
  }
  if (left == 0)
    patience_.store(std::max<std::uint32_t>(8, patience_.load(std::memory_order_relaxed) / 2),
                    std::memory_order_relaxed);
  return nullptr;
}

// Policy may_wait: rather than grow past the slack, let this stream wait on the GPU for another's
// frees.
heap::extent* pool::core::chained(const request& what) {
  const std::shared_lock streams(streams_mutex_);
  for (const auto& [id, other] : streams_) {
    if (other.get() == what.stream) continue;
    {
      const std::lock_guard lock(heap_mutex_);
      if (heap_.largest_free(other->owner) < what.size) continue;
    }
    call_result failure;
    const std::uint64_t batch = other->batches->make_wait(*gpu_, what.handle, &failure);
    if (batch == 0) continue;
    counts_.stream_waits.fetch_add(1, std::memory_order_relaxed);
    // Behind the wait the frees up to this batch are in this stream's order: they are its own now.
    const std::lock_guard lock(heap_mutex_);
    heap_.reassign(other->owner, batch, what.owner, what.stream->batches->join(0));
    if (heap::extent* const block = carve_locked(what, true)) return block;
  }
  return nullptr;
}

}  // namespace millpond
