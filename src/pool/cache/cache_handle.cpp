// The handles of caches that their user keeps, of a stream's and of a capture's.
#include "base/check.hpp"
#include "millpond/base/units.hpp"
#include "pool/fast_path.hpp"

namespace millpond {
namespace {

// What the owner of a handle has promised. The audit build asks the driver.
void check_promise([[maybe_unused]] pool::core& core, [[maybe_unused]] const thread_cache& cache) {
#if defined(MILLPOND_AUDIT)
  if (core.closed()) return;
  capture_info capture;
  const bool asked = core.gpu().stream_capture(cache.handle, &capture).ok();
  MILLPOND_CHECK(!asked || capture.status == capture_status::none,
                 "a cache handle was used in a capture");
#endif
}
void check_promise([[maybe_unused]] pool::core& core,
                   [[maybe_unused]] const captured_cache& cache) {
#if defined(MILLPOND_AUDIT)
  if (core.closed()) return;
  capture_info capture;
  const bool asked = core.gpu().stream_capture(cache.handle, &capture).ok();
  MILLPOND_CHECK(!asked ||
                     (capture.status != capture_status::none && capture.id == cache.capture_id) ||
                     capture.status == capture_status::invalidated,
                 "a capture cache was used outside its capture");
#endif
}

}  // namespace

template <class Cache>
pool::basic_cache_handle<Cache>::basic_cache_handle(pool& owner, std::shared_ptr<core> state,
                                                    std::unique_ptr<Cache> own)
    : owner_(&owner), core_(std::move(state)), cache_(std::move(own)) {}

template <class Cache>
pool::basic_cache_handle<Cache>::basic_cache_handle(basic_cache_handle&&) noexcept = default;

template <class Cache>
pool::basic_cache_handle<Cache>& pool::basic_cache_handle<Cache>::operator=(
    basic_cache_handle&& other) noexcept {
  if (this == &other) return *this;
  if (cache_ != nullptr) core_->drop_cache(*cache_);
  owner_ = other.owner_;
  core_ = std::move(other.core_);
  cache_ = std::move(other.cache_);
  return *this;
}

template <class Cache>
pool::basic_cache_handle<Cache>::~basic_cache_handle() {
  if (cache_ != nullptr) core_->drop_cache(*cache_);
}

template <class Cache>
stream_handle pool::basic_cache_handle<Cache>::stream() const noexcept {
  return cache_->handle;
}

template <class Cache>
void* pool::basic_cache_handle<Cache>::allocate(std::uint64_t bytes) {
  check_promise(*core_, *cache_);
  if (__builtin_expect(bytes - 1 < max_bytes && core_->open_here(), 1)) {
    if (void* const ptr = core_->pop_here(*cache_, bytes)) return ptr;
    if (void* const ptr = core_->pop_shared(*cache_, bytes)) return ptr;
  }
  return allocate_slowly(bytes);
}

template <class Cache>
void* pool::basic_cache_handle<Cache>::allocate_slowly(std::uint64_t bytes) {
  if (bytes == 0) return nullptr;
  if (core_->forked()) throw memory_error(refused_in_child());
  if (!core_->serving()) throw memory_error(core_->not_serving());
  if (bytes > max_bytes) throw out_of_memory(format_bytes(bytes) + " is more than any device has");
  owner_->report_refused();
  return or_throw(core_->allocate_from(*cache_, bytes));
}

template <class Cache>
void pool::basic_cache_handle<Cache>::deallocate(void* ptr, std::uint64_t bytes) noexcept {
  check_promise(*core_, *cache_);
  if (__builtin_expect(ptr != nullptr && core_->open_here(), 1)) {
    if (core_->posted(*cache_, ptr, bytes) || core_->push_here(*cache_, ptr, bytes)) return;
  }
  deallocate_slowly(ptr, bytes);
}

template <class Cache>
void pool::basic_cache_handle<Cache>::deallocate_slowly(void* ptr, std::uint64_t bytes) noexcept {
  const auto freed = try_deallocate(ptr, bytes);
  if (freed) return;
  if (core_->closed())
    return default_error_sink()(freed.error());  // the pool is gone, and its sink with it
  owner_->report(freed.error());
}

template <class Cache>
result<void> pool::basic_cache_handle<Cache>::try_deallocate(void* ptr,
                                                             std::uint64_t bytes) noexcept {
  if (ptr == nullptr) return {};
  if (core_->closed())
    return error{error_code::not_permitted,
                 "a block was freed through a cache of a pool that is closed"};
  if (core_->forked()) return refused_in_child();
  check_promise(*core_, *cache_);
  owner_->report_refused();
  return core_->deallocate_to(*cache_, ptr, bytes);
}

template class pool::basic_cache_handle<thread_cache>;
template class pool::basic_cache_handle<captured_cache>;

}  // namespace millpond
