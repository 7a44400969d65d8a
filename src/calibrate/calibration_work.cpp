// Calibration of streams, events, graphs, and of the work itself.
#include <cstdlib>
#include <cstring>
#include <utility>

#include "calibrate/calibration_bench.hpp"
#include "millpond/base/units.hpp"

namespace millpond::calibration {
namespace {

using times = std::vector<double>;

// A call that puts work on the stream: its own time with the stream idle, as a serving program
// meets it.
template <class Call>
cost_table issue(bench& on, Call&& call) {
  times took;
  on.repeat(
      [&] {
        took.push_back(on.time(call));
        on.wait();
      },
      {&took});
  return {{bench::point(0, std::move(took))}};
}

double p50(const gpu_profile& from, const char* call) {
  return from.calls.at(call).points.front().p50_ns;
}

}  // namespace

void measure_streams(bench& on, gpu_profile& into) {
  driver& gpu = on.gpu;
  auto& calls = into.calls;
  std::uint64_t id = 0;
  int ordinal = 0;
  capture_info capture;
  capture_mode mode = capture_mode::relaxed;
  calls["cuCtxSetCurrent"] = on.quick([&] { return gpu.bind_thread(); });
  calls["cuStreamGetId"] = on.quick([&] { return gpu.stream_id(on.stream, &id); });
  calls["cuStreamGetCtx"] = on.quick([&] { return gpu.stream_device(on.stream, &ordinal); });
  // The question of the fast path: not capturing.
  calls["cuStreamGetCaptureInfo"] =
      on.quick([&] { return gpu.stream_capture(on.stream, &capture); });
  calls["cuThreadExchangeStreamCaptureMode"] =
      on.quick([&] { return gpu.exchange_capture_mode(&mode); });
  on.need(gpu.exchange_capture_mode(&mode));
  if (mode != capture_mode::relaxed) on.need(gpu.exchange_capture_mode(&mode));  // as it was before

  event_handle event = nullptr;
  times created, destroyed;
  on.repeat(
      [&] {
        created.push_back(on.time([&] { return gpu.event_create(&event); }));
        destroyed.push_back(on.time([&] { return gpu.event_destroy(event); }));
      },
      {&created, &destroyed});
  calls["cuEventCreate"] = {{bench::point(0, created)}};
  calls["cuEventDestroy"] = {{bench::point(0, destroyed)}};
  on.repeat(
      [&] {
        stream_handle made = nullptr;
        created.push_back(on.time([&] { return gpu.stream_create(&made); }));
        destroyed.push_back(on.time([&] { return gpu.stream_destroy(made); }));
      },
      {&created, &destroyed});
  calls["cuStreamCreate"] = {{bench::point(0, created)}};
  calls["cuStreamDestroy"] = {{bench::point(0, destroyed)}};

  on.need(gpu.event_create(&event));
  const at_end given([&] { static_cast<void>(gpu.event_destroy(event)); });
  calls["cuEventRecord"] = on.quick([&] { return gpu.event_record(event, on.stream); });
  on.wait();
  calls["cuCtxRecordEvent"] = on.quick([&] { return gpu.context_record_event(event); });
  on.need(gpu.context_synchronize());
  calls["cuEventQuery"] = on.quick([&] { return gpu.event_query(event); });
  calls["cuStreamWaitEvent"] = on.quick([&] { return gpu.stream_wait_event(on.stream, event); });
  on.wait();
  calls["cuStreamQuery"] = on.quick([&] { return gpu.stream_query(on.stream); });
  // Of an idle stream: what waiting adds to the work is in the launch's latency.
  calls["cuStreamSynchronize"] = on.quick([&] { return gpu.stream_synchronize(on.stream); });
  calls["cuEventSynchronize"] = on.quick([&] { return gpu.event_synchronize(event); });
  calls["cuCtxSynchronize"] = on.quick([&] { return gpu.context_synchronize(); });
}

namespace {

// A graph of `kernels` empty kernels one after another.
class chain {
 public:
  chain(bench& on, int kernels) : on_(on) {
    driver& gpu = on.gpu;
    on.need(gpu.capture_begin(on.stream, capture_mode::relaxed));
    call_result captured;
    for (int i = 0; i < kernels && captured; ++i) captured = gpu.spin(0, on.stream);
    const call_result ended = gpu.capture_end(on.stream, &graph_);
    on.need(captured);
    on.need(ended);
    on.need(gpu.graph_instantiate(&exec_, graph_));
  }
  ~chain() {
    if (exec_ != nullptr) static_cast<void>(on_.gpu.graph_exec_destroy(exec_));
    if (graph_ != nullptr) static_cast<void>(on_.gpu.graph_destroy(graph_));
  }
  chain(const chain&) = delete;
  chain& operator=(const chain&) = delete;
  // Launch to end, median.
  [[nodiscard]] double round_ns() const {
    times took;
    on_.repeat(
        [&] {
          took.push_back(on_.time([&] {
            const call_result launched = on_.gpu.graph_launch(exec_, on_.stream);
            return launched ? on_.gpu.stream_synchronize(on_.stream) : launched;
          }));
        },
        {&took});
    return bench::median(std::move(took));
  }

 private:
  bench& on_;
  graph_exec_handle exec_ = nullptr;
  graph_handle graph_ = nullptr;
};

}  // namespace

void measure_graphs(bench& on, gpu_profile& into) {
  driver& gpu = on.gpu;
  times begun, ended, made, launched, exec_gone, graph_gone;
  on.repeat(
      [&] {
        graph_handle graph = nullptr;
        graph_exec_handle exec = nullptr;
        const at_end given([&] {  // only after a failure is anything left
          if (exec != nullptr) static_cast<void>(gpu.graph_exec_destroy(exec));
          if (graph != nullptr) static_cast<void>(gpu.graph_destroy(graph));
        });
        begun.push_back(
            on.time([&] { return gpu.capture_begin(on.stream, capture_mode::relaxed); }));
        const call_result captured = gpu.spin(0, on.stream);
        ended.push_back(on.time([&] { return gpu.capture_end(on.stream, &graph); }));
        on.need(captured);
        made.push_back(on.time([&] { return gpu.graph_instantiate(&exec, graph); }));
        on.need(gpu.graph_launch(exec, on.stream));  // the first uploads it
        on.wait();
        launched.push_back(on.time([&] { return gpu.graph_launch(exec, on.stream); }));
        on.wait();
        exec_gone.push_back(
            on.time([&] { return gpu.graph_exec_destroy(std::exchange(exec, nullptr)); }));
        graph_gone.push_back(
            on.time([&] { return gpu.graph_destroy(std::exchange(graph, nullptr)); }));
      },
      {&begun, &ended, &made, &launched, &exec_gone, &graph_gone});
  into.calls["cuStreamBeginCapture"] = {{bench::point(0, begun)}};
  into.calls["cuStreamEndCapture"] = {{bench::point(0, ended)}};
  into.calls["cuGraphInstantiate"] = {{bench::point(0, made)}};
  into.calls["cuGraphLaunch"] = {{bench::point(0, launched)}};
  into.calls["cuGraphExecDestroy"] = {{bench::point(0, exec_gone)}};
  into.calls["cuGraphDestroy"] = {{bench::point(0, graph_gone)}};
}

namespace {

// Bytes a second of work that takes `bytes` each time: the slope between one and several in a row,
// in which what is paid once falls away.
template <class Call>
double rate(bench& on, std::uint64_t bytes, Call&& call) {
  constexpr int several = 5;
  times one, many;
  const auto run = [&](int count, times& into) {
    into.push_back(on.time([&] {
      call_result answer;
      for (int i = 0; i < count && answer; ++i) answer = call();
      return answer ? on.gpu.stream_synchronize(on.stream) : answer;
    }));
  };
  on.repeat([&] { run(1, one), run(several, many); }, {&one, &many});
  const double each_ns = (bench::median(many) - bench::median(one)) / (several - 1);
  return each_ns > 0 ? static_cast<double>(bytes) / each_ns * 1e9 : 0;
}

// The same for work that must be prepared each time: the time of one, less what an empty kernel's
// round and `less_ns` take.
template <class Prepare, class Call>
double prepared_rate(bench& on, std::uint64_t bytes, double less_ns, Prepare&& prepare,
                     Call&& call) {
  times took;
  on.repeat(
      [&] {
        prepare();
        took.push_back(on.time([&] {
          const call_result answer = call();
          return answer ? on.gpu.stream_synchronize(on.stream) : answer;
        }));
      },
      {&took});
  const double net = bench::median(std::move(took)) - less_ns;
  return net > 0 ? static_cast<double>(bytes) / net * 1e9 : 0;
}

void measure_launches(bench& on, gpu_profile& into) {
  driver& gpu = on.gpu;
  on.stage("kernel launches", 0.8);
  into.calls["cuLaunchKernel"] = issue(on, [&] { return gpu.spin(0, on.stream); });
  into.calls["cuLaunchHostFunc"] =
      issue(on, [&] { return gpu.host_function(on.stream, [](void*) {}, nullptr); });
  // Kernels of one graph follow each other without the host: the slope is a kernel's own time.
  constexpr int few = 50, many = 250;
  const chain short_one(on, few);
  const chain long_one(on, many);
  into.kernel_overhead_ns =
      std::max(0.0, (long_one.round_ns() - short_one.round_ns()) / (many - few));
  times round;
  on.repeat(
      [&] {
        round.push_back(on.time([&] {
          const call_result launched = gpu.spin(0, on.stream);
          return launched ? gpu.stream_synchronize(on.stream) : launched;
        }));
      },
      {&round});
  // As the simulator uses it: from the end of the launch call to the start of the kernel, with the
  // way back to a waiting host in it; the synchronise's own cost goes on beside the wait.
  into.launch_latency_ns = std::max(
      0.0, bench::median(std::move(round)) - p50(into, "cuLaunchKernel") - into.kernel_overhead_ns);
}

void measure_device_memory(bench& on, gpu_profile& into, std::uint64_t largest) {
  driver& gpu = on.gpu;
  on.stage("device memory", 0.83);
  device_address at = 0;
  on.need(gpu.memory_allocate(&at, largest));
  const at_end given([&] { static_cast<void>(gpu.memory_free(at)); });
  into.calls["cuMemsetD8Async"] = issue(on, [&] { return gpu.set_async(at, 0, KiB, on.stream); });
  const identity_block block{at, largest, 1};
  const double kernel =
      rate(on, largest, [&] { return gpu.identity_write({&block, 1}, on.stream); });
  const double memset = rate(on, largest, [&] { return gpu.set_async(at, 0, largest, on.stream); });
  into.memory_bytes_per_s = std::max(kernel, memset);
}

void measure_copies(bench& on, gpu_profile& into, std::uint64_t largest) {
  driver& gpu = on.gpu;
  on.stage("copies", 0.86);
  const std::uint64_t bytes = std::min(largest, 256 * MiB);
  device_address at = 0;
  void* pinned = nullptr;
  on.need(gpu.memory_allocate(&at, bytes));
  const at_end given([&] { static_cast<void>(gpu.memory_free(at)); });
  on.need(gpu.host_allocate(&pinned, bytes, driver::host_flags::none));
  const at_end unpinned([&] { static_cast<void>(gpu.host_free(pinned)); });
  const auto host = reinterpret_cast<device_address>(pinned);
  into.calls["cuMemcpyAsync"] = issue(on, [&] { return gpu.copy_async(at, host, KiB, on.stream); });
  into.host_to_device_bytes_per_s =
      rate(on, bytes, [&] { return gpu.copy_async(at, host, bytes, on.stream); });
  into.device_to_host_bytes_per_s =
      rate(on, bytes, [&] { return gpu.copy_async(host, at, bytes, on.stream); });
  const identity_block block{host, bytes, 1};
  into.host_memory_bytes_per_s =
      rate(on, bytes, [&] { return gpu.identity_write({&block, 1}, on.stream); });

  constexpr std::size_t page = 4096;
  void* const memory = std::aligned_alloc(page, bytes);
  if (memory == nullptr) on.need({driver_status::out_of_memory, "aligned_alloc"});
  const at_end freed([&] { std::free(memory); });
  std::memset(memory, 1, bytes);
  const auto pageable = reinterpret_cast<device_address>(memory);
  into.pageable_to_device_bytes_per_s =
      rate(on, bytes, [&] { return gpu.copy_async(at, pageable, bytes, on.stream); });
  into.device_to_pageable_bytes_per_s =
      rate(on, bytes, [&] { return gpu.copy_async(pageable, at, bytes, on.stream); });
}

// A byte of each page of 4 KiB is read and written by the CPU.
void touch_pages(device_address at, std::uint64_t bytes) {
  constexpr std::uint64_t page = 4096;
  auto* const memory = reinterpret_cast<volatile unsigned char*>(at);
  for (std::uint64_t offset = 0; offset < bytes; offset += page) {
    memory[offset] = static_cast<unsigned char>(memory[offset] + 1);
  }
}

void measure_managed(bench& on, gpu_profile& into, std::uint64_t largest,
                     const calibration_options& options) {
  driver& gpu = on.gpu;
  on.stage("managed memory", 0.92);
  const std::uint64_t bytes = std::min(largest, 256 * MiB);
  device_address at = 0;
  on.need(gpu.managed_allocate(&at, bytes));
  const at_end given([&] { static_cast<void>(gpu.memory_free(at)); });
  const auto touch = [&] {
    if (options.touch_managed) {
      options.touch_managed(at, bytes);
    } else {
      touch_pages(at, bytes);
    }
  };
  const identity_block block{at, bytes, 1};
  const auto write = [&] { return gpu.identity_write({&block, 1}, on.stream); };
  const double empty_round =
      p50(into, "cuLaunchKernel") + into.launch_latency_ns + into.kernel_overhead_ns;
  const double on_device = empty_round + static_cast<double>(bytes) / into.memory_bytes_per_s * 1e9;
  // Faulted in by a kernel that reads: its loads fault again while they wait, as those of most
  // kernels do.
  void* report = nullptr;
  on.need(gpu.host_allocate(&report, sizeof(identity_report), driver::host_flags::none));
  const at_end report_given([&] { static_cast<void>(gpu.host_free(report)); });
  const auto read = [&] {
    return gpu.identity_check({&block, 1}, new (report) identity_report, on.stream);
  };
  touch();
  into.managed_fault_in_bytes_per_s = prepared_rate(on, bytes, on_device, touch, read);
  times back;
  on.repeat(
      [&] {
        on.need(write());
        on.wait();
        back.push_back(on.time([&] {
          touch();
          return call_result{};
        }));
      },
      {&back});
  const double back_ns = bench::median(std::move(back));
  into.managed_fault_back_bytes_per_s =
      back_ns > 0 ? static_cast<double>(bytes) / back_ns * 1e9 : 0;
  if (!gpu.info().concurrent_managed_access) return;
  const auto prefetch = [&](memory_location to) {
    return gpu.prefetch_async(at, bytes, to, on.stream);
  };
  into.managed_prefetch_bytes_per_s = prepared_rate(
      on, bytes, empty_round, touch, [&] { return prefetch(memory_location::device); });
  into.managed_prefetch_back_bytes_per_s = prepared_rate(
      on, bytes, empty_round,
      [&] {
        on.need(prefetch(memory_location::device));
        on.wait();
      },
      [&] { return prefetch(memory_location::host); });
  on.need(prefetch(memory_location::device));
  on.wait();
  into.calls["cuMemPrefetchAsync"] = issue(
      on, [&] { return gpu.prefetch_async(at, 64 * KiB, memory_location::device, on.stream); });
  into.calls["cuMemAdvise"] = on.quick([&] {
    return gpu.advise(at, bytes, managed_advice::unset_read_mostly, memory_location::device);
  });
}

}  // namespace

void measure_work(bench& on, gpu_profile& into, std::uint64_t largest,
                  const calibration_options& options) {
  measure_launches(on, into);
  measure_device_memory(on, into, largest);
  measure_copies(on, into, largest);
  measure_managed(on, into, largest, options);
}

}  // namespace millpond::calibration
