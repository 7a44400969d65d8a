// Caches, and the memory of captured graphs, through the C ABI.
#include "bindings/c_abi_objects.hpp"

using namespace millpond;
using namespace millpond::c_abi;

namespace {

// The two sorts of caches have the same calls. `make` answers the C++ handle of a pool.
template <class Cache, class Make>
millpond_status create(millpond_memory* pool, Cache** cache, Make&& make) {
  return guarded([&] {
    if (cache == nullptr) return null_argument("cache");
    *cache = nullptr;
    if (pool == nullptr || pool->pool == nullptr) return no_pool(pool);
    *cache = new Cache{make(*pool->pool)};
    return MILLPOND_OK;
  });
}
template <class Cache>
millpond_status allocate_from(Cache* cache, uint64_t bytes, void** ptr) {
  return guarded([&] {
    if (cache == nullptr) return null_argument("the cache");
    if (ptr == nullptr) return null_argument("ptr");
    *ptr = nullptr;
    *ptr = cache->cache.allocate(bytes);
    return MILLPOND_OK;
  });
}
template <class Cache>
millpond_status deallocate_to(Cache* cache, void* ptr, uint64_t bytes) {
  return guarded([&] {
    if (cache == nullptr) return null_argument("the cache");
    const auto freed = cache->cache.try_deallocate(ptr, bytes);
    return freed ? MILLPOND_OK : fail(freed.error());
  });
}

}  // namespace

millpond_status millpond_cache_create(millpond_memory* pool, millpond_stream stream,
                                      millpond_cache** cache) {
  return create(pool, cache, [&](millpond::pool& of) { return of.cache(stream); });
}
millpond_status millpond_cache_allocate(millpond_cache* cache, uint64_t bytes, void** ptr) {
  return allocate_from(cache, bytes, ptr);
}
millpond_status millpond_cache_deallocate(millpond_cache* cache, void* ptr, uint64_t bytes) {
  return deallocate_to(cache, ptr, bytes);
}
void millpond_cache_destroy(millpond_cache* cache) {
  delete cache;
}

millpond_status millpond_graph_arena_create(millpond_memory* pool, millpond_graph_arena** arena) {
  return guarded([&] {
    if (arena == nullptr) return null_argument("arena");
    *arena = nullptr;
    if (pool == nullptr || pool->pool == nullptr) return no_pool(pool);
    *arena = new millpond_graph_arena{pool->pool->make_graph_arena()};
    return MILLPOND_OK;
  });
}
void millpond_graph_arena_destroy(millpond_graph_arena* arena) {
  delete arena;
}

millpond_status millpond_capture_into(millpond_memory* pool, const millpond_graph_arena* arena,
                                      millpond_stream stream) {
  return guarded([&] {
    if (pool == nullptr || pool->pool == nullptr) return no_pool(pool);
    if (arena == nullptr) return null_argument("the arena");
    const auto attached = pool->pool->capture_into(arena->arena, stream);
    return attached ? MILLPOND_OK : fail(attached.error());
  });
}

millpond_status millpond_capture_cache_create(millpond_memory* pool, millpond_stream stream,
                                              millpond_capture_cache** cache) {
  return create(pool, cache, [&](millpond::pool& of) { return of.capture_cache(stream); });
}
millpond_status millpond_capture_cache_allocate(millpond_capture_cache* cache, uint64_t bytes,
                                                void** ptr) {
  return allocate_from(cache, bytes, ptr);
}
millpond_status millpond_capture_cache_deallocate(millpond_capture_cache* cache, void* ptr,
                                                  uint64_t bytes) {
  return deallocate_to(cache, ptr, bytes);
}
void millpond_capture_cache_destroy(millpond_capture_cache* cache) {
  delete cache;
}
