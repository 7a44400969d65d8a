// Thrust's containers and scratch memory over millpond. On the CPU system of Thrust, so that it
// runs without a card; the types are the same as on the GPU.
#include <thrust/device_vector.h>
#include <thrust/scan.h>
#include <thrust/sort.h>
#include <thrust/system/cpp/execution_policy.h>

#include <cstdio>

#include "millpond/bindings/thrust.hpp"
#include "millpond/pool/pool.hpp"
#include "millpond/sim/simulated_gpu.hpp"

int main() {
  const auto gpu = millpond::simulated_gpu::create().value();
  millpond::pool_options options;
  options.kind = millpond::memory_kind::pinned;
  const auto pool = millpond::pool::create(gpu, options).value();
  bool right = true;
  {
    using memory = millpond::thrust_allocator<int>;
    thrust::device_vector<int, memory> x(1000, memory(*pool));
    for (int n = 0; n < 1000; ++n) x[static_cast<std::size_t>(n)] = (n * 37) % 1000;
    thrust::sort(x.begin(), x.end());
    for (int n = 0; n < 1000; ++n) right = right && x[static_cast<std::size_t>(n)] == n;
    thrust::device_vector<int, memory> y(x);
    y.resize(5000, 7);
    right = right && y[4999] == 7 && y[10] == 10 && pool->statistics().live_blocks == 2;
    millpond::thrust_scratch scratch(*pool);
    thrust::stable_sort(thrust::cpp::par(scratch), y.begin(), y.end());
    char* const raw = scratch.allocate(100);
    right = right && raw != nullptr;
    scratch.deallocate(raw, 100);
  }
  right = right && pool->statistics().live_bytes == 0 && pool->deallocation_errors() == 0;
  std::printf("Thrust over millpond: %s\n", right ? "as it should be" : "FAILED");
  return right ? 0 : 1;
}
