#include "pool/cache/cache_directory.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "base/prefetch.hpp"
#include "driver/own_calls.hpp"
#include "millpond/base/units.hpp"
#include "pool/cache/large_limits.hpp"
#include "pool/fast_path.hpp"

namespace millpond {
namespace {

// What a cache may keep of a small pool, where the options leave it open.
constexpr std::uint64_t least_small_cache = 1 * MiB;
constexpr std::uint64_t least_large_cache = 4 * MiB;
constexpr std::uint64_t small_pool_a_cache =
    32 * MiB;  // up to here what caches keep is most of what there is
constexpr std::uint64_t least_small_share = 256 * KiB;
constexpr std::uint64_t least_large_share = 1 * MiB;

}  // namespace

cache_directory::cache_directory(const pool_options& options, const pool_phase& phase,
                                 block_store& blocks, stream_directory& streams,
                                 capture_watch& captures)
    : options_(options),
      phase_(phase),
      blocks_(blocks),
      streams_(streams),
      captures_(captures),
      small_limit_(options.cache_small_bytes != 0 ? options.cache_small_bytes : least_small_cache),
      large_limit_(options.cache_large_bytes != 0 ? options.cache_large_bytes : least_large_cache) {
}

// How they come and go
// ----------------------------------------------------------------------------

result<stream_state*> cache_directory::hold_stream(stream_handle stream, std::uint64_t id) {
  const auto met = streams_.meet(stream, id);
  if (!met) return met.error();
  if (met->gone != nullptr) {
    retire(*met->gone);
    met->gone->holders.fetch_sub(1, std::memory_order_acq_rel);
  }
  using unsealed = stream_directory::unsealed;
  if (met->gone != nullptr || met->many) {
    streams_.collect_dead();
  } else if ((met->second || met->looks) &&
             streams_.worth_a_context_fence(
                 met->second ? unsealed::left_by_others : unsealed::left_uncached, met->stream)) {
    // A newcomer would find nothing of it, and the pool grow to twice its size.
    const own_calls_scope own_calls(streams_.gpu());
    streams_.fence_context();
    streams_.poll();
  }
  return met->stream;
}

result<std::unique_ptr<thread_cache>> cache_directory::make(stream_handle stream,
                                                            std::uint64_t id) {
  // All that takes host memory comes before the stream is held.
  auto made = std::make_unique<thread_cache>();
  {
    const mutex_lock lock(mutex_);
    caches_.reserve(caches_.size() + 1 + coming_);
    ++coming_;
  }
  struct arrival {
    cache_directory& at;
    ~arrival() {
      const mutex_lock lock(at.mutex_);
      --at.coming_;
    }
  } const until_it_is_there{*this};
  const auto held = hold_stream(stream, id);
  if (!held) return held.error();
  made->handle = stream;
  made->stream_id = id;
  made->stream = *held;
  {
    const block_store::locked books(blocks_);
    books.note_growth();
    set_limits(books.peak_at_growth());
  }
  limit(*made);
  const mutex_lock lock(mutex_);
  if (checks_frees_) made->set(thread_cache::checks_frees);
  made->number = ++last_number_ != 0 ? last_number_ : ++last_number_;
  caches_.push_back(made.get());
  count_.store(caches_.size(), std::memory_order_relaxed);
  return made;
}

void cache_directory::drop(thread_cache& of) noexcept {
  disconnect(of);
  if (!phase_.closed()) empty(of);
  {
    const mutex_lock lock(mutex_);
    caches_.erase(std::remove(caches_.begin(), caches_.end(), &of), caches_.end());
    count_.store(caches_.size(), std::memory_order_relaxed);
    past_.add(of.counts);
  }
  if (phase_.closed()) return;
  // Nobody takes back what the stream kept for itself.
  if (of.stream->holders.load(std::memory_order_relaxed) == 1)
    streams_.empty_large_cache(*of.stream);
  // A per-thread stream ends with its thread, which is where its last cache is dropped.
  if (of.handle == per_thread_stream) {
    streams_.empty_cache(*of.stream);
    of.stream->batches->set_gone();
  }
  of.stream->holders.fetch_sub(1, std::memory_order_acq_rel);  // from here on it may be collected
}

// 0.5% of the peak in small blocks, where that is more than 1 MiB, and 0.1% in large ones, where
// that is more than 4 MiB: those lie in the way of larger blocks. Several caches in a pool that is
// not small share 0.25% and 1%: four that kept 5 MiB each cost a recorded program of four streams
// 5% of its peak.
void cache_directory::set_limits(std::uint64_t peak_bytes) noexcept {
  const std::uint64_t caches = std::max<std::uint64_t>(1, count());
  std::uint64_t small = std::max(least_small_cache, peak_bytes / 200);
  std::uint64_t large = std::max(least_large_cache, peak_bytes / 1000);
  if (caches > 1 && peak_bytes > caches * small_pool_a_cache) {
    small = std::min(small, std::max(least_small_share, peak_bytes / 400 / caches));
    large = std::min(large, std::max(least_large_share, peak_bytes / 100 / caches));
  }
  if (options_.cache_small_bytes == 0) small_limit_.store(small, std::memory_order_relaxed);
  if (options_.cache_large_bytes == 0) large_limit_.store(large, std::memory_order_relaxed);
}

// The paths
// ----------------------------------------------------------------------------

void* cache_directory::pop(thread_cache& in, std::uint64_t bytes) noexcept {
  return pop_here(*this, in, bytes);
}

bool cache_directory::push(thread_cache& in, void* ptr, std::uint64_t bytes) noexcept {
  return push_here(*this, blocks_, in, ptr, bytes);
}

void* cache_directory::pop_shared(thread_cache& in, std::uint64_t bytes) noexcept {
  const auto entered = in.lock.enter();
  limit(in);  // the pool may have grown since the cache was made
  // A stranger who held the cache a moment ago made the fast path look elsewhere. What the cache
  // has goes first in any case: what comes from the stream cache takes its place.
  heap::extent* block = in.pop(bytes);
  heap::extent* surplus = nullptr;
  if (block == nullptr) block = from_remote(in, bytes, &surplus);
  if (block == nullptr) {
    block = bytes <= small_limit ? from_stream_cache(in, class_of(bytes))
                                 : large_from_stream_cache(in, align_up(bytes, heap::granule));
  }
  if (block != nullptr) serve_missed(in, *block, bytes);
  in.lock.leave(entered);
  if (__builtin_expect(surplus != nullptr, 0)) part_with(in, surplus);
  if (block == nullptr || __builtin_expect(fell_asleep(in, *block), 0)) return nullptr;
  seal_if_due(*in.stream);
  return reinterpret_cast<void*>(block->start());
}

// Under the cache's lock, as the next two.
void cache_directory::serve_missed(thread_cache& in, heap::extent& block,
                                   std::uint64_t bytes) noexcept {
  MILLPOND_AUDIT_CHECK(block.holder == nullptr, block.start());
  serve(*this, in, block, bytes);
  in.counts.misses.add(1);
}

heap::extent* cache_directory::from_stream_cache(thread_cache& in, unsigned size_class) noexcept {
  const std::uint64_t room = in.small_limit_bytes - std::min(in.small_limit_bytes, in.small_bytes);
  const std::uint64_t most = std::min(room, in.small_limit_bytes / 2) / class_bytes(size_class);
  const stream_cache::chain taken =
      in.stream->shared.take(size_class, std::max<std::uint64_t>(most, 1));
  if (taken.head == nullptr) return nullptr;
  in.counts.stream_cache_hits.add(1);
  if (taken.count > 1) in.adopt(taken.head->link, size_class, taken.count - 1);
  return taken.head;
}

heap::extent* cache_directory::large_from_stream_cache(thread_cache& in,
                                                       std::uint64_t bytes) noexcept {
  const std::uint32_t id = in.stream->shared.take_large(bytes);
  if (id == 0) return nullptr;
  in.counts.stream_cache_hits.add(1);
  return blocks_.by_id(id);
}

void cache_directory::hand_out(thread_cache& in, heap::extent& block,
                               std::uint64_t bytes) noexcept {
  const auto entered = in.lock.enter();
  serve_missed(in, block, bytes);
  in.lock.leave(entered);
}

// A sleep says so first, then empties the caches behind a barrier for all threads, then notes what
// is live: so either it has noted this block, or the call sees the sleep here and takes the block
// back.
bool cache_directory::fell_asleep(thread_cache& in, heap::extent& block) noexcept {
  if (__builtin_expect(phase_.serving(), 1)) return false;
  count_free(&in, block.requested);
  set_state(block, block_state::cached);
  block.link = nullptr;
  blocks_.release(*in.stream, &block);
  return true;
}

heap::extent* cache_directory::carve(const block_request& what, thread_cache* refill) {
  heap::extent* chain = nullptr;
  heap::extent* out = nullptr;
  {
    const block_store::locked books(blocks_);
    out = books.carve(what, false);
    if (out == nullptr) return nullptr;
    if (what.size_class != large_class && refill != nullptr) {
      for (unsigned i = 1; i < handful(what.size); ++i) {
        heap::extent* const block = books.carve(what, false);
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

void cache_directory::missed_large(thread_cache& in, std::uint64_t bytes) noexcept {
  stream_state& stream = *in.stream;
  stream.streak.missed(bytes);
  if (stream.shared.large_bytes() > stream_cache_limit(in)) streams_.empty_large_cache(stream);
}

std::uint64_t cache_directory::stream_cache_limit(const thread_cache& in) const noexcept {
  return large_limits::for_other_caches(in.large_limit_bytes,
                                        in.stream->holders.load(std::memory_order_relaxed));
}

std::uint64_t cache_directory::streak_limit(const stream_state& stream) const noexcept {
  return stream.streak.given() ? large_limits::by_streak(blocks_.reserved_lately(), count()) : 0;
}

// A block that its cache keeps no longer: a large one to the stream cache where another cache of
// the stream may want it, else to the heap.
void cache_directory::part_with(thread_cache& in, heap::extent* block) noexcept {
  prefetch_to_write(&block->before);  // the part of the record that the heap works on
  stream_state& stream = *in.stream;
  if (block->holder_class == large_class) {
    if (stream.shared.put_large(*block, std::max(stream_cache_limit(in), streak_limit(stream))))
      return;
    if (streaks_count()) stream.streak.gone(block->bytes);
  }
  block->link = nullptr;
  blocks_.release(stream, block);
  seal_if_due(stream);
}

// The cache has more small blocks than it may keep: a quarter of their bytes goes to the stream
// cache, and from a full stream cache to the heap. No more at once, since one free pays for
// it.
void cache_directory::flush_small(thread_cache& in) noexcept {
  heap::extent* homeward = nullptr;
  const auto entered = in.lock.enter();
  const std::uint64_t target = in.small_limit_bytes - in.small_limit_bytes / 4;
  const auto give = [&](unsigned size_class, stream_cache::chain blocks) {
    in.small_bytes -= blocks.count * class_bytes(size_class);
    blocks.tail->link = nullptr;
    if (in.stream->shared.put(size_class, blocks, in.small_limit_bytes)) return;
    blocks.tail->link = homeward;
    homeward = blocks.head;
  };
  // The largest classes first: few blocks, most bytes. One of each stays, for the next request.
  for (std::uint64_t left = in.filled; left != 0 && in.small_bytes > target;) {
    const unsigned c = floor_log2(left);
    left &= ~(std::uint64_t{1} << c);
    heap::extent* const stays = in.small[c];
    stream_cache::chain out{stays->link, stays, 0};
    const std::uint64_t most = divide_up(in.small_bytes - target, class_bytes(c));
    while (out.count < most && out.tail->link != nullptr) {
      out.tail = out.tail->link;
      ++out.count;
    }
    if (out.count == 0) continue;
    stays->link = out.tail->link;
    give(c, out);
  }
  // Nothing but single ones: then the largest goes.
  if (in.small_bytes > in.small_limit_bytes) {
    const unsigned c = floor_log2(in.filled);
    heap::extent* const single = in.small[c];
    in.small[c] = single->link;
    if (in.small[c] == nullptr) in.filled &= ~(std::uint64_t{1} << c);
    give(c, {single, single, 1});
  }
  in.lock.leave(entered);
  if (homeward == nullptr) return;
  blocks_.release(*in.stream, homeward);
  seal_if_due(*in.stream);
}

void cache_directory::seal_if_due(stream_state& stream) noexcept {
  if (__builtin_expect(streams_.seal_if_due(stream), 0)) retire(stream);
}
void cache_directory::seal(stream_state& stream) noexcept {
  if (streams_.seal(stream)) retire(stream);
}

// Emptying
// ----------------------------------------------------------------------------

void cache_directory::empty(thread_cache& of) noexcept {
  of.lock.foreign_lock();
  drain_remote(of);
  heap::extent* const chain = of.empty();
  of.lock.foreign_unlock();
  if (chain != nullptr) blocks_.release(*of.stream, chain);
}

void cache_directory::flush(const stream_state* only) noexcept {
  {
    const mutex_lock lock(mutex_);
    with_locked(only, [&](thread_cache& l) {
      heap::extent* const chain = l.empty();
      if (only != nullptr && only->batches->gone()) l.set(thread_cache::is_dead);
      if (chain != nullptr) blocks_.release(*l.stream, chain);
    });
  }
  streams_.empty_caches(only);
}

void cache_directory::flush_for_memory() noexcept {
  flushed_.fetch_add(count(), std::memory_order_relaxed);
  flush(nullptr);
}

void cache_directory::retire(stream_state& gone) noexcept {
  gone.batches->set_gone();
  flush(&gone);
  if (!names_many(gone.batches->handle())) captures_.note_end(gone.batches->handle());
}

// Counts
// ----------------------------------------------------------------------------

void cache_directory::count_free(thread_cache* counted, std::uint64_t bytes) noexcept {
  if (counted == nullptr) return count_frees(1, bytes);
  const auto entered = counted->lock.enter();
  counted->counts.deallocations.add(1);
  counted->counts.bytes_in.add(bytes);
  counted->lock.leave(entered);
}

void cache_directory::count_frees(std::uint64_t blocks, std::uint64_t bytes) noexcept {
  const mutex_lock lock(mutex_);
  past_.deallocations.add(blocks);
  past_.bytes_in.add(bytes);
}

void cache_directory::count_allocation(std::uint64_t bytes) noexcept {
  const mutex_lock lock(mutex_);
  past_.allocations.add(1);
  past_.misses.add(1);
  past_.bytes_out.add(bytes);
}

void cache_directory::count_past(const cache_counters& of) noexcept {
  const mutex_lock lock(mutex_);
  past_.add(of);
}

void cache_directory::count(pool_statistics& out, const cache_counters& more) {
  cache_counters sum;
  sum.add(more);
  {
    const mutex_lock lock(mutex_);
    sum.add(past_);
    with_locked(nullptr, [&](thread_cache& l) {
      out.cached_bytes += l.small_bytes + l.large_bytes + l.remote_bytes();
      for (const auto& box : l.remote.in)
        out.metadata_bytes += box != nullptr ? sizeof(remote_free_queue) : 0;
    });
    for (const thread_cache* const l : caches_)
      sum.add(l->counts);  // behind the remote frees, of which some may have been refused
    out.thread_caches = caches_.size();
    out.metadata_bytes += out.thread_caches * sizeof(thread_cache) + owners_.bytes();
  }
  out.allocations = sum.allocations.get();
  out.deallocations = sum.deallocations.get();
  out.stream_cache_hits = sum.stream_cache_hits.get();
  out.heap_hits = sum.heap_hits.get();
  // A free on one thread may be counted before its allocation on another: what is in flight, never
  // a negative number.
  const auto past = [](std::uint64_t all, std::uint64_t less) {
    return all > less ? all - less : 0;
  };
  out.live_bytes = past(sum.bytes_out.get(), sum.bytes_in.get());
  out.live_blocks = past(out.allocations, out.deallocations);
  out.thread_cache_hits = past(out.allocations, sum.misses.get());
  out.thread_caches_flushed = flushed_.load(std::memory_order_relaxed);
}

}  // namespace millpond
