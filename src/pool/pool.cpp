// The pool's face.
#include "millpond/pool/pool.hpp"

#include <new>

#include "base/process_barrier.hpp"
#include "pool/fast_path.hpp"

namespace millpond {
// The face
// ----------------------------------------------------------------------------------------------

pool::pool(std::shared_ptr<core> state) : core_(std::move(state)) {}
pool::~pool() {
  if (forked()) return;
  report_refused();
  for (const error& failure : core_->close()) report(failure);
}

result<std::shared_ptr<pool>> pool::create(std::shared_ptr<driver> gpu, pool_options options) {
  if (gpu == nullptr) return error{error_code::invalid_argument, "pool: no driver"};
  if (options.kind != memory_kind::device && options.kind != memory_kind::pinned &&
      options.kind != memory_kind::managed) {
    return error{error_code::invalid_argument,
                 std::string("pool: kind ") + to_string(options.kind) +
                     " cannot be pooled; expected device, pinned or managed"};
  }
  if (!(options.slack >= 0) || options.slack > 10) {
    return error{error_code::invalid_argument, "pool: slack must be from 0 to 10"};
  }
  process_barrier_available();  // registers the process: not to be paid in an allocation
  auto state = std::make_shared<core>(std::move(gpu), std::move(options));
  const auto opened = [&]() -> result<void> {
    try {
      return state->open();
    } catch (const std::bad_alloc&) {
      return no_host_memory();
    }
  }();
  if (!opened) {
    static_cast<void>(state->close());
    return opened.error();
  }
  return std::shared_ptr<pool>(new pool(std::move(state)));
}

memory_kind pool::kind() const noexcept {
  return core_->options().kind;
}
driver* pool::gpu() const noexcept {
  return &core_->gpu();
}

void* pool::allocate(std::uint64_t bytes, std::uint64_t alignment, stream_handle stream) {
  if (__builtin_expect(bytes - 1 < max_bytes && alignment == heap::granule && core_->open_here(),
                       1)) {
    if (thread_cache* const in = core_->usual_cache(stream)) {
      if (void* const ptr = core_->pop_here(*in, bytes)) return ptr;
      // With something to report the long way is taken: the program's own error sink may drop the
      // cache.
      if (!core_->has_refused()) return or_throw(core_->allocate_from(*in, bytes, alignment));
    }
  }
  return memory_resource::allocate(bytes, alignment, stream);
}
// Called where a call is not quick anyway, with no lock held.
void pool::report_refused() noexcept {
  if (__builtin_expect(!core_->has_refused(), 1) || core_->forked()) return;
  try {
    for (const error& each : core_->take_refused()) report(each);
  } catch (const std::bad_alloc&) {  // no memory for the words
  }
}
void pool::deallocate(void* ptr, std::uint64_t bytes, stream_handle stream) noexcept {
  if (__builtin_expect(ptr != nullptr && core_->open_here(), 1)) {
    thread_cache* const in = core_->cache_of_free(stream);
    if (in != nullptr && (core_->posted(*in, ptr, bytes) || core_->push_here(*in, ptr, bytes)))
      return;
  }
  memory_resource::deallocate(ptr, bytes, stream);
}

result<void*> pool::do_allocate(std::uint64_t bytes, std::uint64_t alignment,
                                stream_handle stream) {
  report_refused();
  if (alignment <= heap::granule && core_->serving()) {
    if (thread_cache* const in = core_->usual_cache(stream)) {
      if (void* const ptr = core_->pop_here(*in, bytes)) return ptr;
      return core_->allocate_from(*in, bytes, alignment);
    }
  }
  return core_->allocate(bytes, alignment, stream);
}
result<void> pool::do_deallocate(void* ptr, std::uint64_t bytes, stream_handle stream) noexcept {
  report_refused();
  return core_->deallocate(ptr, bytes, stream);
}

pool::cache_handle pool::cache(stream_handle stream) {
  if (forked()) throw memory_error(refused_in_child());
  auto made = core_->make_cache(stream);
  if (!made) throw memory_error(made.error());
  return {*this, core_, std::move(*made)};
}

pool::capture_cache_handle pool::capture_cache(stream_handle stream) {
  if (forked()) throw memory_error(refused_in_child());
  if (!core_->serving()) throw memory_error(core_->not_serving());
  auto made = core_->make_captured_cache(stream);
  if (!made) throw memory_error(made.error());
  return {*this, core_, std::move(*made)};
}
graph_arena pool::make_graph_arena() {
  if (forked()) throw memory_error(refused_in_child());
  return core_->make_graph_arena();
}
result<void> pool::capture_into(const graph_arena& arena, stream_handle stream) {
  if (forked()) return refused_in_child();
  if (!core_->serving()) return core_->not_serving();
  if (!arena)
    return error{error_code::invalid_argument,
                 "capture_into: no graph arena: pool::make_graph_arena makes one"};
  return core_->capture_into(*arena.held_, stream);
}

void pool::look_for_capture_end(stream_handle stream) noexcept {
  if (!forked() && core_->serving()) core_->look_for_capture_end(stream);
}

result<void> pool::record_use(void* ptr, stream_handle stream) noexcept {
  if (forked()) return refused_in_child();
  if (ptr == nullptr) return {};
  return core_->record_use(ptr, stream);
}
result<pool::block_range> pool::find(const void* ptr) const noexcept {
  if (forked()) return refused_in_child();
  return core_->find(ptr);
}
std::uint64_t pool::trim(std::uint64_t keep_bytes) {
  if (forked()) return 0;
  const std::uint64_t given_back = core_->trim(keep_bytes);
  report_refused();
  return given_back;
}
void pool::reset_peak_reserved() noexcept {
  if (!forked()) core_->reset_peak_reserved();
}
result<void> pool::synchronize() {
  if (forked()) return refused_in_child();
  if (!core_->serving()) return core_->not_serving();
  return core_->synchronize();
}
void pool::set_limit_bytes(std::uint64_t bytes) noexcept {
  core_->set_limit_bytes(bytes);
}
std::uint64_t pool::give_back(std::uint64_t older_than_ns, std::uint64_t keep_bytes) {
  return forked() ? 0 : core_->give_back_old(older_than_ns, keep_bytes);
}
result<void> pool::reserve(std::uint64_t bytes) {
  if (forked()) return refused_in_child();
  return core_->reserve(bytes);
}
pool::admission pool::would_fit(std::uint64_t bytes, stream_handle stream) const {
  return forked() ? admission{fit::no, 0, bytes} : core_->would_fit(bytes, stream);
}
result<void> pool::set_tag(void* ptr, std::string_view tag) {
  if (forked()) return refused_in_child();
  return core_->set_tag(ptr, tag);
}
result<sleep_outcome> pool::sleep(const sleep_options& options) {
  if (forked()) return refused_in_child();
  return core_->sleep(options);
}
result<wake_outcome> pool::wake() {
  if (forked()) return refused_in_child();
  return core_->wake();
}
bool pool::asleep() const noexcept {
  return core_->asleep();
}
memory_report pool::explain() const {
  return forked() ? memory_report{} : core_->explain();
}
pool_statistics pool::statistics() const {
  return forked() ? pool_statistics{} : core_->statistics();
}
void pool::check() const {
  if (!forked()) core_->check();
}

}  // namespace millpond
