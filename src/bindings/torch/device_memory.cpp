#include "bindings/torch/device_memory.hpp"

#include <algorithm>

#include "base/raise_to.hpp"

namespace millpond::torch {

result<std::unique_ptr<device_memory>> device_memory::create(std::shared_ptr<driver> gpu,
                                                             pool_options options) {
  std::unique_ptr<device_memory> made(new device_memory(std::move(gpu)));
  // The pool knows of a capture once it allocates, PyTorch's program may capture what never does;
  // and PyTorch never destroys a stream. So a fence over the whole context could break a capture,
  // and is needed for the memory of released graphs alone, which empty_cache and pressure wait for.
  options.fences = context_fences::never;
  options.on_pressure = [self = made.get(),
                         users = std::move(options.on_pressure)](std::uint64_t bytes) {
    // Twice, as in empty_cache().
    return self->wait_for_frees() || self->wait_for_frees() || (users && users(bytes));
  };
  auto served = pool::create(made->gpu_, std::move(options));
  if (!served) return served.error();
  made->pool_ = std::move(*served);
  return made;
}

void device_memory::count_allocation(std::uint64_t bytes) noexcept {
  raise_to(peak_requested_, requested_.fetch_add(bytes, std::memory_order_relaxed) + bytes);
  raise_to(peak_live_blocks_, live_blocks_.fetch_add(1, std::memory_order_relaxed) + 1);
  allocations_.fetch_add(1, std::memory_order_relaxed);
  allocated_.fetch_add(bytes, std::memory_order_relaxed);
}
void device_memory::count_need(std::uint64_t bytes) noexcept {
  raise_to(peak_needed_, needed_.fetch_add(bytes, std::memory_order_relaxed) + bytes);
}
void device_memory::count_free(std::uint64_t bytes) noexcept {
  requested_.fetch_sub(bytes, std::memory_order_relaxed);
  live_blocks_.fetch_sub(1, std::memory_order_relaxed);
  deallocations_.fetch_add(1, std::memory_order_relaxed);
  freed_.fetch_add(bytes, std::memory_order_relaxed);
}

result<void*> device_memory::allocate(std::uint64_t bytes, stream_handle stream) {
  if (bytes == 0) return nullptr;
  std::optional<graph_pool_id> graph;
  if (captures_.load(std::memory_order_acquire) != 0) {
    const auto found = graph_pool_for(stream);
    if (!found) return found.error();
    graph = *found;
  }
  auto got = pool_->try_allocate(bytes, default_alignment, stream);
  if (!got) {
    if (got.error().code == error_code::out_of_memory)
      out_of_memory_.fetch_add(1, std::memory_order_relaxed);
    if (history_.on()) history_.note(history::action::oom, 0, bytes, stream);
    if (graph)
      return error{got.error().code, "for a captured graph: " + got.error().message,
                   got.error().json};
    return got;
  }
  count_allocation(bytes);
  if (graph)
    note_graph_block(*got, *graph, bytes);
  else
    count_need(bytes);
  if (history_.on())
    history_.note(history::action::alloc, reinterpret_cast<std::uint64_t>(*got), bytes, stream);
  return got;
}

result<void> device_memory::deallocate(void* ptr, std::uint64_t bytes, stream_handle stream) {
  if (ptr == nullptr) return {};
  // Before the block goes back: then its address may be somebody else's.
  if (history_.on())
    history_.note(history::action::free_requested, reinterpret_cast<std::uint64_t>(ptr), bytes,
                  stream);
  if (serves_graphs()) {
    std::vector<graph_arena> last_holds;
    const std::lock_guard lock(graphs_mutex_);
    if (const auto block = graph_blocks_.find(ptr); block != graph_blocks_.end()) {
      // A capture may begin on the stream at any moment, and what the pool records for this free
      // would end up in it. Who begins one takes this lock first.
      capture_info capture;
      const bool captures = !capturing_.empty() && gpu_->stream_capture(stream, &capture).ok() &&
                            capture.status != capture_status::none;
      if (!capturing_.empty() && !captures) {
        deferred_.push_back({ptr, bytes, stream});
        return {};
      }
      return free_of_graph(block, bytes, stream, &last_holds);
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
  return pool_->record_use(ptr, stream);
}

result<pool::block_range> device_memory::find(const void* ptr) {
  return pool_->find(ptr);
}

// Twice: the driver tells that a graph is gone only when the device has run it, so that what the
// first wait made free is counted as done by the second.
void device_memory::empty_cache() {
  wait_for_frees();
  wait_for_frees();
  static_cast<void>(pool_->trim(0));
}

void device_memory::set_fraction(double fraction) {
  const auto total = static_cast<double>(gpu_->info().total_bytes);
  pool_->set_limit_bytes(std::max<std::uint64_t>(1, static_cast<std::uint64_t>(fraction * total)));
}

// Graph pools
// ---------------------------------------------------------------------------------------------

result<std::optional<graph_pool_id>> device_memory::graph_pool_for(stream_handle stream) {
  static const std::optional<graph_pool_id> none;
  const std::lock_guard lock(graphs_mutex_);
  const auto wanted = std::find_if(capturing_.begin(), capturing_.end(),
                                   [&](const auto& c) { return c.takes(stream); });
  if (wanted == capturing_.end()) return none;
  capture_info capture;
  if (!gpu_->stream_capture(stream, &capture).ok() || capture.status != capture_status::active)
    return none;
  captured_on_.insert(stream);
  if (wanted->attached != capture.id) {
    if (const auto attached = pool_->capture_into(graphs_.at(wanted->id).arena, stream); !attached)
      return attached.error();
    wanted->attached = capture.id;
    wanted->stream = stream;
  }
  return std::optional(wanted->id);
}

void device_memory::note_graph_block(void* ptr, const graph_pool_id& id, std::uint64_t bytes) {
  const std::lock_guard lock(graphs_mutex_);
  graph_blocks_.insert_or_assign(ptr, graph_block{id, bytes});
  graph_pool& graph = graphs_.at(id);  // its capture runs
  ++graph.live_blocks;
  graph.live_bytes += bytes;
  if (graph.live_bytes <= graph.peak_live_bytes) return;
  count_need(graph.live_bytes - graph.peak_live_bytes);
  graph.peak_live_bytes = graph.live_bytes;
}

// The last hold of an arena goes after the block, and after the lock.
result<void> device_memory::free_of_graph(graph_blocks::iterator block, std::uint64_t bytes,
                                          stream_handle stream,
                                          std::vector<graph_arena>* last_holds) {
  void* const ptr = block->first;
  const auto graph = graphs_.find(block->second.id);
  const std::uint64_t requested = block->second.bytes;
  auto freed = pool_->try_deallocate(ptr, bytes, stream);
  if (!freed) return freed;
  count_free(requested);
  --graph->second.live_blocks;
  graph->second.live_bytes -= requested;
  graph_blocks_.erase(block);
  drop_if_unused(graph, last_holds);
  return freed;
}

void device_memory::begin_graph_pool(graph_pool_id id, stream_filter filter) {
  const std::lock_guard lock(graphs_mutex_);
  graph_pool& graph = graphs_[id];
  if (!graph.arena) graph.arena = pool_->make_graph_arena();
  graph.released = false;
  ++graph.captures;
  capturing_.push_back({id, std::move(filter)});
  graph_pools_.store(graphs_.size(), std::memory_order_release);
  captures_.store(capturing_.size(), std::memory_order_release);
}

void device_memory::end_graph_pool(graph_pool_id id) {
  std::vector<graph_arena> last_holds;
  const std::lock_guard lock(graphs_mutex_);
  const auto found =
      std::find_if(capturing_.begin(), capturing_.end(), [&](const auto& c) { return c.id == id; });
  if (found != capturing_.end()) end(found, &last_holds);
}

void device_memory::end(std::vector<capture_into_pool>::iterator capture,
                        std::vector<graph_arena>* last_holds) {
  if (capture->attached != 0) pool_->look_for_capture_end(capture->stream);
  const auto graph = graphs_.find(capture->id);
  capturing_.erase(capture);
  captures_.store(capturing_.size(), std::memory_order_release);
  --graph->second.captures;
  drop_if_unused(graph, last_holds);
  if (!capturing_.empty()) return;
  for (const deferred_free& waiting : deferred_) {
    const auto block = graph_blocks_.find(waiting.ptr);
    if (block != graph_blocks_.end())
      static_cast<void>(free_of_graph(block, waiting.bytes, waiting.stream, last_holds));
  }
  deferred_.clear();
}

bool device_memory::capture_may_run() {
  std::vector<graph_arena> last_holds;
  const std::lock_guard lock(graphs_mutex_);
  for (std::size_t i = capturing_.size(); i > 0; --i) {
    const auto at = capturing_.begin() + static_cast<std::ptrdiff_t>(i - 1);
    capture_info capture;
    const bool over = at->attached != 0 && gpu_->stream_capture(at->stream, &capture).ok() &&
                      capture.status == capture_status::none;
    if (over) end(at, &last_holds);
  }
  if (!capturing_.empty()) return true;
  // A free of another thread may have met a capture just before its end, and informed the pool of
  // it just after.
  for (const stream_handle stream : captured_on_) pool_->look_for_capture_end(stream);
  return false;
}

void device_memory::release_graph_pool(graph_pool_id id) {
  std::vector<graph_arena> last_holds;
  const std::lock_guard lock(graphs_mutex_);
  const auto found = graphs_.find(id);
  if (found == graphs_.end()) return;
  found->second.released = true;
  drop_if_unused(found, &last_holds);
}

// What a graph pool was at its most is needed as long as its graphs may run; once PyTorch has let
// go of it, what lives.
void device_memory::drop_if_unused(std::map<graph_pool_id, graph_pool>::iterator at,
                                   std::vector<graph_arena>* last_holds) {
  graph_pool& graph = at->second;
  if (!graph.released || graph.captures != 0) return;
  needed_.fetch_sub(graph.peak_live_bytes - graph.live_bytes, std::memory_order_relaxed);
  graph.peak_live_bytes = graph.live_bytes;
  if (graph.live_blocks != 0) return;
  last_holds->push_back(std::move(graph.arena));
  graphs_.erase(at);
  graph_pools_.store(graphs_.size(), std::memory_order_release);
}

// Without a fence over the whole context, what a stream freed before it fell silent is known to be
// done only when the device is. Answers whether that helped; not while a capture is known.
bool device_memory::wait_for_frees() {
  if (capture_may_run()) return false;
  const std::uint64_t before = pool_->statistics().idle_bytes;
  return pool_->synchronize() && pool_->statistics().idle_bytes > before;
}

// Numbers
// ---------------------------------------------------------------------

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
  out.graph_bytes = now.capture_bytes;
  return out;
}

void device_memory::reset_peaks() {
  peak_requested_.store(requested_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  peak_live_blocks_.store(live_blocks_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  peak_needed_.store(needed_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  pool_->reset_peak_reserved();
}

}  // namespace millpond::torch
