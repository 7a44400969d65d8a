#include "millpond/planned/planned_resource.hpp"

#include <algorithm>
#include <functional>

#include "planned/planned_stream.hpp"
#include "resource/quiet_stream.hpp"

namespace millpond {

void planned_stream::begin(std::uint64_t key) {
  state_->begin(key);
}
void planned_stream::end() {
  state_->end();
}

result<void*> planned_stream::try_allocate(std::uint64_t bytes, std::uint64_t alignment,
                                           std::uint64_t site) {
  return state_->allocate(bytes, alignment, site);
}

void* planned_stream::allocate(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t site) {
  return or_throw(state_->allocate(bytes, alignment, site));
}

void planned_stream::deallocate(void* ptr, std::uint64_t bytes) noexcept {
  if (ptr == nullptr) return;
  const auto freed = state_->deallocate(ptr, bytes);
  if (!freed) state_->tell(freed.error());
}

planned_counters planned_stream::counters() const {
  return state_->counters();
}

planned_resource::planned_resource(memory_resource& upstream, planned_options options)
    : resource_adaptor(upstream),
      options_(options),
      quiet_(std::make_unique<detail::quiet_stream>()) {}

planned_resource::~planned_resource() {
  streams_.clear();
  if (!forked() && gpu() != nullptr && gpu()->alive()) quiet_->end(*gpu());
}

// Takes no lock: a list once published never changes, and lives as long as the resource.
detail::planned_stream_state* planned_resource::find(stream_handle stream) const {
  const stream_list* const streams = published_.load(std::memory_order_acquire);
  if (streams == nullptr) return nullptr;
  const auto at = std::lower_bound(streams->begin(), streams->end(), stream,
                                   [](const auto* per_stream, stream_handle other) {
                                     return std::less<>{}(per_stream->stream(), other);
                                   });
  return at != streams->end() && (*at)->stream() == stream ? *at : nullptr;
}

planned_stream planned_resource::on_stream(stream_handle stream) {
  const std::lock_guard lock(mutex_);
  if (detail::planned_stream_state* const known = find(stream); known != nullptr)
    return planned_stream(*known);
  streams_.push_back(std::make_unique<detail::planned_stream_state>(*this, stream));
  auto list = std::make_unique<stream_list>();
  for (const auto& each : streams_) list->push_back(each.get());
  std::sort(list->begin(), list->end(),
            [](const auto* a, const auto* b) { return std::less<>{}(a->stream(), b->stream()); });
  lists_.push_back(std::move(list));
  published_.store(lists_.back().get(), std::memory_order_release);
  return planned_stream(*streams_.back());
}

planned_counters planned_resource::counters() const {
  planned_counters sum;
  const stream_list* const streams = published_.load(std::memory_order_acquire);
  if (streams == nullptr) return sum;
  for (const auto* each : *streams) {
    const planned_counters one = each->counters();
    sum.iterations += one.iterations;
    sum.recorded += one.recorded;
    sum.served += one.served;
    sum.upstream += one.upstream;
    sum.deviations += one.deviations;
    sum.late_frees += one.late_frees;
    sum.skipped += one.skipped;
    sum.over_budget += one.over_budget;
    sum.stream_waits += one.stream_waits;
    sum.forgotten += one.forgotten;
    sum.arena_bytes += one.arena_bytes;
    sum.planned_bytes += one.planned_bytes;
    sum.lower_bound_bytes += one.lower_bound_bytes;
  }
  return sum;
}

result<void*> planned_resource::do_allocate(std::uint64_t bytes, std::uint64_t alignment,
                                            stream_handle stream) {
  detail::planned_stream_state* const stream_of = find(stream);
  if (stream_of != nullptr) return stream_of->allocate(bytes, alignment, 0);
  return upstream().try_allocate(bytes, alignment, stream);
}

result<void> planned_resource::do_deallocate(void* ptr, std::uint64_t bytes,
                                             stream_handle stream) noexcept {
  detail::planned_stream_state* own = nullptr;
  if (const stream_list* const streams = published_.load(std::memory_order_acquire);
      streams != nullptr) {
    for (auto* each : *streams) {
      if (each->stream() == stream)
        own = each;
      else if (each->in_arena(ptr))
        return error{
            error_code::not_permitted,
            "a planned block is freed on the stream of its planned_stream, in that stream's order; "
            "this free names another"};
    }
  }
  if (own != nullptr) return own->deallocate(ptr, bytes);
  return upstream().try_deallocate(ptr, bytes, stream);
}

}  // namespace millpond
