// RMM takes the pool as its resource: compiled where RMM's headers are (cmake option
// MILLPOND_RMM_DIR), with the CCCL that they bring. Runs without a card as far as that goes:
// containers of no elements, and the type-erased references.
#include "millpond/bindings/cuda_mr.hpp"

#include <rmm/cuda_stream_view.hpp>
#include <rmm/resource_ref.hpp>

#include <cstdio>

#include "millpond/pool/pool.hpp"
#include "millpond/sim/simulated_gpu.hpp"

static_assert(
    std::is_constructible_v<rmm::device_async_resource_ref, millpond::cuda_device_resource&>);
static_assert(std::is_constructible_v<rmm::device_resource_ref, millpond::cuda_device_resource&>);
static_assert(std::is_constructible_v<rmm::host_device_async_resource_ref,
                                      millpond::cuda_host_device_resource&>);
static_assert(
    !std::is_constructible_v<rmm::host_async_resource_ref, millpond::cuda_device_resource&>);

int main() {
  const auto gpu = millpond::simulated_gpu::create().value();
  const auto pool = millpond::pool::create(gpu).value();
  millpond::cuda_device_resource resource(*pool);
  rmm::device_async_resource_ref memory(resource);
  void* const ptr = memory.allocate(cuda::stream_ref{cudaStream_t{nullptr}}, 1000, 256);
  const bool given = ptr != nullptr && pool->statistics().live_bytes == 1000;
  memory.deallocate(cuda::stream_ref{cudaStream_t{nullptr}}, ptr, 1000, 256);
  const bool back = pool->statistics().live_bytes == 0;
  std::printf("RMM's reference over the pool: %s\n", given && back ? "as it should be" : "FAILED");
  return given && back ? 0 : 1;
}
