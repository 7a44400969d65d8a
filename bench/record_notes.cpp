// What the recorder's own part of a recorded call costs, without CUPTI and the driver: both
// callbacks of a pair of cudaMallocAsync and cudaFreeAsync, and of a launch with 4 pointers and
// with a structure of 512 bytes, in nanoseconds a call, with the thread in the background at work;
// and what a call stack costs, remembered and not. Prints one JSON document; the trace goes to a
// file that is removed.
//   bench/record_notes [CALLS]
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#if __has_include(<cupti.h>) && __has_include(<cuda.h>)
#include "bench/support/measure.hpp"
#include "bench/support/result_file.hpp"
#include "record/recorder.hpp"
#include "record/translate.hpp"

namespace {

using namespace millpond;

double now_ns() {
  return static_cast<double>(bench::now_ns());
}

// The layout of the kernel with 4 pointers, and of that with one structure.
CUresult parameters_of(CUfunction function, size_t index, size_t* offset, size_t* bytes) {
  const bool structure = function == reinterpret_cast<CUfunction>(2);
  if (index >= (structure ? 1u : 4u)) return CUDA_ERROR_INVALID_VALUE;
  *offset = index * 8;
  *bytes = structure ? 512 : 8;
  return CUDA_SUCCESS;
}
CUresult pool_of(CUmemoryPool* pool, CUdevice) {
  *pool = reinterpret_cast<CUmemoryPool>(0x5000);
  return CUDA_SUCCESS;
}
CUresult device_of(CUdevice* device) {
  *device = 0;
  return CUDA_SUCCESS;
}

struct caller {
  record::translator& to;
  CUpti_CallbackData data{};
  CUresult answer = CUDA_SUCCESS;
  template <class Parameters>
  void operator()(CUpti_CallbackId id, const char* name, Parameters& with,
                  const char* symbol = nullptr) {
    data.context = reinterpret_cast<CUcontext>(0x1000);
    data.functionName = name;
    data.symbolName = symbol;
    data.functionParams = &with;
    data.functionReturnValue = &answer;
    data.callbackSite = CUPTI_API_ENTER;
    to.driver_call(id, data);
    data.callbackSite = CUPTI_API_EXIT;
    to.driver_call(id, data);
  }
};

// The median of rounds, each after a pause that lets the background thread empty the ring.
template <class Body>
double median_ns(std::size_t calls, Body&& body) {
  std::vector<double> each;
  for (int round = 0; round < 15; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const double begin = now_ns();
    for (std::size_t n = 0; n < calls; ++n) body(n);
    each.push_back((now_ns() - begin) / static_cast<double>(calls));
  }
  std::ranges::sort(each);
  return each[each.size() / 2];
}

// A call stack at the given depth, from a frame of `room` bytes: another stack pointer for another
// room.
__attribute__((noinline)) std::uint32_t capture_at(record::stack_store& store, int depth,
                                                   std::size_t room) {
  volatile char* moved = static_cast<volatile char*>(__builtin_alloca(room));
  moved[0] = 0;
  const std::uint32_t made = depth == 0 ? store.capture(40) : capture_at(store, depth - 1, 16);
  moved[room - 1] = 0;
  return made;
}
double stack_ns(record::stack_store::unwinding how, int depth, std::size_t step,
                std::size_t calls) {
  record::stack_store store(how);
  return median_ns(calls, [&](std::size_t n) { capture_at(store, depth, 16 + n * step % 65536); });
}

}  // namespace

int main(int count, char** arguments) {
  const std::size_t calls = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 5000;
  const auto path = std::filesystem::temp_directory_path() /
                    ("record_notes." + std::to_string(getpid()) + ".mpt");
  bench::value rows = bench::value::list();
  for (const auto& [what, stacks] : {std::pair("none", record::stack_choice::none),
                                     std::pair("all", record::stack_choice::all)}) {
    record::settings how;
    how.path = path.string();
    how.stacks = stacks;
    auto to = record::recorder::start(how, {});
    if (!to) bench::stop_with(2, to.error().message);
    record::translator translator(**to, {parameters_of, nullptr, pool_of, device_of});
    caller call{translator};
    CUdeviceptr address = 0;
    const CUstream stream = reinterpret_cast<CUstream>(0x6000);
    const auto pair = [&](std::size_t n) {
      address = 0x7f00'0000'0000 + n % 64 * 65536;
      cuMemAllocAsync_params allocate{&address, 65536, stream};
      call(CUPTI_DRIVER_TRACE_CBID_cuMemAllocAsync, "cuMemAllocAsync", allocate);
      cuMemFreeAsync_params release{address, stream};
      call(CUPTI_DRIVER_TRACE_CBID_cuMemFreeAsync, "cuMemFreeAsync", release);
    };
    std::array<CUdeviceptr, 64> words{};
    for (std::size_t n = 0; n < words.size(); ++n)
      words[n] = n < 4 ? 0x7f00'0000'0000 + n * 65536 : n;
    std::array<void*, 4> pointers{&words[0], &words[1], &words[2], &words[3]};
    const auto launch = [&](std::uintptr_t function) {
      cuLaunchKernel_params with{};
      with.f = reinterpret_cast<CUfunction>(function);
      with.hStream = stream;
      with.kernelParams = pointers.data();
      call(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, "cuLaunchKernel", with,
           function == 1 ? "_Z4stepPfS_S_S_" : "_Z4step4pack");
    };
    bench::value row{{"stacks", what}};
    row["allocate_free_ns"] = median_ns(calls, pair) / 2;
    row["launch_4_pointers_ns"] = median_ns(calls, [&](std::size_t) { launch(1); });
    row["launch_512_bytes_ns"] = median_ns(calls, [&](std::size_t) { launch(2); });
    (*to)->finish("exit");
    row["dropped"] = (*to)->dropped();
    rows.push_back(row);
  }
  std::filesystem::remove(path);
  bench::value by_depth = bench::value::list();
  for (const int depth : {12, 36}) {
    using way = record::stack_store::unwinding;
    by_depth.push_back({{"frames", depth + 5},
                        {"remembered_ns", stack_ns(way::by_rules, depth, 0, calls)},
                        {"by_rules_ns", stack_ns(way::by_rules, depth, 16, calls)},
                        {"by_runtime_ns", stack_ns(way::by_runtime, depth, 16, calls)}});
  }
  bench::value out = bench::result_of("record_notes", {});
  out["calls"] = calls;
  out["rows"] = rows;
  out["stacks"] = by_depth;
  std::cout << out.json(2) << '\n';
  return 0;
}
#else
int main() {
  std::fputs("this build has no CUPTI headers, so there is nothing to measure\n", stderr);
  return 2;
}
#endif
