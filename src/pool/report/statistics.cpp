// The pool in numbers and words: statistics, the answer to a bad free, the report of out_of_memory.
#include <algorithm>

#include "base/quote.hpp"
#include "driver/relaxed_capture.hpp"
#include "millpond/base/units.hpp"
#include "pool/core.hpp"

namespace millpond {
namespace {

// How each refusal of a free begins.
std::string name_of_free(const void* ptr, memory_kind kind, stream_handle stream) {
  return "pool::deallocate of " + in_hex(ptr) + " (" + to_string(kind) + " pool, stream " +
         in_hex(stream) + "): ";
}

}  // namespace

pool_statistics pool::core::statistics() {
  pool_statistics out;
  count_caches(out);
  count_streams(out);
  count_captures(out);
  count_heap(out);
  for (const auto& [to, from] : std::initializer_list<
           std::pair<std::uint64_t pool_statistics::*, std::atomic<std::uint64_t> counters::*>>{
           {&pool_statistics::growths, &counters::growths},
           {&pool_statistics::stitches, &counters::stitches},
           {&pool_statistics::stitch_reuses, &counters::stitch_reuses},
           {&pool_statistics::seals, &counters::seals},
           {&pool_statistics::fence_queries, &counters::fence_queries},
           {&pool_statistics::stream_waits, &counters::stream_waits},
           {&pool_statistics::host_waits, &counters::host_waits},
           {&pool_statistics::thread_caches_flushed, &counters::thread_caches_flushed},
           {&pool_statistics::pressure_callbacks, &counters::pressure_callbacks},
           {&pool_statistics::out_of_memory, &counters::out_of_memory},
           {&pool_statistics::soft_limit_passes, &counters::soft_limit_passes},
           {&pool_statistics::given_back_bytes, &counters::given_back_bytes}}) {
    out.*to = (counts_.*from).load(std::memory_order_relaxed);
  }
  out.lock_waits = heap_mutex_.waits();
  out.asleep_bytes = asleep_bytes_.load(std::memory_order_relaxed);
  return out;
}

void pool::core::count_caches(pool_statistics& out) {
  cache_counters sum;
  {
    const std::lock_guard lock(caches_mutex_);
    sum.add(past_);
    with_caches_locked(nullptr, [&](thread_cache& l) {
      out.cached_bytes += l.small_bytes + l.large_bytes + l.remote_bytes();
      for (const auto& box : l.remote.in)
        out.metadata_bytes += box != nullptr ? sizeof(remote_free_queue) : 0;
    });
    for (const thread_cache* const l : caches_)
      sum.add(l->counts);  // behind the remote frees, of which some may have been refused
    out.thread_caches = caches_.size();
    out.metadata_bytes += out.thread_caches * sizeof(thread_cache) + block_owners_.bytes();
    for (const captured_cache* const l : capture_caches_) sum.add(l->counts);
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
}

void pool::core::count_streams(pool_statistics& out) {
  const std::shared_lock lock(streams_mutex_);
  out.streams = streams_.size();
  for (const auto& [id, stream] : streams_) {
    out.cached_bytes += stream->shared.bytes();
    const std::lock_guard heap_lock(heap_mutex_);
    out.pending_bytes += heap_.free_bytes(stream->owner);
  }
  out.metadata_bytes += streams_.size() * sizeof(stream_state);
}

void pool::core::count_captures(pool_statistics& out) {
  const std::lock_guard lock(captures_mutex_);
  out.captures = captures_.size();
  out.graph_arenas = arenas_.size();
  const std::lock_guard heap_lock(heap_mutex_);
  const auto add = [&](const arena_state& arena) {
    for (const auto& held : arena.out) out.capture_bytes += held.block->bytes;
    for (const auto& kept : arena.kept) out.capture_bytes += kept.block->bytes;
    out.capture_bytes += heap_.free_bytes(arena.parked);
  };
  for (const auto& [number, arena] : arenas_) add(*arena);
  for (const auto& [id, capture] : captures_) {
    if (capture->arena->number == 0) add(*capture->arena);
    for (const auto& [stream, owner] : capture->owners)
      out.capture_bytes += heap_.free_bytes(owner);
  }
}

void pool::core::count_heap(pool_statistics& out) {
  const std::lock_guard lock(heap_mutex_);
  out.reserved_bytes = reserved_;
  out.peak_reserved_bytes = peak_reserved_;
  out.peak_out_bytes = std::max(peak_out_, peak_carved_);
  out.idle_bytes = heap_.free_bytes(heap::anyone);
  out.pending_bytes += heap_.free_bytes(limbo_.owner) + guarded_bytes_;
  out.metadata_bytes += sizeof(*this) + heap_.metadata_bytes();
  for (const auto& handle : heap_.handles())
    out.mapped_bytes += handle.bytes * handle.mappings.size();
}

void pool::core::check() {
  const std::lock_guard lock(heap_mutex_);
  heap_.check();
}

error pool::core::explain_bad_free(const void* ptr, std::uint64_t bytes, stream_handle stream) {
  const std::uint64_t address = reinterpret_cast<std::uintptr_t>(ptr);
  const std::string who = name_of_free(ptr, options_.kind, stream);
  if (const heap::extent* const block = heap_.find(address); block != nullptr) {
    switch (state_of(*block)) {
      case block_state::live:
      case block_state::special:
        return {error_code::invalid_argument,
                who + "freed with " + std::to_string(bytes) + " bytes, allocated with " +
                    std::to_string(block->requested) + "; the block stays allocated"};
      case block_state::cached:
      case block_state::sent:
      case block_state::guarded:
        return {error_code::double_free, who + "it was freed before (a block of " +
                                             std::to_string(block->requested) +
                                             " bytes) and not allocated since"};
      case block_state::none: break;
    }
  }
  {
    const std::lock_guard lock(heap_mutex_);
    if (const heap::extent* const block = heap_.covering(address); block != nullptr) {
      if (block->start() != address) {
        return {error_code::interior_pointer,
                who + "it points " + std::to_string(address - block->start()) +
                    " bytes into the block of " + std::to_string(block->bytes) + " bytes at " +
                    in_hex(block->start()) + "; free the block's start"};
      }
      return {error_code::double_free, who + "the block was freed before"};
    }
    if (heap_.contains(address)) {
      return {
          error_code::double_free,
          who + "the address lies in free memory of this pool: freed before, or never handed out"};
    }
  }
  driver::pointer_facts facts;
  std::string kind = "nothing that the driver knows";
  if (gpu_->pointer_info(address, &facts).ok() && facts.bytes > 0) {
    kind = std::string(to_string(facts.kind)) + " memory of another owner";
    return {facts.kind == options_.kind ? error_code::foreign_pointer : error_code::wrong_kind,
            who + "it is " + kind + ", not of this pool; free it through what allocated it"};
  }
  return {error_code::foreign_pointer, who + "it is " + kind + ", not of this pool"};
}

// A free that was refused when its remote free queue was opened, by what the block's record said
// then.
error pool::core::explain_refused(const void* ptr, std::uint64_t bytes, std::uint64_t requested,
                                  stream_handle stream, block_state state) {
  const std::string who = name_of_free(ptr, options_.kind, stream);
  switch (state) {
    case block_state::special:
      return {
          error_code::invalid_argument,
          who +
              "another use of it was declared (record_use, a tag or a capture) after it was freed; "
              "the block stays allocated"};
    case block_state::live:
    case block_state::sent:
      return {error_code::invalid_argument,
              who + "freed with " + std::to_string(bytes) + " bytes, allocated with " +
                  std::to_string(requested) + "; the block stays allocated"};
    case block_state::cached:
    case block_state::guarded:
      return {error_code::double_free, who + "it was freed before (a block of " +
                                           std::to_string(requested) +
                                           " bytes) and not allocated since"};
    case block_state::none: break;
  }
  return explain_bad_free(ptr, bytes, stream);
}

std::vector<error> pool::core::take_refused() {
  const refused_frees::taken refused = refused_.take();
  std::vector<error> out;
  for (std::size_t i = 0; i < refused.count; ++i) {
    const refused_frees::refused& each = refused.all[i];
    out.push_back(explain_refused(each.ptr, each.bytes, each.requested, each.stream, each.state));
  }
  if (refused.more > 0)
    out.push_back(
        {error_code::double_free,
         std::to_string(refused.more) +
             " more frees were of no live block, or of other bytes than it was allocated with"});
  return out;
}

error pool::core::out_of_memory_report(const request& what, std::vector<ladder_step> ladder) {
  const memory_report report = explain(&what, std::move(ladder));
  return {error_code::out_of_memory, to_text(report), to_json(report)};
}

}  // namespace millpond
