#include "millpond/detail/allocate_and_wait.hpp"

namespace millpond::detail {
namespace {

result<void> refuse_capture(driver& gpu, stream_handle stream) {
  capture_info capture;
  call_result asked = gpu.stream_capture(stream, &capture);
  if (asked.status == driver_status::invalid_context && gpu.bind_thread().ok())
    asked = gpu.stream_capture(stream, &capture);
  if (asked.status == driver_status::capture_implicit) {
    return error{error_code::not_permitted,
                 "memory to be used at once: a stream that the default stream waits for captures, "
                 "and the default stream cannot be waited for; name another stream, or ask again "
                 "after the capture"};
  }
  if (!asked.ok()) return to_error(asked, "memory to be used at once: asking the stream");
  if (capture.status != capture_status::none) {
    return error{error_code::not_permitted,
                 "memory to be used at once: the stream captures and cannot be waited for; take "
                 "the memory before the capture begins, or on another stream"};
  }
  return {};
}

}  // namespace

// In no own_calls_scope, where the handles 0, 1 and 2 would name other streams than the
// allocation did; both calls are ones that nobody's capture forbids.
result<void> wait_on_host(driver& gpu, stream_handle stream) {
  if (auto permitted = refuse_capture(gpu, stream); !permitted) return permitted;
  if (const call_result waited = gpu.stream_synchronize(stream); !waited.ok())
    return to_error(waited, "waiting for the stream that memory comes from");
  return {};
}

result<void*> allocate_and_wait(memory_resource& from, std::uint64_t bytes, std::uint64_t alignment,
                                stream_handle stream) {
  driver* const gpu = from.gpu();
  if (gpu != nullptr && bytes != 0) {
    // First: what is allocated in a capture would be its graph's.
    if (auto permitted = refuse_capture(*gpu, stream); !permitted) return permitted.error();
  }
  auto block = from.try_allocate(bytes, alignment, stream);
  if (!block || *block == nullptr || gpu == nullptr) return block;
  if (auto waited = wait_on_host(*gpu, stream); !waited) {
    from.deallocate(*block, bytes, stream);
    return waited.error();
  }
  return block;
}

}  // namespace millpond::detail
