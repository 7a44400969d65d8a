// The real driver's captures and work: the other half of cuda_driver.cpp.
#include <new>

#include "driver/cuda/cuda_driver.hpp"

namespace millpond::cuda {

// Capture and graphs.

call_result cuda_driver::stream_capture(stream_handle stream, capture_info* out) noexcept {
  // The usual answer is "no", and the short question costs a third of the long one.
  int status = 0;
  call_result answer = ask(functions_.stream_is_capturing, stream, &status);
  if (!answer) return answer;
  *out = {};
  out->status = static_cast<capture_status>(status);
  if (out->status != capture_status::active) [[likely]]
    return answer;
  answer =
      ask(functions_.stream_get_capture, stream, &status, &out->id, &out->graph,
          static_cast<CUgraphNode_st* const**>(nullptr),
          static_cast<const CUgraphEdgeData_st**>(nullptr), static_cast<std::size_t*>(nullptr));
  out->status = static_cast<capture_status>(status);
  return answer;
}

// The two calls alone; who is answered false asks again by the ways above, which look at
// failures.
bool cuda_driver::id_outside_capture(stream_handle stream, std::uint64_t* id) noexcept {
  if (in_forked_child()) [[unlikely]]
    return false;
  int status = 0;
  if (functions_.stream_is_capturing.function(stream, &status) != 0 || status != 0) [[unlikely]]
    return false;
  return functions_.stream_get_id.function(stream, id) == 0;
}

call_result cuda_driver::exchange_capture_mode(capture_mode* mode) noexcept {
  int value = static_cast<int>(*mode);
  const call_result answer = ask(functions_.exchange_capture_mode, &value);
  if (answer) *mode = static_cast<capture_mode>(value);
  return answer;
}

call_result cuda_driver::capture_begin(stream_handle stream, capture_mode mode) noexcept {
  return ask(functions_.capture_begin, stream, static_cast<int>(mode));
}

call_result cuda_driver::capture_end(stream_handle stream, graph_handle* out) noexcept {
  return ask(functions_.capture_end, stream, out);
}

call_result cuda_driver::graph_retain(graph_handle graph, void (*destroy)(void*),
                                      void* data) noexcept {
  // A user object cannot be released without its destructor running, and on failure `data` must
  // stay the caller's. So the object's own destructor asks whether the graph ever took it.
  struct ticket {
    void (*destroy)(void*);
    void* data;
    bool taken;
  };
  auto* held = new (std::nothrow) ticket{destroy, data, true};
  if (held == nullptr) return {driver_status::out_of_memory, functions_.user_object_create.name};
  const host_callback run = [](void* raw) {
    auto* mine = static_cast<ticket*>(raw);
    const ticket copy = *mine;
    delete mine;
    if (copy.taken) copy.destroy(copy.data);
  };
  user_object_handle object = nullptr;
  call_result answer = ask(functions_.user_object_create, &object, static_cast<void*>(held), run,
                           1u, user_object_no_destructor_sync);
  if (!answer) {
    delete held;
    return answer;
  }
  answer = ask(functions_.graph_retain_user_object, graph, object, 1u, graph_user_object_move);
  if (!answer) {
    held->taken = false;
    static_cast<void>(ask(functions_.user_object_release, object, 1u));
  }
  return answer;
}

call_result cuda_driver::graph_instantiate(graph_exec_handle* out, graph_handle graph) noexcept {
  return ask(functions_.graph_instantiate, out, graph, std::uint64_t{0});
}

call_result cuda_driver::graph_launch(graph_exec_handle exec, stream_handle stream) noexcept {
  return ask(functions_.graph_launch, exec, stream);
}

call_result cuda_driver::graph_destroy(graph_handle graph) noexcept {
  return ask(functions_.graph_destroy, graph);
}

call_result cuda_driver::graph_exec_destroy(graph_exec_handle exec) noexcept {
  return ask(functions_.graph_exec_destroy, exec);
}

// Work.

call_result cuda_driver::copy_async(device_address to, device_address from, std::uint64_t bytes,
                                    stream_handle stream) noexcept {
  return ask(functions_.copy_async, to, from, bytes, stream);
}

call_result cuda_driver::set_async(device_address at, unsigned char value, std::uint64_t bytes,
                                   stream_handle stream) noexcept {
  return ask(functions_.set_async, at, value, bytes, stream);
}

call_result cuda_driver::prefetch_async(device_address at, std::uint64_t bytes, memory_location to,
                                        stream_handle stream) noexcept {
  return ask(functions_.prefetch_async, at, bytes,
             to == memory_location::device ? device_location_ : host_location_, 0u, stream);
}

call_result cuda_driver::advise(device_address at, std::uint64_t bytes, managed_advice advice,
                                memory_location location) noexcept {
  // managed_advice counts from 0 in the order of CU_MEM_ADVISE_*, which count from 1.
  const int value = static_cast<int>(advice) + 1;
  // The host at large: cuda.h refuses a NUMA node for "accessed by", and as the preferred location
  // a node has no effect (H200, driver 580.159, 2026-11-30: a kernel moves the pages to the device,
  // bench/results/h200/5edde0651fbe/managed_node.csv).
  const mem_location where =
      location == memory_location::device ? device_location_ : mem_location{location_host, 0};
  return ask(functions_.advise, at, bytes, value, where);
}

call_result cuda_driver::host_function(stream_handle stream, void (*function)(void*),
                                       void* data) noexcept {
  return ask(functions_.launch_host_function, stream, function, data);
}

// Kernels.

call_result cuda_driver::launch(function_handle kernel, unsigned ctas, unsigned threads,
                                stream_handle stream, void** parameters) const noexcept {
  if (kernel == nullptr) return kernels_.failure;
  return ask(functions_.launch_kernel, kernel, ctas, 1u, 1u, threads, 1u, 1u, 0u, stream,
             parameters, static_cast<void**>(nullptr));
}

call_result cuda_driver::identity_write(std::span<const identity_block> blocks,
                                        stream_handle stream) noexcept {
  if (blocks.size() > max_identity_blocks) return {driver_status::invalid_value, "identity_write"};
  launch_table table;
  const unsigned ctas = share_out(blocks, info_.multiprocessors, table);
  if (ctas == 0) return {driver_status::success, "identity_write"};
  void* parameters[] = {&table};
  return launch(kernels_.write, ctas, kernel_threads, stream, static_cast<void**>(parameters));
}

call_result cuda_driver::identity_check(std::span<const identity_block> blocks,
                                        identity_report* report, stream_handle stream) noexcept {
  if (blocks.size() > max_identity_blocks || report == nullptr) {
    return {driver_status::invalid_value, "identity_check"};
  }
  launch_table table;
  const unsigned ctas = share_out(blocks, info_.multiprocessors, table);
  if (ctas == 0) return {driver_status::success, "identity_check"};
  void* parameters[] = {&table, &report};
  return launch(kernels_.check, ctas, kernel_threads, stream, static_cast<void**>(parameters));
}

call_result cuda_driver::spin(std::uint64_t nanoseconds, stream_handle stream) noexcept {
  void* parameters[] = {&nanoseconds};
  return launch(kernels_.spin, 1, 1, stream, static_cast<void**>(parameters));
}

}  // namespace millpond::cuda
