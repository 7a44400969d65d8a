// What the programs of this folder have in common. Each is a small CUDA program with one planted
// fault; built with -DCLEAN it is its near miss, which does almost the same and is right. The same
// sources build with nvcc for a card, and over shim/ for the simulated GPU.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <vector>

constexpr std::size_t KiB = std::size_t{1} << 10;
constexpr std::size_t MiB = std::size_t{1} << 20;

#if defined(MILLPOND_SHIM)
using namespace shim;
#define PROGRAM MILLPOND_SHIM_PROGRAM
#define LAUNCH(kernel, stream, ...) shim_launch(kernel, #kernel, stream, __VA_ARGS__)
#define CPU_WRITE(pointer, bytes, value) shim_cpu_touch(pointer, bytes)
#else
#define PROGRAM int main()
#define LAUNCH(kernel, stream, ...) kernel<<<64, 256, 0, stream>>>(__VA_ARGS__)
#define CPU_WRITE(pointer, bytes, value) \
  cpu_write(reinterpret_cast<volatile char*>(pointer), bytes, value)
// One byte a page: what moves a page is the first touch.
inline void cpu_write(volatile char* to, std::size_t bytes, char value) {
  for (std::size_t at = 0; at < bytes; at += 4096) to[at] = value;
}
#endif

namespace {

// For calls that must succeed.
[[maybe_unused]] void must(cudaError_t answer) {
  if (answer == cudaSuccess) return;
  std::fprintf(stderr, "unexpected: %s\n", cudaGetErrorString(answer));
  std::exit(99);
}
// For the planted calls, which may be refused: the program goes on.
[[maybe_unused]] void may(cudaError_t) {
  (void)cudaGetLastError();
}

// Writes `count` floats.
__global__ void fill(float* to, int count, float value) {
  for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += gridDim.x * blockDim.x)
    to[at] = value;
}
// Reads one block and writes another.
[[maybe_unused]] __global__ void add(float* to, const float* from, int count) {
  for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += gridDim.x * blockDim.x)
    to[at] += from[at];
}
// Takes its time, in clock cycles of the GPU, and writes a little.
[[maybe_unused]] __global__ void linger(float* to, long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
  if (threadIdx.x == 0) to[blockIdx.x] = static_cast<float>(cycles);
}
// Finds the blocks that it writes in a table on the device.
[[maybe_unused]] __global__ void fill_all(float* const* table, int blocks, int count) {
  for (int block = 0; block < blocks; ++block) {
    for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += gridDim.x * blockDim.x)
      table[block][at] = 1;
  }
}

// Work that uses one block again and again.
[[maybe_unused]] void phase(float* block, std::size_t bytes, int kernels, cudaStream_t stream) {
  for (int n = 0; n < kernels; ++n)
    LAUNCH(fill, stream, block, static_cast<int>(bytes / sizeof(float)), 1.0f);
}
[[maybe_unused]] float* on_device(std::size_t bytes) {
  float* made = nullptr;
  must(cudaMalloc(&made, bytes));
  return made;
}
[[maybe_unused]] cudaStream_t new_stream() {
  cudaStream_t made;
  must(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
  return made;
}
[[maybe_unused]] cudaEvent_t new_event() {
  cudaEvent_t made;
  must(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
  return made;
}
// From now on the default pool keeps its memory.
[[maybe_unused]] void keep_pool() {
  cudaMemPool_t pool;
  must(cudaDeviceGetDefaultMemPool(&pool, 0));
  unsigned long long keep = ~0ull;
  must(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
}
[[maybe_unused]] constexpr int count_of(std::size_t bytes) {
  return static_cast<int>(bytes / sizeof(float));
}
[[maybe_unused]] constexpr long long short_while = 200'000, long_while = 20'000'000;

}  // namespace
