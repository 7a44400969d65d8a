// Memories and pools through the C ABI.
#include <algorithm>
#include <cstring>

#include "bindings/c_abi_objects.hpp"
#include "millpond/memory/kinds.hpp"

using namespace millpond;
using namespace millpond::c_abi;

namespace {

// A kind is one byte here and an int there: 256 must not be taken for 0.
result<void> check_kind(millpond_kind kind) {
  const auto value = static_cast<long long>(kind);
  if (value >= 0 && value <= static_cast<long long>(MILLPOND_PAGEABLE)) return {};
  return error{error_code::invalid_argument,
               "no such kind of memory: " + std::to_string(value) + " (MILLPOND_DEVICE and those " +
                   "that follow it are 0 to " +
                   std::to_string(static_cast<int>(MILLPOND_PAGEABLE)) + ")"};
}

result<std::shared_ptr<memory_resource>> make_plain(const millpond_gpu* gpu, memory_kind kind) {
  const auto driver = gpu == nullptr ? nullptr : gpu->driver;
  const auto registry = gpu == nullptr ? nullptr : gpu->registry;
  if (driver == nullptr && kind != memory_kind::pageable) {
    return error{
        error_code::invalid_argument,
        std::string("the GPU is NULL: only pageable memory needs none, not ") + to_string(kind)};
  }
  switch (kind) {
    case memory_kind::device:
      return std::shared_ptr<memory_resource>(std::make_shared<device_resource>(driver, registry));
    case memory_kind::pinned:
      return std::shared_ptr<memory_resource>(std::make_shared<pinned_resource>(driver, registry));
    case memory_kind::managed:
      return std::shared_ptr<memory_resource>(std::make_shared<managed_resource>(driver, registry));
    case memory_kind::pageable:
      return std::shared_ptr<memory_resource>(
          std::make_shared<pageable_resource>(driver, registry));
    case memory_kind::driver_pool: {
      auto made = driver_pool_resource::create(driver, {}, registry);
      if (!made) return made.error();
      return std::shared_ptr<memory_resource>(std::move(*made));
    }
  }
  return error{error_code::invalid_argument,
               "no such kind of memory: " + std::to_string(static_cast<int>(kind))};
}

// A caller's structure of any age: what it does not have keeps its default.
result<millpond_pool_options> read_options(const millpond_pool_options* given) {
  millpond_pool_options all;
  millpond_pool_options_init(&all);
  if (given == nullptr) return all;
  constexpr std::size_t least = offsetof(millpond_pool_options, limit_bytes);
  if (given->struct_bytes < least) {
    return error{error_code::invalid_argument,
                 "millpond_pool_options.struct_bytes is " + std::to_string(given->struct_bytes) +
                     ": fill the structure with millpond_pool_options_init first"};
  }
  std::memcpy(&all, given, std::min(given->struct_bytes, sizeof all));
  if (auto good = check_kind(static_cast<millpond_kind>(all.kind)); !good) return good.error();
  if (all.reuse < 0 || all.reuse > 2)
    return error{error_code::invalid_argument, "reuse must be 0, 1 or 2"};
  if (all.context_fences < 0 || all.context_fences > 1)
    return error{error_code::invalid_argument, "context_fences must be 0 or 1"};
  return all;
}

}  // namespace

static pool_options translate(const millpond_pool_options& from) {
  pool_options to;
  to.kind = static_cast<memory_kind>(from.kind);
  constexpr reuse_policy policies[] = {reuse_policy::idle, reuse_policy::same_stream,
                                       reuse_policy::may_wait};
  to.reuse = policies[from.reuse];
  to.fences =
      from.context_fences == 0 ? context_fences::when_no_known_capture : context_fences::never;
  to.limit_bytes = from.limit_bytes;
  to.initial_bytes = from.initial_bytes;
  if (!(from.slack < 0)) to.slack = from.slack;
  to.cache_small_bytes = from.cache_small_bytes;
  to.cache_large_bytes = from.cache_large_bytes;
  if (from.max_wait_ns != 0) to.max_wait_ns = from.max_wait_ns;
  to.clock = host_now_ns;
  if (from.on_pressure != nullptr) {
    to.on_pressure = [call = from.on_pressure, user = from.user](std::uint64_t bytes) {
      return call(bytes, user) != 0;
    };
  }
  return to;
}

result<pool_options> millpond::c_abi::read_pool_options(const millpond_pool_options* given) {
  const auto chosen = read_options(given);
  if (!chosen) return chosen.error();
  return translate(*chosen);
}

millpond_status millpond_memory_create(millpond_gpu* gpu, millpond_kind kind,
                                       millpond_memory** memory) {
  return guarded([&] {
    if (memory == nullptr) return null_argument("memory");
    *memory = nullptr;
    if (auto good = check_kind(kind); !good) return fail(good.error());
    auto made = make_plain(gpu, static_cast<memory_kind>(kind));
    if (!made) return fail(made.error());
    *memory = new millpond_memory{std::move(*made), nullptr};
    return MILLPOND_OK;
  });
}

void millpond_pool_options_init(millpond_pool_options* options) {
  if (options == nullptr) return;
  *options = {};
  options->struct_bytes = sizeof *options;
  options->slack = -1;
}

millpond_status millpond_pool_create(millpond_gpu* gpu, const millpond_pool_options* options,
                                     millpond_memory** pool) {
  return guarded([&] {
    if (pool == nullptr) return null_argument("pool");
    *pool = nullptr;
    if (gpu == nullptr) return null_argument("the GPU");
    auto chosen = read_pool_options(options);
    if (!chosen) return fail(chosen.error());
    if (gpu->driver->simulated()) chosen->clock = nullptr;  // its time is not the host's
    auto made = millpond::pool::create(gpu->driver, std::move(*chosen));
    if (!made) return fail(made.error());
    *pool = new millpond_memory{*made, *made};
    return MILLPOND_OK;
  });
}

void millpond_memory_destroy(millpond_memory* memory) {
  delete memory;
}

millpond_kind millpond_memory_kind(const millpond_memory* memory) {
  return memory == nullptr ? MILLPOND_PAGEABLE
                           : static_cast<millpond_kind>(memory->resource->kind());
}
int millpond_memory_host_accessible(const millpond_memory* memory) {
  return memory != nullptr && memory->resource->host_accessible() ? 1 : 0;
}
int millpond_memory_device_accessible(const millpond_memory* memory) {
  return memory != nullptr && memory->resource->device_accessible() ? 1 : 0;
}

millpond_status millpond_allocate(millpond_memory* memory, uint64_t bytes, uint64_t alignment,
                                  millpond_stream stream, void** ptr) {
  return guarded([&] {
    if (memory == nullptr) return null_argument("the memory");
    if (ptr == nullptr) return null_argument("ptr");
    *ptr = nullptr;
    const auto got = memory->resource->try_allocate(
        bytes, alignment == 0 ? default_alignment : alignment, stream);
    if (!got) return fail(got.error());
    *ptr = *got;
    return MILLPOND_OK;
  });
}

millpond_status millpond_deallocate(millpond_memory* memory, void* ptr, uint64_t bytes,
                                    millpond_stream stream) {
  return guarded([&] {
    if (memory == nullptr) return null_argument("the memory");
    const auto freed = memory->resource->try_deallocate(ptr, bytes, stream);
    return freed ? MILLPOND_OK : fail(freed.error());
  });
}

millpond_status millpond_record_use(millpond_memory* pool, void* ptr, millpond_stream stream) {
  return guarded([&] {
    if (pool == nullptr || pool->pool == nullptr) return no_pool(pool);
    const auto recorded = pool->pool->record_use(ptr, stream);
    return recorded ? MILLPOND_OK : fail(recorded.error());
  });
}

millpond_status millpond_find(millpond_memory* pool, const void* ptr, void** start,
                              uint64_t* bytes) {
  return guarded([&] {
    if (pool == nullptr || pool->pool == nullptr) return no_pool(pool);
    const auto found = pool->pool->find(ptr);
    if (!found) return fail(found.error());
    if (start != nullptr) *start = found->start;
    if (bytes != nullptr) *bytes = found->bytes;
    return MILLPOND_OK;
  });
}

millpond_status millpond_trim(millpond_memory* pool, uint64_t keep_bytes, uint64_t* given_back) {
  return guarded([&] {
    if (pool == nullptr || pool->pool == nullptr) return no_pool(pool);
    const std::uint64_t given = pool->pool->trim(keep_bytes);
    if (given_back != nullptr) *given_back = given;
    return MILLPOND_OK;
  });
}

millpond_status millpond_set_limit(millpond_memory* pool, uint64_t limit_bytes) {
  return guarded([&] {
    if (pool == nullptr || pool->pool == nullptr) return no_pool(pool);
    pool->pool->set_limit_bytes(limit_bytes);
    return MILLPOND_OK;
  });
}

millpond_status millpond_get_statistics(const millpond_memory* memory, millpond_statistics* out) {
  return guarded([&] {
    if (memory == nullptr) return null_argument("the memory");
    if (out == nullptr) return null_argument("out");
    millpond_statistics all{};
    all.struct_bytes = out->struct_bytes;
    if (memory->pool != nullptr) {
      const pool_statistics now = memory->pool->statistics();
      all.live_bytes = now.live_bytes;
      all.live_blocks = now.live_blocks;
      all.peak_live_bytes = now.peak_out_bytes;
      all.reserved_bytes = now.reserved_bytes;
      all.peak_reserved_bytes = now.peak_reserved_bytes;
      all.mapped_bytes = now.mapped_bytes;
      all.cached_bytes = now.cached_bytes;
      all.pending_bytes = now.pending_bytes;
      all.idle_bytes = now.idle_bytes;
      all.capture_bytes = now.capture_bytes;
      all.metadata_bytes = now.metadata_bytes;
      all.allocations = now.allocations;
      all.deallocations = now.deallocations;
      all.out_of_memory = now.out_of_memory;
      all.growths = now.growths;
      all.stitches = now.stitches;
      all.seals = now.seals;
      all.host_waits = now.host_waits;
    } else if (const auto* const plain =
                   dynamic_cast<const tracked_resource*>(memory->resource.get())) {
      const resource_usage now = plain->usage();
      all.live_bytes = now.live_bytes;
      all.live_blocks = now.live_blocks;
      all.peak_live_bytes = now.peak_live_bytes;
      all.reserved_bytes = now.reserved_bytes;
      all.allocations = now.allocations;
      all.deallocations = now.deallocations;
      all.out_of_memory = now.failed_allocations;
    }
    all.deallocation_errors = memory->resource->deallocation_errors();
    std::memcpy(out, &all, std::min(out->struct_bytes, sizeof all));
    return MILLPOND_OK;
  });
}
