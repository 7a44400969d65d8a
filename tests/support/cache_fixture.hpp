// A pool whose blocks are taken and given by lane handles, with the checker told of each as in
// pool_fixture.hpp.
#pragma once
#include "support/pool_fixture.hpp"

namespace millpond {

class lane_test : public pool_test {
 protected:
  void* take_from(pool::lane_handle& lane, std::uint64_t bytes) {
    void* const out = [&] {
      const simulated_gpu::library_scope library;
      const handle_watch::serving call(lane.stream());
      return lane.allocate(bytes);
    }();
    gpu->note_allocate(reinterpret_cast<device_address>(out), bytes, lane.stream(), "lane");
    return out;
  }
  void give_to(pool::lane_handle& lane, void* ptr, std::uint64_t bytes) {
    gpu->note_free(reinterpret_cast<device_address>(ptr), bytes, lane.stream(), "lane");
    free_by(lane, ptr, bytes);
  }
  // The checker is told nothing: a free that the pool is to refuse.
  void free_by(pool::lane_handle& lane, void* ptr, std::uint64_t bytes) {
    const simulated_gpu::library_scope library;
    const handle_watch::serving call(lane.stream());
    lane.deallocate(ptr, bytes);
  }
  // So many blocks handed from one lane to the other.
  void hand_over(pool::lane_handle& from, pool::lane_handle& to, std::uint64_t bytes, int times) {
    for (int i = 0; i < times; ++i) give_to(to, take_from(from, bytes), bytes);
  }
};

}  // namespace millpond
