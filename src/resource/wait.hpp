// Waiting for a stream before the CPU takes memory away from it.
#pragma once
#include "millpond/driver/driver.hpp"

namespace millpond {

// cuStreamSynchronize, refused without asking where the stream captures: asking would break the
// capture. Called inside a relaxed_capture_scope.
inline call_result wait_for_stream(driver& gpu, stream_handle stream) noexcept {
  capture_info capturing;
  if (const call_result asked = gpu.stream_capture(stream, &capturing); !asked.ok()) return asked;
  if (capturing.status != capture_status::none) {
    return {driver_status::capture_unsupported, "cuStreamSynchronize"};
  }
  return gpu.stream_synchronize(stream);
}

}  // namespace millpond
