// The memory of one CUDA device as PyTorch sees it: a pool, an arena of it for each graph pool of
// PyTorch's, and its numbers.
//
// What a capture allocates comes from the arena of the graph pool that PyTorch names
// (millpond/pool/graph_arena.hpp): graphs that PyTorch has share a graph pool share an arena. An
// arena is held until PyTorch has let go of the graph pool and of every tensor in it, since a
// tensor may outlive its graph; the graphs hold it themselves.
//
// Thread-safe. One lock over the graph pools, taken by allocations only while a capture may run, by
// frees only while a graph pool exists; it comes before the pool's, and is never held over an
// allocation, whose pressure calls back.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/torch/history.hpp"
#include "millpond/pool/pool.hpp"

namespace millpond::torch {

using graph_pool_id = std::pair<std::uint64_t, std::uint64_t>;

class device_memory {
 public:
  using stream_filter = std::function<bool(stream_handle)>;

  static result<std::unique_ptr<device_memory>> create(std::shared_ptr<driver> gpu,
                                                       pool_options options);
  // Leaves everything where it is at the end of the process: tensors may outlive the interpreter.
  ~device_memory() = default;

  result<void*> allocate(std::uint64_t bytes, stream_handle stream);
  result<void> deallocate(void* ptr, std::uint64_t bytes, stream_handle stream);
  result<void> record_use(void* ptr, stream_handle stream);
  result<pool::block_range> find(const void* ptr);
  // Waits for the device, unless a capture runs; then unused memory goes back to the driver, that
  // of graphs which are gone too.
  void empty_cache();
  // A share of the device's memory as the limit on reserved bytes.
  void set_fraction(double fraction);

  // From now on, what captures allocate on streams that the filter takes comes from this graph
  // pool. Outside captures (torch.cuda.use_mem_pool) it is the pool's as any other.
  void begin_graph_pool(graph_pool_id id, stream_filter filter);
  void end_graph_pool(graph_pool_id id);
  void release_graph_pool(graph_pool_id id);

  struct numbers {
    std::uint64_t requested = 0, peak_requested = 0, allocated = 0, freed = 0;  // bytes
    std::uint64_t allocations = 0, deallocations = 0, live_blocks = 0, peak_live_blocks = 0;
    std::uint64_t reserved = 0, peak_reserved = 0;
    std::uint64_t graph_bytes = 0;  // of graphs and graph pools: live there, or free for them alone
    // The peak of what lives outside graphs and of each graph pool's own peak together: a graph
    // writes to its memory at every replay, so that no allocator could do with less.
    std::uint64_t peak_needed = 0;
    std::uint64_t out_of_memory = 0;
    pool_statistics pool;
  };
  [[nodiscard]] numbers statistics() const;
  void reset_peaks();

  [[nodiscard]] driver& gpu() const noexcept { return *gpu_; }
  [[nodiscard]] history& record() noexcept { return history_; }
  [[nodiscard]] bool serves_graphs() const noexcept {
    return graph_pools_.load(std::memory_order_acquire) != 0;
  }

 private:
  struct graph_pool {
    graph_arena arena;
    int captures = 0;       // that allocate into it now
    bool released = false;  // PyTorch has let go of it
    std::uint64_t live_blocks = 0;
    std::uint64_t live_bytes = 0, peak_live_bytes = 0;
  };
  struct capture_into_pool {
    graph_pool_id id;
    stream_filter takes;
    stream_handle stream = nullptr;  // of the capture that was attached, and which one
    std::uint64_t attached = 0;
  };
  struct graph_block {
    graph_pool_id id;
    std::uint64_t bytes;
  };

  struct deferred_free {
    void* ptr;
    std::uint64_t bytes;
    stream_handle stream;
  };
  using graph_blocks = std::unordered_map<void*, graph_block>;

  explicit device_memory(std::shared_ptr<driver> gpu) : gpu_(std::move(gpu)) {}
  // The graph pool that a capture on this stream allocates from, with the capture attached to its
  // arena.
  result<std::optional<graph_pool_id>> graph_pool_for(stream_handle stream);
  void note_graph_block(void* ptr, const graph_pool_id& id, std::uint64_t bytes);
  // A graph pool goes where nothing needs it now. Under the lock, as all that takes last_holds:
  // holds to drop without it.
  result<void> free_of_graph(graph_blocks::iterator block, std::uint64_t bytes,
                             stream_handle stream, std::vector<graph_arena>* last_holds);
  void drop_if_unused(std::map<graph_pool_id, graph_pool>::iterator at,
                      std::vector<graph_arena>* last_holds);
  void end(std::vector<capture_into_pool>::iterator capture, std::vector<graph_arena>* last_holds);
  // Whether a capture runs or may; those that PyTorch did not end, because they failed, are ended
  // here.
  bool capture_may_run();
  bool wait_for_frees();
  void count_allocation(std::uint64_t bytes) noexcept;
  void count_need(std::uint64_t bytes) noexcept;
  void count_free(std::uint64_t bytes) noexcept;

  std::shared_ptr<driver> gpu_;
  std::shared_ptr<pool> pool_;
  history history_;

  // Counts alone: they publish nothing. The peak is exact: each adds its own bytes before it looks.
  std::atomic<std::uint64_t> requested_{0}, peak_requested_{0}, live_blocks_{0},
      peak_live_blocks_{0}, needed_{0}, peak_needed_{0};
  std::atomic<std::uint64_t> allocated_{0}, allocations_{0}, deallocations_{0}, freed_{0},
      out_of_memory_{0};

  // How many there are, for a look without the lock: published with their making.
  std::atomic<std::size_t> graph_pools_{0}, captures_{0};
  mutable std::mutex graphs_mutex_;
  std::map<graph_pool_id, graph_pool> graphs_;
  std::vector<capture_into_pool> capturing_;
  graph_blocks graph_blocks_;
  std::vector<deferred_free> deferred_;  // of graph pools' blocks, while captures begin and end
  std::set<stream_handle>
      captured_on_;  // may be asked at any time: PyTorch's streams live as long as the process
};

}  // namespace millpond::torch
