#include "adapters/torch/device_memory.hpp"

#include <algorithm>

namespace millpond::torch {
namespace {

// This thread fills a graph pool, under its lock: the pool's pressure must not come back for it.
thread_local bool filling_graph = false;

void raise(std::atomic<std::uint64_t>& peak, std::uint64_t to) noexcept {
  std::uint64_t seen = peak.load(std::memory_order_relaxed);
  while (seen < to && !peak.compare_exchange_weak(seen, to, std::memory_order_relaxed)) {
  }
}

}  // namespace

result<std::unique_ptr<device_memory>> device_memory::create(std::shared_ptr<driver> gpu, pool_options options) {
  std::unique_ptr<device_memory> made(new device_memory(std::move(gpu)));
  static_cast<void>(made->gpu_->bind_thread());
  // PyTorch's graphs allocate from graph pools, so that the pool does not know of their captures; and PyTorch never
  // destroys a stream, so that no fence over the whole context is needed.
  options.fences = context_fences::never;
  options.on_pressure = [self = made.get(), users = std::move(options.on_pressure)](std::uint64_t bytes) {
    return self->give_back_released() || self->wait_for_frees() || (users && users(bytes));
  };
  auto served = pool::create(made->gpu_, std::move(options));
  if (!served) return served.error();
  made->pool_ = std::move(*served);
  if (const call_result answer = made->gpu_->stream_create(&made->lender_); !answer.ok()) {
    return to_error(answer, "making the stream that lends memory to graphs");
  }
  made->lending_.emplace(made->pool_->lane(made->lender_));
  return made;
}

void device_memory::count_allocation(std::uint64_t bytes) noexcept {
  raise(peak_requested_, requested_.fetch_add(bytes, std::memory_order_relaxed) + bytes);
  raise(peak_live_blocks_, live_blocks_.fetch_add(1, std::memory_order_relaxed) + 1);
  allocations_.fetch_add(1, std::memory_order_relaxed);
  allocated_.fetch_add(bytes, std::memory_order_relaxed);
}
void device_memory::count_need(std::uint64_t bytes) noexcept {
  raise(peak_needed_, needed_.fetch_add(bytes, std::memory_order_relaxed) + bytes);
}
void device_memory::count_free(std::uint64_t bytes) noexcept {
  requested_.fetch_sub(bytes, std::memory_order_relaxed);
  live_blocks_.fetch_sub(1, std::memory_order_relaxed);
  deallocations_.fetch_add(1, std::memory_order_relaxed);
  freed_.fetch_add(bytes, std::memory_order_relaxed);
}

result<void*> device_memory::allocate(std::uint64_t bytes, stream_handle stream) {
  if (bytes == 0) return nullptr;
  bool for_graph = false;
  result<void*> got = nullptr;
  if (serves_graphs()) got = allocate_for_graph(bytes, stream, &for_graph);
  if (!for_graph) got = pool_->try_allocate(bytes, default_alignment, stream);
  if (!got) {
    if (got.error().code == error_code::out_of_memory) out_of_memory_.fetch_add(1, std::memory_order_relaxed);
    if (history_.on()) history_.note(history::action::oom, 0, bytes, stream);
    return got;
  }
  count_allocation(bytes);
  if (!for_graph) count_need(bytes);
  if (history_.on()) history_.note(history::action::alloc, reinterpret_cast<std::uint64_t>(*got), bytes, stream);
  return got;
}

result<void> device_memory::deallocate(void* ptr, std::uint64_t bytes, stream_handle stream) {
  if (ptr == nullptr) return {};
  // Before the block goes back: then its address may be somebody else's.
  if (history_.on()) history_.note(history::action::free_requested, reinterpret_cast<std::uint64_t>(ptr), bytes, stream);
  if (serves_graphs()) {
    if (const std::uint64_t requested = free_of_graph(ptr); requested != 0) {
      count_free(requested);
      return {};
    }
  }
  auto freed = pool_->try_deallocate(ptr, bytes, stream);
  if (freed) {
    count_free(bytes);
    needed_.fetch_sub(bytes, std::memory_order_relaxed);
  }
  return freed;
}

result<void> device_memory::record_use(void* ptr, stream_handle stream) {
  if (serves_graphs()) {
    const std::lock_guard lock(graphs_mutex_);
    for (auto& [id, graph] : graphs_) {
      if (graph.note_other_use(ptr)) return {};
    }
  }
  return pool_->record_use(ptr, stream);
}

result<pool::block_range> device_memory::find(const void* ptr) {
  if (serves_graphs()) {
    const std::lock_guard lock(graphs_mutex_);
    for (const auto& [id, graph] : graphs_) {
      if (const auto found = graph.find(ptr); found.bytes != 0) {
        return pool::block_range{reinterpret_cast<void*>(found.start), found.bytes};
      }
    }
  }
  return pool_->find(ptr);
}

void device_memory::empty_cache() {
  give_back_released();
  wait_for_frees();
  static_cast<void>(pool_->trim(0));
}

void device_memory::set_fraction(double fraction) {
  const auto total = static_cast<double>(gpu_->info().total_bytes);
  pool_->set_limit_bytes(std::max<std::uint64_t>(1, static_cast<std::uint64_t>(fraction * total)));
}

// Graph pools ---------------------------------------------------------------------------------------------

result<void*> device_memory::allocate_for_graph(std::uint64_t bytes, stream_handle stream, bool* taken) {
  const std::lock_guard lock(graphs_mutex_);
  const auto wanted = std::find_if(capturing_.begin(), capturing_.end(), [&](const auto& c) { return c.second(stream); });
  if (wanted == capturing_.end()) return nullptr;
  *taken = true;
  graph_pool& graph = graphs_[wanted->first];
  const auto carve = [&] {
    const std::uint64_t before = graph.peak_live_bytes();
    void* const ptr = graph.allocate(bytes, stream);
    count_need(graph.peak_live_bytes() - before);
    return ptr;
  };
  if (void* const ptr = carve()) return ptr;
  const std::uint64_t wish = graph.chunk_bytes_for(bytes);
  struct filling {
    filling() noexcept { filling_graph = true; }
    ~filling() { filling_graph = false; }
  };
  try {
    const filling now;
    void* const lent = lending_->allocate(wish);
    graph.add_chunk({reinterpret_cast<std::uint64_t>(lent), wish}, stream);
    graph_bytes_ += wish;
  } catch (const out_of_memory& failure) {
    return error{error_code::out_of_memory, std::string("for a captured graph: ") + failure.what()};
  } catch (const memory_error& failure) {
    return error{failure.code(), failure.what()};
  }
  return carve();
}

std::uint64_t device_memory::free_of_graph(void* ptr) {
  const std::lock_guard lock(graphs_mutex_);
  for (auto& [id, graph] : graphs_) {
    if (const std::uint64_t requested = graph.deallocate(ptr); requested != 0) return requested;
  }
  return 0;
}

void device_memory::begin_graph_pool(graph_pool_id id, stream_filter filter) {
  const std::lock_guard lock(graphs_mutex_);
  graph_pool& graph = graphs_[id];
  graph.released = false;
  ++graph.captures;
  capturing_.emplace_back(id, std::move(filter));
  graph_pools_.store(static_cast<int>(graphs_.size()), std::memory_order_release);
}

void device_memory::end_graph_pool(graph_pool_id id) {
  const std::lock_guard lock(graphs_mutex_);
  const auto found = std::find_if(capturing_.begin(), capturing_.end(), [&](const auto& c) { return c.first == id; });
  if (found == capturing_.end()) return;
  capturing_.erase(found);
  graph_pool& graph = graphs_[id];
  if (--graph.captures == 0) graph.capture_ended();
}

void device_memory::release_graph_pool(graph_pool_id id) {
  const std::lock_guard lock(graphs_mutex_);
  if (const auto found = graphs_.find(id); found != graphs_.end()) found->second.released = true;
}

// Memory of graph pools that PyTorch let go of, as far as no tensor lives in it. A graph may be destroyed while it still runs, so the
// device is waited for, as PyTorch's own allocator does; not while a capture is known, which waiting would break.
bool device_memory::give_back_released() {
  std::vector<graph_pool::chunk> chunks;
  if (filling_graph) return false;
  const std::lock_guard lock(graphs_mutex_);
  if (!capturing_.empty()) return false;
  for (auto at = graphs_.begin(); at != graphs_.end();) {
    if (!at->second.released || at->second.captures != 0) {
      ++at;
      continue;
    }
    const auto idle = at->second.take_idle_chunks();
    chunks.insert(chunks.end(), idle.begin(), idle.end());
    needed_.fetch_sub(at->second.forget_peak(), std::memory_order_relaxed);
    at = at->second.chunks().empty() ? graphs_.erase(at) : std::next(at);
  }
  if (chunks.empty()) return false;
  static_cast<void>(gpu_->context_synchronize());
  for (const graph_pool::chunk& lent : chunks) {
    lending_->deallocate(reinterpret_cast<void*>(lent.start), lent.bytes);
    graph_bytes_ -= lent.bytes;
  }
  graph_pools_.store(static_cast<int>(graphs_.size()), std::memory_order_release);
  return true;
}

// Without a fence over the whole context, what a stream freed before it fell silent is known to be done only when the device
// is. Answers whether that helped; not while a capture is known.
bool device_memory::wait_for_frees() {
  if (filling_graph) return false;
  {
    const std::lock_guard lock(graphs_mutex_);
    if (!capturing_.empty()) return false;
  }
  const std::uint64_t before = pool_->statistics().idle_bytes;
  return pool_->synchronize() && pool_->statistics().idle_bytes > before;
}

// Numbers -------------------------------------------------------------------------------------------------

device_memory::numbers device_memory::statistics() const {
  const pool_statistics now = pool_->statistics();
  numbers out;
  out.requested = requested_.load(std::memory_order_relaxed);
  out.peak_requested = peak_requested_.load(std::memory_order_relaxed);
  out.allocated = allocated_.load(std::memory_order_relaxed);
  out.freed = freed_.load(std::memory_order_relaxed);
  out.allocations = allocations_.load(std::memory_order_relaxed);
  out.deallocations = deallocations_.load(std::memory_order_relaxed);
  out.live_blocks = live_blocks_.load(std::memory_order_relaxed);
  out.peak_live_blocks = peak_live_blocks_.load(std::memory_order_relaxed);
  out.peak_needed = peak_needed_.load(std::memory_order_relaxed);
  out.out_of_memory = out_of_memory_.load(std::memory_order_relaxed);
  out.reserved = now.reserved_bytes;
  out.peak_reserved = now.peak_reserved_bytes;
  out.pool = now;
  const std::lock_guard lock(graphs_mutex_);
  out.graph_bytes = graph_bytes_;
  return out;
}

void device_memory::reset_peaks() {
  peak_requested_.store(requested_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  peak_live_blocks_.store(live_blocks_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  peak_needed_.store(needed_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  pool_->reset_peak_reserved();
}

}  // namespace millpond::torch
