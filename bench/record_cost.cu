// What a recorded call costs: pairs of cudaMallocAsync and cudaFreeAsync from a pool that keeps its
// memory, and launches of an empty kernel, in nanoseconds a call. Under `millpond record` (or
// bench/cupti/floor.cpp: CUPTI's part alone) the recording is paused and taken up again from burst
// to burst, in quads of which every second is mirrored: alone, recorded, recorded, alone. A quad's
// two halves meet the same clock and caches, so that what its halves differ by is the recording's.
// Launches come in bursts that fit into the stream's queue, and what waits for the device is not
// timed: a full queue would hide what the host does.
//   nvcc -O2 -arch=sm_90 bench/record_cost.cu -o record_cost -ldl && ./record_cost [DEPTH] [QUADS]
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
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

// A burst lasts about half a millisecond: long beside the clock, short beside what else happens on
// the machine.
constexpr int calls_a_burst = 500, calls_to_settle = 100;

// What pauses and resumes a recording; nothing where the program runs alone.
struct recording {
  void (*pause)() = nullptr;
  void (*resume)() = nullptr;
};
recording find_recording() {
  const char* library = std::getenv("CUDA_INJECTION64_PATH");
  void* there = library == nullptr ? nullptr : dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  if (there == nullptr) return {};
  return {reinterpret_cast<void (*)()>(dlsym(there, "millpond_record_pause")),
          reinterpret_cast<void (*)()>(dlsym(there, "millpond_record_resume"))};
}

struct quads {
  std::vector<double> alone, recorded, added;  // of each quad, ns a turn of the body
};

template <class Body>
double burst(void (*state)(), Body&& body) {
  if (state != nullptr) state();
  for (int n = 0; n < calls_to_settle; ++n) body();
  cudaDeviceSynchronize();
  const double begin = now_ns();
  for (int n = 0; n < calls_a_burst; ++n) body();
  const double spent = now_ns() - begin;
  cudaDeviceSynchronize();
  return spent / calls_a_burst;
}

// The body at the given depth of calls, so that call stacks have as many frames of the program's
// own.
template <class Body>
__attribute__((noinline)) quads at_depth(int depth, int count, const recording& by, Body&& body) {
  if (depth > 0) {
    quads made = at_depth(depth - 1, count, by, body);
    asm volatile("" ::: "memory");  // no tail call: the frame stays
    return made;
  }
  quads made;
  for (int quad = 0; quad < count; ++quad) {
    std::array<double, 2> spent{};  // alone, recorded
    const int first = quad % 2;
    for (const int which : {first, 1 - first, 1 - first, first}) {
      spent[which] += burst(which == 0 ? by.pause : by.resume, body) / 2;
    }
    made.alone.push_back(spent[0]);
    made.recorded.push_back(spent[1]);
    made.added.push_back(spent[1] - spent[0]);
  }
  if (by.resume != nullptr) by.resume();
  return made;
}

void print(const char* name, std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double part) {
    return share * values[static_cast<std::size_t>(part * static_cast<double>(values.size() - 1))];
  };
  std::printf("\"%s\": [%.1f, %.1f, %.1f, %.1f], ", name, at(0), at(0.25), at(0.5), at(0.75));
}
void print(const std::string& name, const quads& of, double share) {
  print((name + "_alone_ns").c_str(), of.alone, share);
  print((name + "_recorded_ns").c_str(), of.recorded, share);
  std::printf("\"%s_added_ns\": [", name.c_str());
  for (std::size_t n = 0; n < of.added.size(); ++n)
    std::printf("%s%.1f", n == 0 ? "" : ", ", share * of.added[n]);
  std::printf("], ");
}

// What a look at the clock costs, and at the processor's counter: a recorded call looks twice.
template <class Body>
double ns_each(Body&& look) {
  constexpr int looks = 100'000;
  const double begin = now_ns();
  for (int n = 0; n < looks; ++n) look();
  return (now_ns() - begin) / looks;
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
  const int depth = count > 1 ? std::atoi(arguments[1]) : 12,
            how_many = count > 2 ? std::atoi(arguments[2]) : 100;
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaMemPool_t pool;
  cudaDeviceGetDefaultMemPool(&pool, 0);
  unsigned long long keep = ~0ull;
  cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep);
  void *a = nullptr, *b = nullptr;
  cudaMalloc(&a, 1 << 20);
  cudaMalloc(&b, 1 << 20);
  const recording by = find_recording();
  const quads pair = at_depth(depth, how_many, by, [&] {
    void* block = nullptr;
    cudaMallocAsync(&block, 65536, stream);
    cudaFreeAsync(block, stream);
  });
  const quads launch = at_depth(depth, how_many, by, [&] {
    nothing<<<1, 32, 0, stream>>>(static_cast<float*>(a), static_cast<const float*>(b), 1);
  });
  cudaDeviceSynchronize();
  std::printf("{\"depth\": %d, \"quads\": %d, \"can_pause\": %s, ", depth, how_many,
              by.pause == nullptr ? "false" : "true");
  print("call", pair, 0.5);  // a pair is two calls
  print("launch", launch, 1);
  const double clock = ns_each([] { now_ns(); });
#if defined(__x86_64__)
  const double counter = ns_each([] { __builtin_ia32_rdtsc(); });
#else
  const double counter = 0;
#endif
  std::printf("\"clock_ns\": %.1f, \"counter_ns\": %.1f, \"resident_kib\": %ld}\n", clock, counter,
              resident_kib());
  return 0;
}
