// Thrust's vectors and the scratch memory of its algorithms from millpond's pool. Built where nvcc
// is, and needs a card.
#include <millpond/bindings/thrust.hpp>
#include <millpond/pool/pool.hpp>

#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>

#include <cstdio>

int main() {
  const auto card = millpond::open_cuda_driver(0);
  if (!card) {
    std::printf("needs a card: %s\n", card.error().message.c_str());
    return 77;
  }
  const auto pool = millpond::pool::create(*card).value();
  millpond::stream_handle stream = nullptr;
  if (!(*card)->bind_thread().ok() || !(*card)->stream_create(&stream).ok()) return 4;
  cudaStream_t const as_cuda_sees_it = reinterpret_cast<cudaStream_t>(stream);
  constexpr int count = 1 << 20;
  long long sum = 0;
  bool in_order = true;
  {
    // device_vector fills its elements on the default stream, so that its memory is of the default
    // stream too.
    using memory = millpond::thrust_allocator<int>;
    thrust::device_vector<int, memory> x(count, memory(*pool));
    cudaStreamSynchronize(nullptr);
    millpond::thrust_scratch scratch(*pool, stream);
    const auto policy = thrust::cuda::par(scratch).on(as_cuda_sees_it);
    for (int round = 0; round < 20; ++round) {
      thrust::sequence(policy, x.begin(), x.end(), count - 1, -1);
      thrust::sort(policy, x.begin(), x.end());
    }
    sum = thrust::reduce(policy, x.begin(), x.end(), 0LL);
    in_order = thrust::is_sorted(policy, x.begin(), x.end());
    cudaStreamSynchronize(as_cuda_sees_it);
  }
  const millpond::pool_statistics now = pool->statistics();
  std::printf(
      "%s: sum %lld, %s; %llu allocations by Thrust, %llu of them without a lock, %llu pieces of "
      "memory from the driver\n",
      (*card)->info().name.c_str(), sum, in_order ? "in order" : "NOT IN ORDER",
      static_cast<unsigned long long>(now.allocations),
      static_cast<unsigned long long>(now.thread_cache_hits),
      static_cast<unsigned long long>(now.growths));
  const bool right =
      sum == static_cast<long long>(count) * (count - 1) / 2 && in_order && now.live_bytes == 0;
  return (*card)->stream_destroy(stream).ok() && right ? 0 : 1;
}
