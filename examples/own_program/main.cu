// The pool in a CUDA program: blocks on a stream, with no wait for the device. The same loop with
// cudaMalloc and cudaFree follows, for what it costs.
#include <millpond/pool/pool.hpp>

#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>

__global__ void fill(float* to, int count, float value) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < count) to[at] = value;
}

int main() {
  cudaSetDevice(0);
  auto gpu = millpond::open_cuda_driver(0);
  if (!gpu) return std::fprintf(stderr, "%s\n", gpu.error().message.c_str()), 1;
  auto pool = millpond::pool::create(*gpu);
  if (!pool) return std::fprintf(stderr, "%s\n", pool.error().message.c_str()), 1;

  cudaStream_t stream;
  cudaStreamCreate(&stream);
  const auto loop = [&](auto&& allocate, auto&& give_back) {
    const auto begin = std::chrono::steady_clock::now();
    for (int round = 0; round < 2000; ++round) {
      const int count = 1000 * (round % 50 + 1);
      float* block = allocate(count * sizeof(float));
      fill<<<(count + 255) / 256, 256, 0, stream>>>(block, count, 1.0f);
      give_back(block, count * sizeof(float));
    }
    cudaStreamSynchronize(stream);
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
               .count() /
           2000;
  };

  const double by_pool =
      loop([&](size_t bytes) { return static_cast<float*>((*pool)->allocate(bytes, stream)); },
           [&](float* block, size_t bytes) { (*pool)->deallocate(block, bytes, stream); });
  const double by_cuda = loop(
      [](size_t bytes) {
        float* block;
        cudaMalloc(&block, bytes);
        return block;
      },
      [](float* block, size_t) { cudaFree(block); });
  std::printf("a round with the pool %.1f us, with cudaMalloc and cudaFree %.1f us; %s\n", by_pool,
              by_cuda, cudaGetErrorString(cudaGetLastError()));
  cudaStreamDestroy(stream);
}
