// The memory of one CUDA device as PyTorch sees it: a pool, the private pools of its graphs, and its numbers.
//
// Thread-safe. The pool serves everything but what a capture allocates; that goes to graph pools, under one lock, which
// an allocation outside captures never takes.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "adapters/torch/graph_pool.hpp"
#include "adapters/torch/history.hpp"
#include "millpond/pool.hpp"

namespace millpond::torch {

using graph_pool_id = std::pair<std::uint64_t, std::uint64_t>;

class device_memory {
 public:
  using stream_filter = std::function<bool(stream_handle)>;

  static result<std::unique_ptr<device_memory>> create(std::shared_ptr<driver> gpu, pool_options options);
  // Leaves everything where it is at the end of the process: tensors may outlive the interpreter.
  ~device_memory() = default;

  result<void*> allocate(std::uint64_t bytes, stream_handle stream);
  result<void> deallocate(void* ptr, std::uint64_t bytes, stream_handle stream);
  result<void> record_use(void* ptr, stream_handle stream);
  result<pool::block_range> find(const void* ptr);
  // Unused memory goes back to the driver, that of graphs which are gone too; waits for the device if there are such.
  void empty_cache();
  // A share of the device's memory as the limit on reserved bytes.
  void set_fraction(double fraction);

  // From now on, allocations on streams that the filter takes go to this graph pool.
  void begin_graph_pool(graph_pool_id id, stream_filter filter);
  void end_graph_pool(graph_pool_id id);
  void release_graph_pool(graph_pool_id id);

  struct numbers {
    std::uint64_t requested = 0, peak_requested = 0, allocated = 0, freed = 0;  // bytes
    std::uint64_t allocations = 0, deallocations = 0, live_blocks = 0, peak_live_blocks = 0;
    std::uint64_t reserved = 0, peak_reserved = 0;
    std::uint64_t graph_bytes = 0;   // chunks lent to graph pools
    // The peak of what lives outside graphs and of each graph pool's own peak together: a graph writes to its memory at every
    // replay, so that no allocator could do with less.
    std::uint64_t peak_needed = 0;
    std::uint64_t out_of_memory = 0;
    pool_statistics pool;
  };
  [[nodiscard]] numbers statistics() const;
  void reset_peaks();

  [[nodiscard]] driver& gpu() const noexcept { return *gpu_; }
  [[nodiscard]] history& record() noexcept { return history_; }
  [[nodiscard]] bool serves_graphs() const noexcept { return graph_pools_.load(std::memory_order_acquire) != 0; }

 private:
  explicit device_memory(std::shared_ptr<driver> gpu) : gpu_(std::move(gpu)) {}
  result<void*> allocate_for_graph(std::uint64_t bytes, stream_handle stream, bool* taken);
  [[nodiscard]] std::uint64_t free_of_graph(void* ptr);
  bool give_back_released();
  bool wait_for_frees();
  void forget(graph_pool_id id);
  void count_allocation(std::uint64_t bytes) noexcept;
  void count_need(std::uint64_t bytes) noexcept;
  void count_free(std::uint64_t bytes) noexcept;

  std::shared_ptr<driver> gpu_;
  std::shared_ptr<pool> pool_;
  stream_handle lender_ = nullptr;             // a stream without work: chunks for graphs are idle memory
  std::optional<pool::lane_handle> lending_;   // under graphs_mutex_
  history history_;

  // Counts alone: they publish nothing. The peak is exact: each adds its own bytes before it looks.
  std::atomic<std::uint64_t> requested_{0}, peak_requested_{0}, live_blocks_{0}, peak_live_blocks_{0}, needed_{0}, peak_needed_{0};
  std::atomic<std::uint64_t> allocated_{0}, allocations_{0}, deallocations_{0}, freed_{0}, out_of_memory_{0};

  std::atomic<int> graph_pools_{0};            // how many exist; published with their making
  mutable std::mutex graphs_mutex_;            // held over the pool's own locks, never the other way round
  std::map<graph_pool_id, graph_pool> graphs_;
  std::vector<std::pair<graph_pool_id, stream_filter>> capturing_;
  std::uint64_t graph_bytes_ = 0;
};

}  // namespace millpond::torch
