// The built-in profile: what one H200 was measured to do, as tables.
#include <algorithm>

#include "driver/sim/allocator_paths.hpp"
#include "millpond/base/units.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace millpond {
namespace {

namespace allocator_path = sim::allocator_path;

constexpr double us = 1e3;

double on_the_line(const std::vector<cost_point>& points, std::uint64_t bytes,
                   double cost_point::* value) noexcept {
  if (points.empty()) return 0;
  if (points.size() == 1 || bytes <= points.front().bytes) return points.front().*value;
  // The first point at or above the size; the last two points when the size is beyond the table.
  std::size_t upper = 1;
  while (upper + 1 < points.size() && points[upper].bytes < bytes) ++upper;
  const cost_point& a = points[upper - 1];
  const cost_point& b = points[upper];
  double slope = (b.*value - a.*value) / static_cast<double>(b.bytes - a.bytes);
  if (bytes > b.bytes) slope = std::max(slope, 0.0);
  return b.*value + slope * (static_cast<double>(bytes) - static_cast<double>(b.bytes));
}

cost_table flat(double p50_us, double p99_us) {
  return {{{0, p50_us * us, p99_us * us}}};
}

cost_point at(std::uint64_t bytes, double p50_us, double p99_us) {
  return {bytes, p50_us * us, p99_us * us};
}

// The calls on virtual memory: their p99 was not measured and is taken as 1.4 times the median, as
// cudaMalloc's is.
cost_point per_handle(std::uint64_t bytes, double p50_us) {
  return at(bytes, p50_us, 1.4 * p50_us);
}

void add_plain_calls(gpu_profile& p) {
  p.calls["cuMemAlloc"] = {
      {at(1 * KiB, 45, 61), at(1 * MiB, 43, 57), at(64 * MiB, 51, 103), at(1 * GiB, 183, 465)}};
  p.calls["cuMemFree"] = {
      {at(1 * KiB, 37, 51), at(1 * MiB, 36, 50), at(64 * MiB, 88, 108), at(1 * GiB, 599, 801)}};
  p.calls["cuMemHostAlloc"] = {{at(1 * KiB, 819, 2266), at(1 * MiB, 504, 623),
                                at(64 * MiB, 24139, 34010), at(1 * GiB, 435009, 522361)}};
  p.calls["cuMemFreeHost"] = {{at(1 * KiB, 336, 555), at(1 * MiB, 219, 316),
                               at(64 * MiB, 6335, 10499), at(1 * GiB, 109980, 141300)}};
  // Managed blocks among a program's other calls, whose pages were used before (a block that
  // nothing has touched takes 7 to 10 and 8 to 9): what a free takes depends on the pages that are
  // there, on either side.
  p.calls["cuMemAllocManaged"] = {
      {at(1 * MiB, 13, 60), at(16 * MiB, 16, 60), at(64 * MiB, 26, 60)}};
  p.calls["cuMemFree.managed"] = {{at(1 * KiB, 9, 30), at(1 * MiB, 9, 25), at(64 * MiB, 14, 20)}};
  p.calls["cuMemFree.managed_resident"] = {{at(1 * MiB, 30, 49), at(16 * MiB, 155, 226),
                                            at(64 * MiB, 535, 702), at(512 * MiB, 4700, 5000)}};
  // Blocks below 1 MiB beside others: the medians of the trace gpt2_generate.
  p.calls["cuMemAllocManaged.shared"] = flat(3.5, 10);
  p.calls["cuMemFree.managed_shared"] = flat(6.2, 15);
  // Blocks below 1 MiB that share pages which are there already: the medians of the trace
  // gpt2_generate, whose blocks are small, in
  // bench/results/h200/fb8cfea7eafb/compare_gpt2_generate_no_touch.json.
  p.calls["cuMemAlloc.shared"] = flat(2.9, 6);
  p.calls["cuMemFree.shared"] = flat(2.8, 6);
  // Pinning touched memory of ordinary pages: 72 to 92 ms for 2 GiB; undoing it is about as long.
  p.calls["cuMemHostRegister"] = {{per_handle(4 * KiB, 20), per_handle(2 * GiB, 80000)}};
  p.calls["cuMemHostUnregister"] = {{per_handle(4 * KiB, 20), per_handle(2 * GiB, 80000)}};
  p.calls["cuMemGetInfo"] = flat(6.5, 9.1);
  p.calls["cuPointerGetAttributes"] = flat(0.075, 0.11);
}

void add_pool_calls(gpu_profile& p) {
  // Among a program's other calls (recorded traces with kernels between,
  // bench/results/h200/*/compare_*.json: medians of 0.5 to 0.83 each); in a tight loop of nothing
  // else they take 0.32 and 0.44.
  p.calls["cuMemAllocFromPoolAsync"] = flat(0.69, 3.2);
  p.calls["cuMemFreeAsync"] = flat(0.67, 1.3);
  // The first of a process: 6.7 to 11.9 ms, median 7.4; with a second pool it is 0.06.
  p.calls["cuMemAllocFromPoolAsync.first"] = flat(7400, 11900);
  // Medians in `inference` with pageable copies against pinned ones: 0.75 against 0.51, frees'
  // means 0.72 against 0.47, growth 63 against 42. The copies go through the CPU's caches.
  p.after_pageable_factor = 1.4;
  p.calls["cuMemAllocFromPoolAsync.host"] = flat(1.15, 3.9);
  p.calls["cuMemFreeAsync.host"] = flat(0.63, 0.9);
  p.calls["cuMemPoolCreate"] = flat(10, 14);   // not measured; made once
  p.calls["cuMemPoolDestroy"] = flat(10, 14);  // not measured; made once
  // cudaMallocAsync after a synchronise with threshold 0, by the 32 MiB steps that it reserves
  // again.
  p.pool_growth = {{at(32 * MiB, 46, 58), at(64 * MiB, 67, 87), at(1 * GiB, 962, 1253)}};
  // A synchronise with threshold 0 less one that keeps all, and cuMemPoolTrimTo (cuMemPoolTrimTo of
  // 1 GiB: 1.7 ms).
  p.pool_shrink = {{at(32 * MiB, 44, 63), at(64 * MiB, 83, 124), at(512 * MiB, 645, 900),
                    at(1 * GiB, 1500, 1800)}};
  p.pool_step_bytes = 32 * MiB;
}

void add_virtual_memory_calls(gpu_profile& p) {
  // A handle of each size: those of 1 GiB made of N equal handles, divided by N, and one handle
  // alone.
  p.calls["cuMemCreate"] = {{per_handle(2 * MiB, 13), per_handle(32 * MiB, 14),
                             per_handle(128 * MiB, 20), per_handle(512 * MiB, 24),
                             per_handle(1 * GiB, 66)}};
  p.calls["cuMemMap"] = flat(0.6, 0.84);
  p.calls["cuMemSetAccess"] = {{per_handle(2 * MiB, 36), per_handle(32 * MiB, 34),
                                per_handle(128 * MiB, 41), per_handle(512 * MiB, 60),
                                per_handle(1 * GiB, 68)}};
  p.calls["cuMemUnmap"] = {{per_handle(2 * MiB, 20.6), per_handle(128 * MiB, 21.2),
                            per_handle(512 * MiB, 29), per_handle(1 * GiB, 30)}};
  p.calls["cuMemRelease"] = {{per_handle(2 * MiB, 13), per_handle(8 * MiB, 19.7),
                              per_handle(32 * MiB, 33), per_handle(128 * MiB, 95),
                              per_handle(512 * MiB, 310), per_handle(1 * GiB, 320)}};
  p.calls["cuMemAddressReserve"] = flat(2, 2.8);  // not measured; made once a pool
  p.calls["cuMemAddressFree"] = flat(2, 2.8);
}

void add_stream_calls(gpu_profile& p) {
  p.calls["cuStreamGetId"] = flat(0.028, 0.03);
  p.calls["cuStreamGetCaptureInfo"] = flat(0.028, 0.03);
  p.calls["cuCtxSetCurrent"] = flat(0.013, 0.015);
  p.calls["cuEventRecord"] = flat(0.25, 0.29);
  p.calls["cuEventQuery"] = flat(0.20, 0.28);
  // Among a program's other calls, where the two streams are at work (0.20 in a tight loop):
  // allocations of the fixed arena that wait take some 2 us.
  p.calls["cuStreamWaitEvent"] = flat(1.2, 1.8);
  p.calls["cuStreamQuery"] = flat(0.20, 0.28);
  p.calls["cuCtxRecordEvent"] = flat(0.21, 0.29);
  p.calls["cuLaunchKernel"] = flat(3.7, 5.2);
  // What a synchronise costs by itself: launch and synchronise 8.6 to 9.3 less the launch and the
  // kernel.
  for (const char* call : {"cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"}) {
    p.calls[call] = flat(0.6, 0.9);
  }
  // A copy or a memset is issued like a kernel.
  for (const char* call :
       {"cuMemcpyAsync", "cuMemsetD8Async", "cuMemPrefetchAsync", "cuLaunchHostFunc"}) {
    p.calls[call] = flat(3.7, 5.2);
  }
  p.calls["cuGraphLaunch"] = flat(6, 8.4);       // not measured
  p.calls["cuGraphInstantiate"] = flat(50, 70);  // not measured
  p.calls["cuStreamCreate"] = flat(5, 7);        // not measured
  p.calls["cuStreamDestroy"] = flat(5, 7);       // not measured
}

}  // namespace

double cost_table::p50_ns(std::uint64_t bytes) const noexcept {
  return on_the_line(points, bytes, &cost_point::p50_ns);
}
double cost_table::p99_ns(std::uint64_t bytes) const noexcept {
  return on_the_line(points, bytes, &cost_point::p99_ns);
}

gpu_profile gpu_profile::h200() {
  gpu_profile p;
  p.name = "h200";
  p.source = "one NVIDIA H200, driver 580.159, CUDA 13.0, 16 host cores, measured 2026-11-30";
  p.device.name = "h200";
  p.device.compute_major = 9;
  p.device.multiprocessors = 132;
  p.device.total_bytes =
      static_cast<std::uint64_t>(139.8 * static_cast<double>(GiB)) / (2 * MiB) * (2 * MiB);
  p.device.granularity = p.device.host_granularity = 2 * MiB;
  p.device.virtual_memory = p.device.memory_pools = true;
  p.device.concurrent_managed_access = true;
  p.device.posix_fd_export = true;
  p.device.unified_addressing = true;
  p.device.host_numa_id = 0;
  p.device.l2_bytes = 60 * MiB;
  p.host_bytes = 128 * GiB;
  add_plain_calls(p);
  add_pool_calls(p);
  add_virtual_memory_calls(p);
  add_stream_calls(p);
  p.default_call_ns = 0.2 * us;
  // Launch and synchronise is 8.6 to 9.3 us, of which the launch call is 3.3 to 3.7: the rest is
  // shared among the way to the device, the shortest kernel and the way back. Kernels one behind
  // the other take 3 us more than their bytes do: what the identity kernels of resnet_serving and
  // bert_varlen take as a whole (105 and 209 ms).
  p.launch_latency_ns = 1.6 * us;
  p.kernel_overhead_ns = 3 * us;
  p.memory_bytes_per_s = 4.17e12;
  p.host_to_device_bytes_per_s = 55.3e9;
  p.device_to_host_bytes_per_s = 55.2e9;
  p.pageable_to_device_bytes_per_s = 8.0e9;
  p.device_to_pageable_bytes_per_s = 14.5e9;
  const double quarter_gib = 256.0 * static_cast<double>(MiB);
  p.host_memory_bytes_per_s = quarter_gib / 6.4e-3;
  p.managed_fault_in_bytes_per_s =
      quarter_gib / 29e-3;  // written by the CPU: 24 to 42 ms on three hosts
  // Fitted: what is left of it in the recorded traces, where most kernels write several blocks, on
  // two machines (one has 24 to 30 ms where the other has 34).
  p.managed_together_share = 0.92;
  p.managed_prefetch_bytes_per_s = quarter_gib / 5.4e-3;  // 5.6 ms with the kernel's 0.2
  p.managed_prefetch_back_bytes_per_s = quarter_gib / 16.5e-3;
  p.managed_fault_back_bytes_per_s =
      quarter_gib / 48e-3;  // 38 ms on one host, 54 to 79 on four others
  // millpond's own paths, in the calls of the recorded traces over a driver that does nothing. The
  // fixed arena's are fitted to the means of its calls on a card, by the holes in its books (none
  // in `inference`, some 25 in llama_train).
  p.allocator_path_ns = {{allocator_path::thread_cache_hit, 72},
                         {allocator_path::stream_cache_hit, 166},
                         {allocator_path::heap_hit, 353},
                         {allocator_path::growth, 5582},
                         {allocator_path::move, 16843},
                         {allocator_path::deallocation, 138},
                         {allocator_path::seal, 166},
                         {allocator_path::fixed_arena_allocate, 18},
                         {allocator_path::fixed_arena_allocate_doubling, 46},
                         {allocator_path::fixed_arena_free, 62},
                         {allocator_path::fixed_arena_free_doubling, 58}};
  p.allocator_path_source = "bench/results/h200/c2132ae0a0a2/path_costs.json";
  return p;
}

}  // namespace millpond
