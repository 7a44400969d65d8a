#include "millpond/memory/kinds.hpp"

#include "driver/own_calls.hpp"

namespace millpond {
namespace {

result<pool_handle> make_pool(driver& gpu, const driver_pool_options& options) {
  const std::string doing = "driver_pool_resource: make a pool";
  const own_calls_scope own_calls(gpu);
  if (!own_calls.entered()) return to_error(own_calls.entered(), doing);
  pool_handle pool = nullptr;
  call_result answer = gpu.pool_create(&pool, options.location, options.limit_bytes);
  if (!answer.ok()) return to_error(answer, doing);
  answer = gpu.pool_set_release_threshold(pool, options.keep_bytes);
  if (!answer.ok()) {
    static_cast<void>(gpu.pool_destroy(pool));
    return to_error(answer, doing);
  }
  return pool;
}

pool_handle pool_or_throw(driver& gpu, const driver_pool_options& options) {
  auto made = make_pool(gpu, options);
  if (!made) throw memory_error(made.error());
  return *made;
}

}  // namespace

result<std::unique_ptr<driver_pool_resource>> driver_pool_resource::create(
    std::shared_ptr<driver> gpu, driver_pool_options options,
    std::shared_ptr<pointer_registry> registry) {
  auto made = make_pool(*gpu, options);
  if (!made) return made.error();
  return std::unique_ptr<driver_pool_resource>(
      new driver_pool_resource(std::move(gpu), *made, options.location, std::move(registry)));
}

// Nothing says which argument below is made first, so `gpu` is copied beside *gpu, not moved.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
driver_pool_resource::driver_pool_resource(std::shared_ptr<driver> gpu, driver_pool_options options,
                                           std::shared_ptr<pointer_registry> registry)
    : driver_pool_resource(gpu, pool_or_throw(*gpu, options), options.location,
                           std::move(registry)) {}

driver_pool_resource::driver_pool_resource(std::shared_ptr<driver> gpu, pool_handle pool,
                                           memory_location location,
                                           std::shared_ptr<pointer_registry> registry)
    : tracked_resource(std::move(gpu), std::move(registry),
                       {location == memory_location::host ? "driver_pool_resource (host)"
                                                          : "driver_pool_resource",
                        memory_kind::driver_pool, "cuMemAllocFromPoolAsync", "cuMemFreeAsync"}),
      pool_(pool),
      location_(location) {}

driver_pool_resource::~driver_pool_resource() {
  if (forked()) return;
  give_back_all();
  if (!gpu()->alive()) return;
  const own_calls_scope own_calls(*gpu());
  static_cast<void>(gpu()->pool_destroy(pool_));
}

result<void> driver_pool_resource::trim(std::uint64_t keep_bytes) {
  const own_calls_scope own_calls(*gpu());
  if (!own_calls.entered()) return to_error(own_calls.entered(), name() + ": trim");
  const call_result answer = gpu()->pool_trim(pool_, keep_bytes);
  if (!answer.ok()) return to_error(answer, name() + ": trim");
  return {};
}

result<void> driver_pool_resource::set_keep_bytes(std::uint64_t keep_bytes) {
  const own_calls_scope own_calls(*gpu());
  const call_result answer = gpu()->pool_set_release_threshold(pool_, keep_bytes);
  if (!answer.ok()) return to_error(answer, name() + ": set the bytes it keeps");
  return {};
}

result<driver::pool_usage> driver_pool_resource::driver_usage() const {
  driver::pool_usage usage;
  const own_calls_scope own_calls(*gpu());
  const call_result answer = gpu()->pool_get_usage(pool_, &usage);
  if (!answer.ok()) return to_error(answer, name() + ": usage");
  return usage;
}

// No own_calls_scope here: stream-ordered calls are what captures are for, and on a capturing
// stream the caller asked for the node.
call_result driver_pool_resource::obtain(device_address* out, std::uint64_t bytes, std::uint64_t,
                                         stream_handle stream) noexcept {
  return gpu()->pool_allocate(out, bytes, pool_, stream);
}

call_result driver_pool_resource::give_back(device_address base, stream_handle stream) noexcept {
  return gpu()->pool_free(base, stream);
}

}  // namespace millpond
