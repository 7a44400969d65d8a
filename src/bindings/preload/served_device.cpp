#include "bindings/preload/served_device.hpp"

#include "bindings/c_abi_objects.hpp"
#include "driver/own_calls.hpp"
#include "resource/wait.hpp"

namespace millpond::preload {

result<std::shared_ptr<pool>> served_device::make_pool(memory_kind kind, std::uint64_t limit) {
  pool_options options;
  options.kind = kind;
  options.limit_bytes = limit;
  if (!gpu_->simulated()) options.clock = c_abi::host_now_ns;
  // A program that captures on streams of its own does so unseen by us.
  options.fences = context_fences::never;
  options.on_pressure = [this](std::uint64_t) { return relieve(); };
  return pool::create(gpu_, std::move(options));
}

result<std::unique_ptr<served_device>> served_device::create(std::shared_ptr<driver> gpu,
                                                             const settings& chosen) {
  std::unique_ptr<served_device> made(new served_device(std::move(gpu), chosen));
  driver& d = *made->gpu_;
  const own_calls_scope own_calls(d);
  if (const call_result answer = d.stream_create(&made->quiet_); !answer.ok())
    return to_error(answer, "making a stream");
  if (const call_result answer = d.event_create(&made->fence_); !answer.ok())
    return to_error(answer, "making an event");
  const auto add = [&](std::shared_ptr<pool>& to, memory_kind kind,
                       std::uint64_t limit) -> result<void> {
    auto pool = made->make_pool(kind, limit);
    if (!pool) return pool.error();
    to = std::move(*pool);
    return {};
  };
  if (chosen.device) {
    if (chosen.ipc) {
      made->segments_ = std::make_unique<segments>(made->gpu_, chosen.limit_bytes);
    } else if (auto answer = add(made->device_, memory_kind::device, chosen.limit_bytes); !answer) {
      return answer.error();
    }
    if (auto answer = add(made->ordered_, memory_kind::device, chosen.limit_bytes); !answer)
      return answer.error();
  }
  if (chosen.pinned) {
    if (auto answer = add(made->pinned_, memory_kind::pinned, 0); !answer) return answer.error();
  }
  // Without it the CPU may not touch managed memory while a kernel runs, and programs attach blocks
  // to streams by their whole allocation.
  if (chosen.managed && d.info().concurrent_managed_access) {
    if (auto answer = add(made->managed_, memory_kind::managed, 0); !answer) return answer.error();
  }
  return made;
}

served_device::~served_device() {
  if (!gpu_->alive()) return;
  static_cast<void>(wait_for_device(*gpu_));
  for (pool* const each : {device_.get(), ordered_.get(), pinned_.get(), managed_.get()}) {
    if (each != nullptr)
      each->set_error_sink([](const error&) {});  // live blocks: the program's to leave
  }
  device_.reset();
  ordered_.reset();
  pinned_.reset();
  managed_.reset();
  segments_.reset();
  static_cast<void>(gpu_->event_destroy(fence_));
  static_cast<void>(gpu_->stream_destroy(quiet_));
}

bool served_device::serves(memory_kind kind) const noexcept {
  switch (kind) {
    case memory_kind::device: return settings_.device;
    case memory_kind::driver_pool: return ordered_ != nullptr;
    case memory_kind::pinned: return pinned_ != nullptr;
    case memory_kind::managed: return managed_ != nullptr;
    case memory_kind::pageable: break;
  }
  return false;
}

pool* served_device::pool_of(owner who) const noexcept {
  switch (who) {
    case owner::device: return device_.get();
    case owner::ordered: return ordered_.get();
    case owner::pinned: return pinned_.get();
    case owner::managed: return managed_.get();
    case owner::nobody:
    case owner::segment: break;
  }
  return nullptr;
}

void* served_device::allocate(memory_kind kind, std::uint64_t bytes) {
  if (settings_.on_free == free_mode::later) {
    const std::lock_guard lock(later_mutex_);
    take_in_passed();
  }
  if (kind == memory_kind::device && segments_ != nullptr)
    return reinterpret_cast<void*>(segments_->allocate(bytes));
  pool* const from = kind == memory_kind::device   ? device_.get()
                     : kind == memory_kind::pinned ? pinned_.get()
                                                   : managed_.get();
  if (from == nullptr) return nullptr;
  const auto got = from->try_allocate(bytes, default_alignment, quiet_);
  return got ? *got : nullptr;
}

void* served_device::allocate_async(std::uint64_t bytes, stream_handle stream) {
  if (ordered_ == nullptr) return nullptr;
  const auto got = ordered_->try_allocate(bytes, default_alignment, stream);
  return got ? *got : nullptr;
}

served_device::owner served_device::find(const void* ptr, pool::block_range* range) const {
  for (const owner who : {owner::device, owner::ordered, owner::pinned, owner::managed}) {
    const pool* const from = pool_of(who);
    if (from == nullptr) continue;
    if (const auto found = from->find(ptr)) {
      *range = *found;
      return who;
    }
  }
  if (segments_ != nullptr && segments_->owns(reinterpret_cast<device_address>(ptr))) {
    *range = {const_cast<void*>(ptr), 0};
    return owner::segment;
  }
  return owner::nobody;
}

bool served_device::keeps(const void* ptr) const {
  return segments_ != nullptr && segments_->keeps(reinterpret_cast<device_address>(ptr));
}

void served_device::give(pool& to, void* ptr, stream_handle stream) {
  to.deallocate(ptr, 0, stream);
}

bool served_device::deallocate(void* ptr) {
  pool::block_range range;
  const owner who = find(ptr, &range);
  if (who == owner::nobody || range.start != ptr) return false;
  if (settings_.on_free == free_mode::waits || who == owner::segment) {
    static_cast<void>(gpu_->context_synchronize());
    if (who == owner::segment) return segments_->deallocate(reinterpret_cast<device_address>(ptr));
    give(*pool_of(who), ptr, quiet_);
    return true;
  }
  const std::lock_guard lock(later_mutex_);
  if (!waiting_.insert(ptr).second)
    return false;  // freed already: for the pool it lives until its fence has passed
  open_.push_back({pool_of(who), ptr});
  take_in_passed();
  return true;
}

bool served_device::deallocate_async(void* ptr, stream_handle stream) {
  pool::block_range range;
  const owner who = find(ptr, &range);
  if (who == owner::nobody || range.start != ptr) return false;
  if (who == owner::ordered) {
    give(*ordered_, ptr, stream);
    return true;
  }
  if (settings_.on_free == free_mode::later) {
    const std::lock_guard lock(later_mutex_);
    if (waiting_.contains(ptr)) return false;  // freed already
  }
  // cudaMalloc's memory freed in a stream's order: its pool holds only what is done.
  static_cast<void>(gpu_->stream_synchronize(stream));
  if (who == owner::segment) return segments_->deallocate(reinterpret_cast<device_address>(ptr));
  give(*pool_of(who), ptr, quiet_);
  return true;
}

void served_device::give_all(std::vector<freed_block>& blocks) {
  for (const freed_block& b : blocks) {
    waiting_.erase(b.ptr);
    give(*b.of, b.ptr, quiet_);
  }
  blocks.clear();
}

// Blocks whose fence has passed go into their pools; what was freed meanwhile gets the next fence.
void served_device::take_in_passed() {
  if (fence_out_) {
    const own_calls_scope own_calls(*gpu_);
    if (!gpu_->event_query(fence_).ok()) return;
    give_all(fenced_);
    fence_out_ = false;
  }
  if (open_.empty()) return;
  if (gpu_->context_record_event(fence_).ok()) {
    fenced_.swap(open_);
    fence_out_ = true;
  }
}

// Out of memory: what waits for fences is waited for, and what the other pools do not use goes
// back.
bool served_device::relieve() {
  bool relieved = false;
  if (settings_.on_free == free_mode::later) {
    const std::lock_guard lock(later_mutex_);
    if (!open_.empty() || fence_out_) {
      if (!wait_for_device(*gpu_).ok()) return false;
      give_all(fenced_);
      give_all(open_);
      fence_out_ = false;
      relieved = true;
    }
  }
  for (pool* const each : {device_.get(), ordered_.get(), pinned_.get()}) {
    if (each != nullptr && each->trim(0) > 0) relieved = true;
  }
  if (segments_ != nullptr) segments_->trim();
  return relieved;
}

std::uint64_t served_device::unused_bytes() const {
  std::uint64_t out = 0;
  for (const pool* const each : {device_.get(), ordered_.get()}) {
    if (each == nullptr) continue;
    const pool_statistics now = each->statistics();
    if (now.reserved_bytes > now.live_bytes) out += now.reserved_bytes - now.live_bytes;
  }
  if (segments_ != nullptr) {
    const segments::numbers now = segments_->count();
    out += now.reserved - now.live;
  }
  return out;
}

served_device::numbers served_device::count() const {
  numbers out;
  for (const pool* const each : {device_.get(), ordered_.get(), pinned_.get(), managed_.get()}) {
    if (each == nullptr) continue;
    const pool_statistics now = each->statistics();
    out.allocations += now.allocations;
    out.live_bytes += now.live_bytes;
    out.reserved_bytes += now.reserved_bytes;
    out.peak_reserved_bytes += now.peak_reserved_bytes;
  }
  if (segments_ != nullptr) {
    const segments::numbers now = segments_->count();
    out.live_bytes += now.live;
    out.reserved_bytes += now.reserved;
    out.peak_reserved_bytes += now.peak_reserved;
  }
  return out;
}

}  // namespace millpond::preload
