// Lanes, and the memory of captured graphs, through the C ABI.
#include "bindings/c_abi_objects.hpp"

using namespace millpond;
using namespace millpond::c_abi;

namespace {

// The two sorts of lanes have the same calls.
template <class Lane>
millpond_status allocate_from(Lane* lane, uint64_t bytes, void** ptr) {
  return guarded([&] {
    if (lane == nullptr) return null_argument("the lane");
    if (ptr == nullptr) return null_argument("ptr");
    *ptr = nullptr;
    *ptr = lane->lane.allocate(bytes);
    return MILLPOND_OK;
  });
}
template <class Lane>
millpond_status deallocate_to(Lane* lane, void* ptr, uint64_t bytes) {
  return guarded([&] {
    if (lane == nullptr) return null_argument("the lane");
    const auto freed = lane->lane.try_deallocate(ptr, bytes);
    return freed ? MILLPOND_OK : fail(freed.error());
  });
}

}  // namespace

millpond_status millpond_lane_create(millpond_memory* pool, millpond_stream stream,
                                     millpond_lane** lane) {
  return guarded([&] {
    if (lane == nullptr) return null_argument("lane");
    *lane = nullptr;
    if (pool == nullptr || pool->pool == nullptr) return no_pool(pool);
    *lane = new millpond_lane{pool->pool->lane(stream)};
    return MILLPOND_OK;
  });
}
millpond_status millpond_lane_allocate(millpond_lane* lane, uint64_t bytes, void** ptr) {
  return allocate_from(lane, bytes, ptr);
}
millpond_status millpond_lane_deallocate(millpond_lane* lane, void* ptr, uint64_t bytes) {
  return deallocate_to(lane, ptr, bytes);
}
void millpond_lane_destroy(millpond_lane* lane) {
  delete lane;
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

millpond_status millpond_capture_lane_create(millpond_memory* pool, millpond_stream stream,
                                             millpond_capture_lane** lane) {
  return guarded([&] {
    if (lane == nullptr) return null_argument("lane");
    *lane = nullptr;
    if (pool == nullptr || pool->pool == nullptr) return no_pool(pool);
    *lane = new millpond_capture_lane{pool->pool->capture_lane(stream)};
    return MILLPOND_OK;
  });
}
millpond_status millpond_capture_lane_allocate(millpond_capture_lane* lane, uint64_t bytes,
                                               void** ptr) {
  return allocate_from(lane, bytes, ptr);
}
millpond_status millpond_capture_lane_deallocate(millpond_capture_lane* lane, void* ptr,
                                                 uint64_t bytes) {
  return deallocate_to(lane, ptr, bytes);
}
void millpond_capture_lane_destroy(millpond_capture_lane* lane) {
  delete lane;
}
