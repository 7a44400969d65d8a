// GPUs and streams through the C ABI.
#include "bindings/c_abi_objects.hpp"
#include "driver/own_calls.hpp"
#include "millpond/sim/simulated_gpu.hpp"

using namespace millpond;
using namespace millpond::c_abi;

namespace {

millpond_status no_gpu() {
  return fail(MILLPOND_INVALID_ARGUMENT, "the GPU is NULL");
}
millpond_status answer_of(call_result answer, const char* doing) {
  return answer.ok() ? MILLPOND_OK : fail(to_error(answer, doing));
}

}  // namespace

millpond_status millpond_gpu_count(int* count) {
  return guarded([&] {
    if (count == nullptr) return fail(MILLPOND_INVALID_ARGUMENT, "count is NULL");
    *count = 0;
    const auto found = count_cuda_devices();
    if (!found) return fail(found.error());
    *count = *found;
    return MILLPOND_OK;
  });
}

millpond_status millpond_gpu_open(int ordinal, millpond_gpu** gpu) {
  return guarded([&] {
    if (gpu == nullptr) return no_gpu();
    *gpu = nullptr;
    auto opened = open_cuda_driver(ordinal);
    if (!opened) return fail(opened.error());
    *gpu = new millpond_gpu{std::move(*opened), std::make_shared<pointer_registry>()};
    return MILLPOND_OK;
  });
}

millpond_status millpond_gpu_simulate(const char* profile, uint64_t memory_bytes,
                                      millpond_gpu** gpu) {
  return guarded([&] {
    if (gpu == nullptr) return no_gpu();
    *gpu = nullptr;
    simulated_gpu_options options;
    options.mode = simulated_gpu_options::contents::bytes;
    options.memory_bytes = memory_bytes;
    if (profile != nullptr) {
      auto found = find_profile(profile);
      if (!found) return fail(found.error());
      options.profile = std::move(*found);
    }
    auto made = simulated_gpu::create(std::move(options));
    if (!made) return fail(made.error());
    *gpu = new millpond_gpu{std::move(*made), std::make_shared<pointer_registry>()};
    return MILLPOND_OK;
  });
}

void millpond_gpu_close(millpond_gpu* gpu) {
  delete gpu;
}
const char* millpond_gpu_name(const millpond_gpu* gpu) {
  return gpu == nullptr ? "no GPU" : gpu->driver->info().name.c_str();
}
int millpond_gpu_simulated(const millpond_gpu* gpu) {
  return gpu != nullptr && gpu->driver->simulated() ? 1 : 0;
}

millpond_status millpond_stream_create(millpond_gpu* gpu, millpond_stream* stream) {
  if (gpu == nullptr || stream == nullptr) return no_gpu();
  *stream = nullptr;
  const own_calls_scope own_calls(*gpu->driver);
  return answer_of(gpu->driver->stream_create(stream), "creating a stream");
}
millpond_status millpond_stream_synchronize(millpond_gpu* gpu, millpond_stream stream) {
  return gpu == nullptr
             ? no_gpu()
             : answer_of(gpu->driver->stream_synchronize(stream), "waiting for a stream");
}
millpond_status millpond_stream_begin_capture(millpond_gpu* gpu, millpond_stream stream, int mode) {
  if (gpu == nullptr) return no_gpu();
  if (mode < 0 || mode > 2) return fail(MILLPOND_INVALID_ARGUMENT, "mode must be 0, 1 or 2");
  return answer_of(gpu->driver->capture_begin(stream, static_cast<capture_mode>(mode)),
                   "beginning a capture");
}
millpond_status millpond_stream_end_capture(millpond_gpu* gpu, millpond_stream stream,
                                            millpond_graph* graph) {
  if (gpu == nullptr) return no_gpu();
  if (graph == nullptr) return fail(MILLPOND_INVALID_ARGUMENT, "graph is NULL");
  *graph = nullptr;
  return answer_of(gpu->driver->capture_end(stream, graph), "ending a capture");
}
millpond_status millpond_graph_destroy(millpond_gpu* gpu, millpond_graph graph) {
  return gpu == nullptr ? no_gpu()
                        : answer_of(gpu->driver->graph_destroy(graph), "destroying a graph");
}
millpond_status millpond_stream_destroy(millpond_gpu* gpu, millpond_stream stream) {
  return gpu == nullptr ? no_gpu()
                        : answer_of(gpu->driver->stream_destroy(stream), "destroying a stream");
}
