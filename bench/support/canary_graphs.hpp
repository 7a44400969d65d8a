// Graphs of the canary: two that share an arena, each of which writes identities into blocks,
// checks them, frees them and does the same in what it gets then. They are launched in turns on one
// stream, behind each other, while all the other threads churn; then they go, and their memory goes
// back to the pool.
//
// A capture may be broken by another thread's fence over the whole context before the pool has
// heard of it (context_fences::when_no_known_capture says so): that is counted, and what it had
// allocated must come back too.
#pragma once
#include <array>
#include <optional>
#include <vector>

#include "base/random.hpp"
#include "bench/support/canary.hpp"
#include "millpond/base/units.hpp"
#include "millpond/pool/graph_arena.hpp"
#include "millpond/pool/pool.hpp"

namespace millpond::canary {

class graph_rounds {
 public:
  graph_rounds(driver& gpu, pool& memory, identity_report* report, totals& sums, std::uint64_t seed)
      : gpu_(gpu),
        memory_(memory),
        report_(report),
        sums_(sums),
        arena_(memory.make_graph_arena()),
        pick_(seed),
        identity_(seed << 40 | std::uint64_t{3} << 38) {
    static_cast<void>(gpu_.stream_create(&stream_));
  }

  void round() {
    std::array<graph_exec_handle, 2> graphs{};
    for (graph_exec_handle& g : graphs) g = capture();
    for (int turn = 0; turn < 4; ++turn) {
      const graph_exec_handle g = graphs[static_cast<std::size_t>(turn) % graphs.size()];
      if (g == nullptr) continue;
      if (!gpu_.graph_launch(g, stream_).ok()) sums_.failures.fetch_add(1);
      sums_.graph_launches.fetch_add(1, std::memory_order_relaxed);
    }
    // The memory of a graph is free for others once it is gone, so its launches end first.
    static_cast<void>(gpu_.stream_synchronize(stream_));
    for (const graph_exec_handle g : graphs) {
      if (g != nullptr) static_cast<void>(gpu_.graph_exec_destroy(g));
    }
    if (pick_.chance(0.2)) arena_ = memory_.make_graph_arena();
  }
  void finish() {
    arena_ = {};
    static_cast<void>(gpu_.stream_synchronize(stream_));
    static_cast<void>(gpu_.stream_destroy(stream_));
  }

 private:
  // What is recorded: blocks written, checked and freed, three times, by a capture cache or the
  // plain call.
  bool record() {
    if (!memory_.capture_into(arena_, stream_)) return false;
    std::optional<pool::capture_cache_handle> cache;
    try {
      if (pick_.chance(0.5)) cache.emplace(memory_.capture_cache(stream_));
    } catch (const memory_error&) {
      return false;
    }
    bool good = true;
    for (int layer = 0; layer < 3 && good; ++layer) {
      std::vector<held> all;
      std::vector<identity_block> blocks;
      for (std::uint64_t n = pick_.between(2, 16); n > 0; --n) {
        const std::uint64_t bytes = pick_.log_uniform(512, 1 * MiB);
        void* ptr = nullptr;
        if (cache) {
          try {
            ptr = cache->allocate(bytes);
          } catch (const std::bad_alloc&) {
          } catch (const memory_error&) {
            good = false;
          }
        } else if (const auto got = memory_.try_allocate(bytes, default_alignment, stream_)) {
          ptr = *got;
        }
        if (ptr == nullptr) continue;
        all.push_back({ptr, bytes, ++identity_});
        blocks.push_back(block_of(all.back()));
      }
      good = good && (blocks.empty() || (gpu_.identity_write(blocks, stream_).ok() &&
                                         gpu_.identity_check(blocks, report_, stream_).ok()));
      sums_.launches.fetch_add(2, std::memory_order_relaxed);
      sums_.operations.fetch_add(2 * all.size(), std::memory_order_relaxed);
      for (const held& h : all)
        cache ? cache->deallocate(h.ptr, h.bytes) : memory_.deallocate(h.ptr, h.bytes, stream_);
    }
    return good;
  }
  graph_exec_handle capture() {
    if (!gpu_.capture_begin(stream_, capture_mode::relaxed).ok()) {
      sums_.broken_captures.fetch_add(1);
      return nullptr;
    }
    const bool recorded = record();
    graph_handle graph = nullptr;
    graph_exec_handle out = nullptr;
    const bool ended = gpu_.capture_end(stream_, &graph).ok() && graph != nullptr;
    if (!recorded || !ended || !gpu_.graph_instantiate(&out, graph).ok()) {
      sums_.broken_captures.fetch_add(1);
      out = nullptr;
    } else {
      sums_.graphs.fetch_add(1, std::memory_order_relaxed);
    }
    if (graph != nullptr) static_cast<void>(gpu_.graph_destroy(graph));
    return out;
  }

  driver& gpu_;
  pool& memory_;
  identity_report* report_;
  totals& sums_;
  graph_arena arena_;
  millpond::random pick_;
  std::uint64_t identity_;
  stream_handle stream_ = nullptr;
};

}  // namespace millpond::canary
