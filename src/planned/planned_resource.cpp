#include "millpond/planned/planned_resource.hpp"

#include <algorithm>
#include <functional>

#include "planned/planned_stream.hpp"

namespace millpond {

void planned_lane::begin(std::uint64_t key) {
  state_->begin(key);
}
void planned_lane::end() {
  state_->end();
}

result<void*> planned_lane::try_allocate(std::uint64_t bytes, std::uint64_t alignment,
                                         std::uint64_t site) {
  return state_->allocate(bytes, alignment, site);
}

void* planned_lane::allocate(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t site) {
  auto made = state_->allocate(bytes, alignment, site);
  if (made) return *made;
  if (made.error().code == error_code::out_of_memory) throw out_of_memory(made.error());
  throw memory_error(made.error());
}

void planned_lane::deallocate(void* ptr, std::uint64_t bytes) noexcept {
  if (ptr == nullptr) return;
  const auto freed = state_->deallocate(ptr, bytes);
  if (!freed) state_->tell(freed.error());
}

planned_counters planned_lane::counters() const {
  return state_->counters();
}

planned_resource::planned_resource(memory_resource& upstream, planned_options options)
    : resource_adaptor(upstream), options_(options) {}

planned_resource::~planned_resource() = default;

// Takes no lock: a list once published never changes, and lives as long as the resource.
detail::planned_lane_state* planned_resource::find(stream_handle stream) const {
  const lane_list* const lanes = published_.load(std::memory_order_acquire);
  if (lanes == nullptr) return nullptr;
  const auto at = std::lower_bound(
      lanes->begin(), lanes->end(), stream,
      [](const auto* lane, stream_handle other) { return std::less<>{}(lane->stream(), other); });
  return at != lanes->end() && (*at)->stream() == stream ? *at : nullptr;
}

planned_lane planned_resource::lane(stream_handle stream) {
  const std::lock_guard lock(mutex_);
  if (detail::planned_lane_state* const known = find(stream); known != nullptr)
    return planned_lane(*known);
  lanes_.push_back(std::make_unique<detail::planned_lane_state>(*this, stream));
  auto list = std::make_unique<lane_list>();
  for (const auto& each : lanes_) list->push_back(each.get());
  std::sort(list->begin(), list->end(),
            [](const auto* a, const auto* b) { return std::less<>{}(a->stream(), b->stream()); });
  lists_.push_back(std::move(list));
  published_.store(lists_.back().get(), std::memory_order_release);
  return planned_lane(*lanes_.back());
}

planned_counters planned_resource::counters() const {
  planned_counters sum;
  const lane_list* const lanes = published_.load(std::memory_order_acquire);
  if (lanes == nullptr) return sum;
  for (const auto* each : *lanes) {
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
  detail::planned_lane_state* const lane_of = find(stream);
  if (lane_of != nullptr) return lane_of->allocate(bytes, alignment, 0);
  return upstream().try_allocate(bytes, alignment, stream);
}

result<void> planned_resource::do_deallocate(void* ptr, std::uint64_t bytes,
                                             stream_handle stream) noexcept {
  detail::planned_lane_state* own = nullptr;
  if (const lane_list* const lanes = published_.load(std::memory_order_acquire); lanes != nullptr) {
    for (auto* each : *lanes) {
      if (each->stream() == stream)
        own = each;
      else if (each->in_arena(ptr))
        return error{error_code::not_permitted,
                     "a planned block is freed on the stream of its lane, in that stream's order; "
                     "this free names another"};
    }
  }
  if (own != nullptr) return own->deallocate(ptr, bytes);
  return upstream().try_deallocate(ptr, bytes, stream);
}

}  // namespace millpond
