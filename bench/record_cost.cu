// What a recorded call costs: pairs of cudaMallocAsync and cudaFreeAsync from a pool that keeps its memory, and launches of
// an empty kernel, in nanoseconds a call. Run it alone and under `millpond record`; the difference is the recorder's and
// CUPTI's; under bench/cupti/floor.cpp it is CUPTI's alone. Launches come in bursts that fit into the stream's queue, and what
// waits for the device is not timed: a full queue would hide what the host does.
//   nvcc -O2 -arch=sm_90 bench/record_cost.cu -o record_cost && ./record_cost [DEPTH]
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace {

__global__ void nothing(float* to, const float* from, int count) {
  if (count < 0) to[0] = from[0];
}

double now_ns() {
  return static_cast<double>(std::chrono::steady_clock::now().time_since_epoch().count());
}

constexpr int rounds = 20, bursts = 10, calls_a_burst = 500;

// The body at the given depth of calls, so that call stacks have as many frames of the program's own.
template <class Body>
__attribute__((noinline)) double at_depth(int depth, Body&& body) {
  if (depth > 0) {
    const double made = at_depth(depth - 1, body);
    asm volatile("" ::: "memory");   // no tail call: the frame stays
    return made;
  }
  std::vector<double> each;
  for (int round = 0; round < rounds; ++round) {
    double spent = 0;
    for (int burst = 0; burst < bursts; ++burst) {
      const double begin = now_ns();
      for (int n = 0; n < calls_a_burst; ++n) body();
      spent += now_ns() - begin;
      cudaDeviceSynchronize();
    }
    each.push_back(spent / (bursts * calls_a_burst));
  }
  std::sort(each.begin(), each.end());
  return each[each.size() / 2];
}

long resident_kib() {
  std::ifstream file("/proc/self/status");
  std::string word;
  while (file >> word) {
    long value = 0;
    if (word == "VmRSS:" && file >> value) return value;
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  const int depth = count > 1 ? std::atoi(arguments[1]) : 12;
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaMemPool_t pool;
  cudaDeviceGetDefaultMemPool(&pool, 0);
  unsigned long long keep = ~0ull;
  cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep);
  void *a = nullptr, *b = nullptr;
  cudaMalloc(&a, 1 << 20);
  cudaMalloc(&b, 1 << 20);
  const double pair = at_depth(depth, [&] {
    void* block = nullptr;
    cudaMallocAsync(&block, 65536, stream);
    cudaFreeAsync(block, stream);
  });
  const double launch = at_depth(depth, [&] {
    nothing<<<1, 32, 0, stream>>>(static_cast<float*>(a), static_cast<const float*>(b), 1);
  });
  cudaDeviceSynchronize();
  std::printf("{\"depth\": %d, \"allocate_free_pair_ns\": %.1f, \"launch_ns\": %.1f, \"resident_kib\": %ld}\n", depth, pair, launch,
              resident_kib());
  return 0;
}
