// What programs lean on in CUDA's memory, on a card: kernels write and check blocks of every kind
// on several threads and streams. Prints the same lines with and without `millpond run`; lines that
// begin with # may differ.
//     nvcc -cudart shared card_program.cu -o card_program && ./card_program
#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

__global__ void fill(unsigned* words, size_t count, unsigned mark) {
  for (size_t n = blockIdx.x * blockDim.x + threadIdx.x; n < count;
       n += size_t{gridDim.x} * blockDim.x)
    words[n] = mark;
}
__global__ void verify(const unsigned* words, size_t count, unsigned mark, unsigned* wrong) {
  for (size_t n = blockIdx.x * blockDim.x + threadIdx.x; n < count;
       n += size_t{gridDim.x} * blockDim.x) {
    if (words[n] != mark) atomicAdd(wrong, 1u);
  }
}

static void say(const char* what, long answer) {
  std::printf("%s: %ld\n", what, answer);
}

// Blocks written on one stream and checked there at the end, freed in the way that `how` says.
// Answers wrong words.
static long churn(unsigned seed, int how) {
  cudaStream_t stream;
  unsigned* wrong;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaMallocHost(&wrong, sizeof *wrong);
  *wrong = 0;
  std::vector<std::pair<unsigned*, size_t>> live;
  unsigned random = seed * 2654435761u + 1;
  const auto next = [&] { return random = random * 1664525u + 1013904223u, random >> 8; };
  for (int step = 0; step < 400; ++step) {
    if (live.size() < 8 || (live.size() < 24 && next() % 2)) {
      const size_t count = 64 + next() % (1u << (10 + next() % 9));
      unsigned* block = nullptr;
      const cudaError_t got = how == 0   ? cudaMalloc(&block, count * 4)
                              : how == 1 ? cudaMallocAsync(&block, count * 4, stream)
                              : how == 2 ? cudaMallocManaged(&block, count * 4)
                                         : cudaHostAlloc(&block, count * 4, cudaHostAllocDefault);
      if (got != cudaSuccess) return -1;
      fill<<<32, 256, 0, stream>>>(block, count, static_cast<unsigned>(count));
      live.push_back({block, count});
    } else {
      std::swap(live[next() % live.size()], live.back());
      const auto [block, count] = live.back();
      live.pop_back();
      verify<<<32, 256, 0, stream>>>(block, count, static_cast<unsigned>(count), wrong);
      // cudaFree waits for the verify by itself, as programs expect.
      const cudaError_t freed = how == 1   ? cudaFreeAsync(block, stream)
                                : how == 3 ? cudaFreeHost(block)
                                           : cudaFree(block);
      if (freed != cudaSuccess) return -2;
    }
  }
  cudaStreamSynchronize(stream);
  const long out = *wrong;
  for (auto [block, count] : live) how == 3 ? cudaFreeHost(block) : cudaFree(block);
  cudaFreeHost(wrong);
  cudaStreamDestroy(stream);
  return out;
}

int main() {
  void *p = nullptr, *q = nullptr;
  int mine = 0;
  say("nothing", cudaMalloc(&p, 0));
  say("is null", p == nullptr);
  say("free nothing", cudaFree(nullptr));
  say("too much", cudaMalloc(&p, size_t{1} << 50));
  say("last error", cudaGetLastError());
  say("cleared", cudaGetLastError());
  say("a MiB", cudaMalloc(&p, 1 << 20));
  cudaPointerAttributes facts;
  say("attributes", cudaPointerGetAttributes(&facts, p));
  say("type", facts.type);
  say("device", facts.device);
  say("its address", facts.devicePointer == p);
  say("no host address", facts.hostPointer == nullptr);
  say("free", cudaFree(p));
  say("twice", cudaFree(p));
  say("last error", cudaGetLastError());
  say("not ours", cudaFree(&mine));
  say("last error", cudaGetLastError());
  say("pinned", cudaHostAlloc(&p, 12345, cudaHostAllocDefault));
  say("attributes", cudaPointerGetAttributes(&facts, p));
  say("type", facts.type);
  say("host address", facts.hostPointer == p);
  say("device address", cudaHostGetDevicePointer(&q, p, 0));
  say("the same", q == p);
  say("free pinned", cudaFreeHost(p));
  say("managed", cudaMallocManaged(&p, 1 << 20));
  say("attributes", cudaPointerGetAttributes(&facts, p));
  say("type", facts.type);
  static_cast<unsigned*>(p)[100] = 7;
  fill<<<1, 32>>>(static_cast<unsigned*>(p), 50, 9);
  say("synchronise", cudaDeviceSynchronize());
  say("by the GPU", static_cast<unsigned*>(p)[49]);
  say("by the CPU", static_cast<unsigned*>(p)[100]);
  say("free managed", cudaFree(p));

  for (int how = 0; how < 4; ++how) {
    std::vector<std::thread> threads;
    std::vector<long> answers(4, -9);
    for (unsigned t = 0; t < 4; ++t)
      threads.emplace_back([&, t] { answers[t] = churn(t + 1, how); });
    for (auto& t : threads) t.join();
    for (const long a : answers) say("wrong words", a);
  }

  size_t free_before = 0, free_after = 0, total = 0;
  say("how much", cudaMemGetInfo(&free_before, &total));
  std::vector<void*> blocks(10);
  for (void*& b : blocks) cudaMalloc(&b, 64 << 20);
  cudaMemGetInfo(&free_after, &total);
  const double taken = static_cast<double>(free_before) - static_cast<double>(free_after);
  say("640 MiB show", taken > 600.0 * (1 << 20) && taken < 760.0 * (1 << 20));
  for (void* b : blocks) cudaFree(b);
  cudaMemGetInfo(&free_after, &total);
  say("and come back",
      static_cast<double>(free_before) - static_cast<double>(free_after) < 100.0 * (1 << 20));

  // A capture that allocates: nodes of the graph.
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  say("capture", cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  say("allocate in it", cudaMallocAsync(&p, 1 << 20, stream));
  fill<<<1, 32, 0, stream>>>(static_cast<unsigned*>(p), 100, 1);
  say("free in it", cudaFreeAsync(p, stream));
  say("end", cudaStreamEndCapture(stream, &graph));
  say("instantiate", cudaGraphInstantiate(&exec, graph, 0));
  say("launch", cudaGraphLaunch(exec, stream));
  say("synchronise", cudaStreamSynchronize(stream));

  cudaIpcMemHandle_t handle;
  cudaMalloc(&p, 4 << 20);
  std::printf("# a handle for others: %d\n", cudaIpcGetMemHandle(&handle, p));
  cudaFree(p);
  cudaGetLastError();

  const auto start = std::chrono::steady_clock::now();
  for (int n = 0; n < 2000; ++n) {
    cudaMalloc(&p, 1000 + (n % 50) * 30000);
    cudaFree(p);
  }
  std::printf(
      "# a pair: %.2f us\n",
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() * 1e6 / 2000);
  say("reset", cudaDeviceReset());
  say("after the reset", cudaMalloc(&p, 1 << 20));
  say("no error", cudaGetLastError());
  return 0;
}
