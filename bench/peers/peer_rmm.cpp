// RMM's pools, each over what its documentation recommends.
#include <cuda/stream_ref>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/binning_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include "bench/support/peer.h"

namespace {

constexpr std::size_t initial_pool = std::size_t{4} << 30;

struct pool {
  rmm::mr::cuda_memory_resource upstream;
  rmm::mr::pool_memory_resource of{upstream, initial_pool};
};
struct arena {
  rmm::mr::cuda_memory_resource upstream;
  rmm::mr::arena_memory_resource of{upstream};
};
struct async {
  rmm::mr::cuda_async_memory_resource of{std::nullopt, ~std::size_t{0}};
};
struct binning {
  pool under;
  rmm::mr::binning_memory_resource of{under.of, 9, 22};
};

template <class T>
void* create(const char** why) {
  try {
    return new T;
  } catch (const std::exception&) {
    *why = "RMM refused";
    return nullptr;
  }
}
template <class T>
void destroy(void* self) {
  delete static_cast<T*>(self);
}
template <class T>
void* allocate(void* self, uint64_t bytes, void* stream) {
  try {
    return static_cast<T*>(self)->of.allocate(cuda::stream_ref{static_cast<cudaStream_t>(stream)},
                                              bytes, 256);
  } catch (const std::exception&) {
    return nullptr;
  }
}
template <class T>
void deallocate(void* self, void* ptr, uint64_t bytes, void* stream) {
  static_cast<T*>(self)->of.deallocate(cuda::stream_ref{static_cast<cudaStream_t>(stream)}, ptr,
                                       bytes, 256);
}
uint64_t untold(void*) {
  return 0;
}
uint64_t pool_reserved(void* self) {
  return static_cast<pool*>(self)->of.pool_size();
}

const millpond_peer peers[] = {
    {"RMM async", create<async>, destroy<async>, allocate<async>, deallocate<async>, untold},
    {"RMM pool", create<pool>, destroy<pool>, allocate<pool>, deallocate<pool>, pool_reserved},
    {"RMM arena", create<arena>, destroy<arena>, allocate<arena>, deallocate<arena>, untold},
    {"RMM binning", create<binning>, destroy<binning>, allocate<binning>, deallocate<binning>,
     untold},
    {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr},
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const millpond_peer* millpond_peers(void) {
  return peers;
}
