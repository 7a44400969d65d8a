#include "pool/stream_directory.hpp"

#include <algorithm>
#include <new>
#include <tuple>
#include <vector>

#include "driver/own_calls.hpp"
#include "millpond/base/units.hpp"
#include "pool/cache/thread_cache.hpp"

namespace millpond {
namespace {

constexpr std::size_t most_used = 1024;  // streams that record_use named, and were asked

}  // namespace

stream_directory::stream_directory(driver& gpu, const pool_options& options, block_store& blocks,
                                   capture_watch& captures, cross_stream_uses& uses)
    : gpu_(gpu),
      options_(options),
      blocks_(blocks),
      captures_(captures),
      uses_(uses),
      events_(gpu) {
  limbo_.batches = std::make_shared<order::stream_batches>(0, nullptr);
  limbo_.batches->set_gone();
  limbo_.owner = blocks_.new_owner();
}

// Streams of a context that cuCtxCreate made take no event of the pool's: cuEventRecord answers
// CUDA_ERROR_INVALID_HANDLE, while a green context's streams take them (H200, driver 580.159,
// 2026-12-01).
result<void> stream_directory::of_own_context(stream_handle stream, std::uint64_t id,
                                              const char* call) {
  if (id == cross_stream_uses::unidentified) return {};
  {
    const shared_mutex_lock lock(mutex_);
    if (streams_.contains(id) || used_.contains(id)) return {};
  }
  event_handle event = nullptr;
  {
    const own_calls_scope own_calls(gpu_);
    if (!events_.get(&event).ok()) return {};  // what needs an event says so
  }
  const call_result answer = gpu_.event_record(event, stream);  // a default stream: of the user's
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
  const exclusive_mutex_lock lock(mutex_);
  if (used_.size() >= most_used) used_.clear();  // they are asked again
  used_.insert(id);
  return {};
}

heap::owner_id stream_directory::owner_of(std::uint64_t id) const {
  const shared_mutex_lock lock(mutex_);
  const auto found = streams_.find(id);
  return found == streams_.end() ? heap::anyone : found->second->owner;
}

std::unique_ptr<stream_state> stream_directory::make(stream_handle handle, std::uint64_t id) {
  auto made = std::make_unique<stream_state>();
  made->batches = std::make_shared<order::stream_batches>(id, handle);
  made->owner = blocks_.new_owner();  // last: nothing that follows may fail
  return made;
}

result<stream_directory::met> stream_directory::meet(stream_handle handle, std::uint64_t id) {
  const auto held = [](stream_state& s) {
    s.holders.fetch_add(1, std::memory_order_relaxed);
    s.batches->set_here();  // a per-thread stream counts as gone when its last cache went, but its
                            // thread has come back
    return &s;
  };
  met out;
  {
    const shared_mutex_lock lock(mutex_);
    if (const auto found = streams_.find(id); found != streams_.end()) {
      out.stream = held(*found->second);
      return out;
    }
  }
  int device = 0;
  if (gpu_.stream_device(handle, &device).ok() && device != gpu_.info().ordinal) {
    return error{error_code::invalid_argument, "the stream is of device " + std::to_string(device) +
                                                   ", the pool of device " +
                                                   std::to_string(gpu_.info().ordinal)};
  }
  if (auto own = of_own_context(handle, id, "pool"); !own) return own.error();
  auto made = make(handle, id);
  const heap::owner_id owner = made->owner;
  const exclusive_mutex_lock lock(mutex_);
  auto at = streams_.end();
  try {
    if (!names_many(handle)) identity_of_.emplace(handle, id);
    std::tie(at, out.fresh) = streams_.try_emplace(id, std::move(made));
  } catch (const std::bad_alloc&) {
    blocks_.drop_owner(owner);
    throw;
  }
  if (!out.fresh) blocks_.drop_owner(owner);  // another thread met it first
  out.stream = held(*at->second);
  // Looking goes over all streams, so the more there are the rarer it is done.
  if (out.fresh) out.looks = ++newcomers_ % (1 + streams_.size() / 16) == 0;
  out.second = out.fresh && streams_.size() > 1 && !blocks_.set_many_streams(true);
  if (!names_many(handle)) {
    const auto known = identity_of_.find(handle);
    if (known->second != id) {
      if (const auto old = streams_.find(known->second); old != streams_.end()) {
        out.gone = old->second.get();
        out.gone->holders.fetch_add(1, std::memory_order_relaxed);
      }
      known->second = id;
    }
  }
  out.many = streams_.size() >= collect_at_;
  return out;
}

void stream_directory::collect_dead() {
  const own_calls_scope own_calls(gpu_);
  fence_context();
  std::uint64_t queries = 0;
  context_fence_.poll(gpu_, events_, &queries, nullptr);
  const exclusive_mutex_lock lock(mutex_);
  for (auto at = streams_.begin(); at != streams_.end();) {
    stream_state& s = *at->second;
    const auto is_dead = [&] {
      if (s.holders.load(std::memory_order_acquire) != 0) return false;
      if (s.shared.bytes() != 0) empty_cache(s);  // there is no cache left to take it
      s.batches->poll(gpu_, events_, &queries, nullptr);
      if (!s.batches->quiet()) return false;
      const block_store::locked books(blocks_);
      books.heap().retire(s.owner, s.batches->completed());
      if (books.heap().free_bytes(s.owner) != 0) return false;
      books.drop_owner(s.owner);
      return true;
    };
    if (!is_dead()) {
      ++at;
      continue;
    }
    const auto known = identity_of_.find(s.batches->handle());
    if (known != identity_of_.end() && known->second == at->first) identity_of_.erase(known);
    at = streams_.erase(at);
  }
  collect_at_ = std::max<std::size_t>(64, 2 * streams_.size());
  // With one left, memory that others freed is anyone's by now, and the pool need seal no more
  // until another stream comes.
  blocks_.set_many_streams(streams_.size() > 1);
  queries_.fetch_add(queries, std::memory_order_relaxed);
}

void stream_directory::empty_cache(stream_state& stream) noexcept {
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
        heap::extent* const block = blocks_.by_id(id);
        block->link = chain;
        chain = block;
      });
  if (chain != nullptr) blocks_.release(stream, chain);
}

void stream_directory::empty_large_cache(stream_state& stream) noexcept {
  heap::extent* chain = nullptr;
  stream.shared.empty_large([&](std::uint32_t id) {
    heap::extent* const block = blocks_.by_id(id);
    block->link = chain;
    chain = block;
  });
  if (chain != nullptr) blocks_.release(stream, chain);
}

void stream_directory::empty_caches(const stream_state* only) noexcept {
  each([&](stream_state& stream) {
    if (only == nullptr || &stream == only) empty_cache(stream);
  });
}

void stream_directory::reclaim_streaks(const stream_state* but) noexcept {
  each([&](stream_state& stream) {
    if (&stream != but && stream.streak.given()) empty_large_cache(stream);
  });
}

void stream_directory::count(pool_statistics& out) const {
  {
    const shared_mutex_lock lock(mutex_);
    out.streams = streams_.size();
    out.metadata_bytes += streams_.size() * sizeof(stream_state);
    for (const auto& [id, stream] : streams_) {
      out.cached_bytes += stream->shared.bytes();
      const block_store::locked books(blocks_);
      out.pending_bytes += books.heap().free_bytes(stream->owner);
    }
  }
  {
    const block_store::locked books(blocks_);
    out.pending_bytes += books.heap().free_bytes(limbo_.owner);
  }
  out.seals = seals_.load(std::memory_order_relaxed);
  out.fence_queries = queries_.load(std::memory_order_relaxed);
  out.stream_waits = stream_waits_.load(std::memory_order_relaxed);
  out.host_waits = host_waits_.load(std::memory_order_relaxed);
}

}  // namespace millpond
