// A pool whose blocks are taken and given by cache handles, with the checker informed of each as in
// pool_fixture.hpp.
#pragma once
#include "support/pool_fixture.hpp"

namespace millpond {

class cache_test : public pool_test {
 protected:
  void* take_from(pool::cache_handle& cache, std::uint64_t bytes) {
    void* const out = [&] {
      const simulated_gpu::library_scope library;
      const handle_watch::serving call(cache.stream());
      return cache.allocate(bytes);
    }();
    gpu->note_allocate(reinterpret_cast<device_address>(out), bytes, cache.stream(), "cache");
    return out;
  }
  void give_to(pool::cache_handle& cache, void* ptr, std::uint64_t bytes) {
    gpu->note_free(reinterpret_cast<device_address>(ptr), bytes, cache.stream(), "cache");
    free_by(cache, ptr, bytes);
  }
  // The checker sees nothing: a free that the pool is to refuse.
  void free_by(pool::cache_handle& cache, void* ptr, std::uint64_t bytes) {
    const simulated_gpu::library_scope library;
    const handle_watch::serving call(cache.stream());
    cache.deallocate(ptr, bytes);
  }
  // So many blocks handed from one cache to the other.
  void hand_over(pool::cache_handle& from, pool::cache_handle& to, std::uint64_t bytes, int times) {
    for (int i = 0; i < times; ++i) give_to(to, take_from(from, bytes), bytes);
  }
};

}  // namespace millpond
