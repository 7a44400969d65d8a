// The names under which a profile has what millpond's own paths cost. A name that a reader and the
// profile do not share would cost nothing, silently.
#pragma once

namespace millpond::sim::allocator_path {

inline constexpr const char* thread_cache_hit = "thread_cache_hit";
inline constexpr const char* stream_cache_hit = "stream_cache_hit";
inline constexpr const char* heap_hit = "heap_hit";
inline constexpr const char* growth = "growth";
inline constexpr const char* move = "move";
inline constexpr const char* deallocation = "deallocation";
inline constexpr const char* seal = "seal";
// The simulated driver's own questions have a price already; a profile may add to it.
inline constexpr const char* fence_query = "fence_query";
inline constexpr const char* fixed_arena_allocate = "fixed_arena_allocate";
inline constexpr const char* fixed_arena_allocate_doubling = "fixed_arena_allocate_doubling";
inline constexpr const char* fixed_arena_free = "fixed_arena_free";
inline constexpr const char* fixed_arena_free_doubling = "fixed_arena_free_doubling";

}  // namespace millpond::sim::allocator_path
