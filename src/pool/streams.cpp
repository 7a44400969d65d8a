// Streams and caches: who they are, and how they come and go.
#include <algorithm>
#include <new>
#include <tuple>

#include "driver/relaxed_capture.hpp"
#include "millpond/base/units.hpp"
#include "order/stream_batches.hpp"
#include "pool/core.hpp"

namespace millpond {
namespace {

constexpr std::uint64_t lull_share =
    16;  // of the peak: less than this is out of the heap in a lull
// Whether what other streams left unfenced is worth a fence over the context: an eighth of the
// pool.
[[nodiscard]] bool worth_a_context_fence(std::uint64_t bytes, std::uint64_t reserved) noexcept {
  return bytes >= std::max<std::uint64_t>(8 * MiB, reserved / 8);
}
constexpr std::size_t most_used = 1024;  // streams that record_use named, and were asked
constexpr std::uint64_t between_lulls =
    256;  // carvings, so that a loop over one large block does not pay for it each time

}  // namespace

heap::owner_id pool::core::new_owner() {
  const std::lock_guard lock(heap_mutex_);
  if (free_owners_.empty()) {
    free_owners_.reserve(next_owner_ + 1);  // so that giving one back needs no host memory
    if (!heap_.open_owner(next_owner_)) throw std::bad_alloc();
    return next_owner_++;
  }
  const heap::owner_id out = free_owners_.back();
  free_owners_.pop_back();
  return out;
}

// Nothing is free for it any more.
void pool::core::drop_owner(heap::owner_id owner) noexcept {
  const std::lock_guard lock(heap_mutex_);
  free_owners_.push_back(owner);
}

// Streams of a context that cuCtxCreate made take no event of the pool's: cuEventRecord answers
// CUDA_ERROR_INVALID_HANDLE, while a green context's streams take them (H200, driver 580.159,
// 2026-12-01). The stream captures nothing, and has been asked its identity.
result<void> pool::core::of_own_context(stream_handle stream, std::uint64_t id, const char* call) {
  if (id == cross_stream_uses::unidentified) return {};
  {
    const std::shared_lock lock(streams_mutex_);
    if (streams_.contains(id) || used_.contains(id)) return {};
  }
  event_handle event = nullptr;
  {
    const relaxed_capture_scope relaxed(*gpu_);
    if (!events_.get(&event).ok()) return {};  // what needs an event says so
  }
  const call_result answer = gpu_->event_record(event, stream);  // a default stream: of the user's
  events_.put(event);
  if (answer.status == driver_status::invalid_handle) {
    return error{error_code::invalid_argument,
                 std::string(call) +
                     ": the stream is of another context of the device than the pool's, whose work "
                     "no fence of the pool covers; make a stream of the pool's context wait for it "
                     "and name that: " +
                     to_string(answer)};
  }
  if (!answer.ok()) return {};
  const std::unique_lock lock(streams_mutex_);
  if (used_.size() >= most_used) used_.clear();  // they are asked again
  used_.insert(id);
  return {};
}

std::unique_ptr<stream_state> pool::core::new_stream(stream_handle handle, std::uint64_t id) {
  auto made = std::make_unique<stream_state>();
  made->batches = std::make_shared<order::stream_batches>(id, handle);
  made->owner = new_owner();  // last: nothing that follows may fail
  return made;
}

result<stream_state*> pool::core::hold_stream(stream_handle handle, std::uint64_t id) {
  const auto held = [](stream_state& s) {
    s.holders.fetch_add(1, std::memory_order_relaxed);
    s.batches->set_here();  // a per-thread stream counts as gone when its last cache went, but its
                            // thread has come back
    return &s;
  };
  {
    const std::shared_lock lock(streams_mutex_);
    if (const auto found = streams_.find(id); found != streams_.end()) return held(*found->second);
  }
  int device = 0;
  if (gpu_->stream_device(handle, &device).ok() && device != gpu_->info().ordinal) {
    return error{error_code::invalid_argument, "the stream is of device " + std::to_string(device) +
                                                   ", the pool of device " +
                                                   std::to_string(gpu_->info().ordinal)};
  }
  if (auto own = of_own_context(handle, id, "pool"); !own) return own.error();
  auto made = new_stream(handle, id);
  stream_state* out = nullptr;
  stream_state* gone = nullptr;
  bool contended = false;
  bool fresh = false, second = false;
  {
    const std::unique_lock lock(streams_mutex_);
    const heap::owner_id owner = made->owner;
    bool is_new = false;
    auto at = streams_.end();
    try {
      if (!names_many(handle)) identity_of_.emplace(handle, id);
      std::tie(at, is_new) = streams_.try_emplace(id, std::move(made));
    } catch (const std::bad_alloc&) {
      drop_owner(owner);
      throw;
    }
    if (!is_new) drop_owner(owner);  // another thread met it first
    out = held(*at->second);
    fresh = is_new;
    second =
        fresh && streams_.size() > 1 && !many_streams_.exchange(true, std::memory_order_relaxed);
    if (!names_many(handle)) {
      const auto known = identity_of_.find(handle);
      if (known->second != id) {
        // The handle came back for a new stream: the old one was destroyed, perhaps with work
        // pending.
        if (const auto old = streams_.find(known->second); old != streams_.end())
          gone = old->second.get();
        known->second = id;
      }
    }
    if (gone != nullptr) gone->holders.fetch_add(1, std::memory_order_relaxed);
    contended = streams_.size() >= collect_at_;
  }
  if (gone != nullptr) {
    retire_stream(*gone);
    gone->holders.fetch_sub(1, std::memory_order_acq_rel);
  }
  if (gone != nullptr || contended)
    collect_dead_streams();
  else if (fresh)
    fence_the_silent(*out, second ? silent::all_others : silent::without_caches);
  return out;
}

// What a stream freed last is not sealed before it makes another call, and nobody may ask it: it
// may be destroyed. As long as there was one stream nothing was sealed at all. A newcomer would
// find nothing of it, and the pool grow to twice its size, so that a fence over the whole context
// is worth it where much is left by streams that no thread has a cache for any more.
void pool::core::fence_the_silent(const stream_state& newcomer, silent which) {
  {
    const std::shared_lock lock(streams_mutex_);
    const std::lock_guard heap_lock(heap_mutex_);
    std::uint64_t pending = 0;
    for (const auto& [id, stream] : streams_) {
      if (stream.get() == &newcomer || !stream->batches->dirty()) continue;
      if (which == silent::all_others || stream->holders.load(std::memory_order_relaxed) == 0)
        pending += heap_.free_bytes(stream->owner);
    }
    if (!worth_a_context_fence(pending, reserved_)) return;
  }
  const relaxed_capture_scope relaxed(*gpu_);
  seal_context();
  poll_fences();
}

// Whether other streams have freed so much without a seal. One that makes calls seals a few MiB;
// one that has fallen silent may have had most of the pool by its streak.
bool pool::core::much_unsealed(const stream_state& but) const {
  std::uint64_t bytes = 0;
  const std::shared_lock lock(streams_mutex_);
  for (const auto& [id, stream] : streams_) {
    if (stream.get() != &but) bytes += stream->batches->dirty_bytes();
  }
  return worth_a_context_fence(bytes, reserved_lately_.load(std::memory_order_relaxed));
}

void pool::core::retire_stream(stream_state& gone) noexcept {
  gone.batches->set_gone();
  flush_caches_of(&gone);
  if (!names_many(gone.batches->handle())) note_not_capturing(gone.batches->handle());
}

// Forgets streams that no cache holds and nothing of whose is left. One that lives is met anew when
// it next calls.
void pool::core::collect_dead_streams() {
  const relaxed_capture_scope relaxed(*gpu_);
  seal_context();
  std::uint64_t queries = 0;
  context_fence_.poll(*gpu_, events_, &queries, nullptr);
  const std::unique_lock lock(streams_mutex_);
  std::erase_if(streams_, [this, &queries](auto& entry) {
    stream_state& s = *entry.second;
    if (s.holders.load(std::memory_order_acquire) != 0) return false;
    if (s.shared.bytes() != 0) empty_stream_cache(s);  // there is no cache left to take it
    s.batches->poll(*gpu_, events_, &queries, nullptr);
    if (!s.batches->quiet()) return false;
    const std::lock_guard heap_lock(heap_mutex_);
    heap_.retire(s.owner, s.batches->completed());
    if (heap_.free_bytes(s.owner) != 0) return false;
    free_owners_.push_back(s.owner);
    if (const auto known = identity_of_.find(s.batches->handle());
        known != identity_of_.end() && known->second == entry.first) {
      identity_of_.erase(known);
    }
    return true;
  });
  collect_at_ = std::max<std::size_t>(64, 2 * streams_.size());
  // With one left, memory that others freed is anyone's by now, and the pool need seal no more
  // until another stream comes.
  many_streams_.store(streams_.size() > 1, std::memory_order_relaxed);
  counts_.fence_queries.fetch_add(queries, std::memory_order_relaxed);
}

void pool::core::set_cache_limits(thread_cache& of) noexcept {
  of.small_limit_bytes = cache_small_.load(std::memory_order_relaxed);
  of.large_limit_bytes = cache_large_.load(std::memory_order_relaxed);
}

result<std::unique_ptr<thread_cache>> pool::core::make_cache(stream_handle stream,
                                                             std::uint64_t id) {
  // All that takes host memory comes before the stream is held.
  auto made = std::make_unique<thread_cache>();
  {
    const std::lock_guard lock(caches_mutex_);
    caches_.reserve(caches_.size() + 1 + caches_coming_++);
  }
  struct coming {
    core& of;
    ~coming() {
      const std::lock_guard lock(of.caches_mutex_);
      --of.caches_coming_;
    }
  } const until_it_is_there{*this};
  const auto held = hold_stream(stream, id);
  if (!held) return held.error();
  made->handle = stream;
  made->stream_id = id;
  made->stream = *held;
  {
    const std::lock_guard lock(heap_mutex_);
    set_cache_limits();
  }
  set_cache_limits(*made);
  {
    const std::lock_guard lock(caches_mutex_);
    if (checks_frees_) made->set(thread_cache::checks_frees);
    made->number = ++last_cache_ != 0 ? last_cache_ : ++last_cache_;
    caches_.push_back(made.get());
    cache_count_.store(caches_.size(), std::memory_order_relaxed);
  }
  return made;
}

void pool::core::drop_cache(thread_cache& of) noexcept {
  if (forked()) return;  // the parent's locks and books are not ours to touch
  disconnect(of);
  if (!closed()) empty_cache(of);
  {
    const std::lock_guard lock(caches_mutex_);
    caches_.erase(std::remove(caches_.begin(), caches_.end(), &of), caches_.end());
    cache_count_.store(caches_.size(), std::memory_order_relaxed);
    past_.add(of.counts);
  }
  if (closed()) return;
  // Nobody takes back what the stream kept for itself.
  if (of.stream->holders.load(std::memory_order_relaxed) == 1) empty_large_stream_cache(*of.stream);
  // A per-thread stream ends with its thread, which is where its last cache is dropped.
  if (of.handle == per_thread_stream) {
    empty_stream_cache(*of.stream);
    of.stream->batches->set_gone();
  }
  of.stream->holders.fetch_sub(1, std::memory_order_acq_rel);  // from here on it may be collected
}

void pool::core::empty_cache(thread_cache& of) noexcept {
  of.lock.foreign_lock();
  drain_remote(of);
  heap::extent* const chain = of.empty();
  of.lock.foreign_unlock();
  if (chain != nullptr) flush_chain(*of.stream, chain);
}

void pool::core::empty_stream_cache(stream_state& stream) noexcept {
  heap::extent* chain = nullptr;
  stream.shared.empty(
      [&chain](stream_cache::chain blocks) {
        for (heap::extent* block = blocks.head; block != nullptr;) {
          heap::extent* const next = block->link;
          block->link = chain;
          chain = block;
          block = next;
        }
      },
      [&](std::uint32_t id) {
        heap::extent* const block = heap_.by_id(id);
        block->link = chain;
        chain = block;
      });
  if (chain != nullptr) flush_chain(stream, chain);
}

void pool::core::empty_large_stream_cache(stream_state& stream) noexcept {
  heap::extent* chain = nullptr;
  stream.shared.empty_large([&](std::uint32_t id) {
    heap::extent* const block = heap_.by_id(id);
    block->link = chain;
    chain = block;
  });
  if (chain != nullptr) flush_chain(stream, chain);
}

std::uint64_t pool::core::flush_caches_of(const stream_state* only) noexcept {
  std::uint64_t emptied = 0;
  {
    const std::lock_guard lock(caches_mutex_);
    with_caches_locked(only, [&](thread_cache& l) {
      heap::extent* const chain = l.empty();
      if (only != nullptr && only->batches->gone()) l.set(thread_cache::is_dead);
      if (chain != nullptr) flush_chain(*l.stream, chain);
      ++emptied;
    });
  }
  const std::shared_lock lock(streams_mutex_);
  for (const auto& [id, stream] : streams_) {
    if (only == nullptr || stream.get() == only) empty_stream_cache(*stream);
  }
  return emptied;
}

// A chain of blocks of one stream, through extent::link, back to the heap as frees of the open
// batch.
void pool::core::flush_chain(stream_state& stream, heap::extent* chain) noexcept {
  std::uint64_t bytes = 0;
  for (const heap::extent* block = chain; block != nullptr; block = block->link)
    bytes += block->bytes;
  const std::lock_guard lock(heap_mutex_);
  const std::uint64_t batch = stream.batches->join(bytes);
  carved_ -= bytes;
  while (chain != nullptr) {
    heap::extent* const block = chain;
    chain = block->link;
    set_state(*block, block_state::none);
    heap_.release(block, stream.owner, batch, absorb());
  }
  fallen_ = std::max(fallen_, peak_carved_ - carved_);
  // Nearly all has been given back: what caches keep is then what holds the pool in pieces, and the
  // next request begins with emptying them.
  if (was_busy_ && carved_ < peak_carved_ / lull_share && carvings_ >= between_lulls) {
    was_busy_ = false;
    carvings_ = 0;
    lull_.store(true, std::memory_order_relaxed);
  }
}

// The cache has more small blocks than it may keep: a quarter of their bytes goes to the stream
// cache, and from a full stream cache to the heap. No more at once, since one free pays for
// it.
void pool::core::flush_small(thread_cache& in) noexcept {
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
  flush_chain(*in.stream, homeward);
  seal_if_wanted(*in.stream);
}

// Called only where the user's own call names the stream, so that its handle is alive.
void pool::core::seal_if_wanted(stream_state& stream) noexcept {
  if (!many_streams_.load(std::memory_order_relaxed) || !stream.batches->dirty()) return;
  const std::uint64_t wish = seal_wish_.load(std::memory_order_relaxed);
  const std::uint64_t reserved = reserved_lately_.load(std::memory_order_relaxed);
  const bool asked = stream.seals_seen.load(std::memory_order_relaxed) != wish;
  if (!asked && stream.batches->dirty_bytes() < std::min<std::uint64_t>(reserved / 128, 4 * MiB))
    return;
  when_free([&] { seal(stream); });
}

// The same without asking whether it pays.
void pool::core::seal(stream_state& stream) noexcept {
  const std::uint64_t wish = seal_wish_.load(std::memory_order_relaxed);
  const relaxed_capture_scope relaxed(*gpu_);
  call_result failure;
  switch (stream.batches->seal(*gpu_, events_, &failure)) {
    case order::seal_outcome::sealed:
      counts_.seals.fetch_add(1, std::memory_order_relaxed);
      stream.seals_seen.store(wish, std::memory_order_relaxed);
      note_not_capturing(stream.batches->handle());
      break;
    case order::seal_outcome::gone:
      if (!names_many(stream.batches->handle())) retire_stream(stream);
      break;
    case order::seal_outcome::capturing: note_capturing(stream.batches->handle(), 0); break;
    case order::seal_outcome::beside_a_capture:
    case order::seal_outcome::nothing: break;
    case order::seal_outcome::failed:
      note_fence_failure(to_error(failure, "sealing a batch of frees"));
      break;
  }
}

}  // namespace millpond
