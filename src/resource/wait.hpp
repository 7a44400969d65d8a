// Waiting for work before the CPU takes memory away from it.
#pragma once
#include "driver/insist.hpp"
#include "driver/own_calls.hpp"
#include "millpond/driver/driver.hpp"

namespace millpond {

// cuStreamSynchronize, refused without asking where the stream captures: asking would break the
// capture. Called inside an own_calls_scope.
inline call_result wait_for_stream(driver& gpu, stream_handle stream) noexcept {
  capture_info capturing;
  if (const call_result asked = gpu.stream_capture(stream, &capturing); !asked.ok()) return asked;
  if (capturing.status != capture_status::none) {
    return {driver_status::capture_unsupported, "cuStreamSynchronize"};
  }
  return gpu.stream_synchronize(stream);
}

// Waits for all work of the device, that of destroyed streams too, beside whatever capture.
// cuCtxSynchronize beside any capture is refused and breaks it, in every mode, and nobody can be
// asked whether one runs. cuMemFree and cuMemFreeHost wait for the device too, and a relaxed thread
// may call them.
inline call_result wait_for_device(driver& gpu) noexcept {
  constexpr std::uint64_t bytes = std::uint64_t{2} << 20;  // pages of its own, which go with it
  const own_calls_scope own_calls(gpu);
  if (!own_calls.entered()) return own_calls.entered();
  device_address block = 0;
  const call_result answer = gpu.memory_allocate(&block, bytes);
  if (answer.ok()) return insist([&] { return gpu.memory_free(block); });
  void* pinned = nullptr;
  if (gpu.host_allocate(&pinned, bytes, driver::host_flags::none).ok())
    return insist([&] { return gpu.host_free(pinned); });
  return answer;
}

}  // namespace millpond
