// Kernels that touch memory in the page machine's patterns (src/driver/sim/pages/pattern.hpp).
#include <cstdint>

// Reads and writes every word, in order over the whole grid.
extern "C" __global__ void touch_stream(uint4* words, uint64_t count) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    uint4 w = words[i];
    w.x += 1;
    words[i] = w;
  }
}
// The same by a thread for each four bytes and no loop, as most first kernels are written.
extern "C" __global__ void touch_each(uint32_t* words, uint64_t count) {
  const uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) words[i] += 1;
}
extern "C" __global__ void touch_write(uint4* words, uint64_t count) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    words[i] = uint4{1, 2, 3, 4};
}
extern "C" __global__ void touch_read(const uint4* words, uint64_t count, uint32_t* sink) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  uint32_t sum = 0;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint4 w = words[i];
    sum += w.x ^ w.y ^ w.z ^ w.w;
  }
  if (sum == 0x9e3779b9u) *sink = sum;  // so that the reads are not for nothing
}
// Each thread block works through its own part.
extern "C" __global__ void touch_blocked(uint4* words, uint64_t count) {
  const uint64_t part = (count + gridDim.x - 1) / gridDim.x;
  const uint64_t begin = part * blockIdx.x;
  const uint64_t end = begin + part < count ? begin + part : count;
  for (uint64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    uint4 w = words[i];
    w.x += 1;
    words[i] = w;
  }
}
// One byte in each stride, a thread each.
extern "C" __global__ void touch_stride(unsigned char* bytes, uint64_t stride, uint64_t count) {
  const uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) bytes[i * stride] += 1;
}
// One byte in a page chosen by a hash of the thread's number.
extern "C" __global__ void touch_random(unsigned char* bytes, uint64_t pages, uint64_t count) {
  const uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  uint64_t z = i * 0x9e3779b97f4a7c15ull + 0x632be59bd9b4e019ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  bytes[z % pages * 4096] += 1;
}
