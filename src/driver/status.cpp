#include "millpond/driver/driver.hpp"

namespace millpond {
namespace {

const char* name_of(driver_status status) noexcept {
  switch (status) {
    case driver_status::success: return "CUDA_SUCCESS";
    case driver_status::invalid_value: return "CUDA_ERROR_INVALID_VALUE";
    case driver_status::out_of_memory: return "CUDA_ERROR_OUT_OF_MEMORY";
    case driver_status::not_initialized: return "CUDA_ERROR_NOT_INITIALIZED";
    case driver_status::deinitialized: return "CUDA_ERROR_DEINITIALIZED";
    case driver_status::no_device: return "CUDA_ERROR_NO_DEVICE";
    case driver_status::invalid_device: return "CUDA_ERROR_INVALID_DEVICE";
    case driver_status::invalid_context: return "CUDA_ERROR_INVALID_CONTEXT";
    case driver_status::file_not_found: return "CUDA_ERROR_FILE_NOT_FOUND";
    case driver_status::operating_system: return "CUDA_ERROR_OPERATING_SYSTEM";
    case driver_status::invalid_handle: return "CUDA_ERROR_INVALID_HANDLE";
    case driver_status::illegal_state: return "CUDA_ERROR_ILLEGAL_STATE";
    case driver_status::not_found: return "CUDA_ERROR_NOT_FOUND";
    case driver_status::not_ready: return "CUDA_ERROR_NOT_READY";
    case driver_status::illegal_address: return "CUDA_ERROR_ILLEGAL_ADDRESS";
    case driver_status::launch_failed: return "CUDA_ERROR_LAUNCH_FAILED";
    case driver_status::not_permitted: return "CUDA_ERROR_NOT_PERMITTED";
    case driver_status::not_supported: return "CUDA_ERROR_NOT_SUPPORTED";
    case driver_status::device_unavailable: return "CUDA_ERROR_DEVICE_UNAVAILABLE";
    case driver_status::capture_unsupported: return "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
    case driver_status::capture_invalidated: return "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED";
    case driver_status::capture_unjoined: return "CUDA_ERROR_STREAM_CAPTURE_UNJOINED";
    case driver_status::capture_implicit: return "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT";
    case driver_status::captured_event: return "CUDA_ERROR_CAPTURED_EVENT";
    case driver_status::capture_wrong_thread: return "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD";
    case driver_status::unknown: return "CUDA_ERROR_UNKNOWN";
  }
  // Others that a user meets, by cuda.h's numbers; distinguished by no code.
  switch (static_cast<int>(status)) {
    case 34: return "CUDA_ERROR_STUB_LIBRARY";
    case 200: return "CUDA_ERROR_INVALID_IMAGE";
    case 208: return "CUDA_ERROR_ALREADY_MAPPED";
    case 209: return "CUDA_ERROR_NO_BINARY_FOR_GPU";
    case 211: return "CUDA_ERROR_NOT_MAPPED";
    case 214: return "CUDA_ERROR_ECC_UNCORRECTABLE";
    case 218: return "CUDA_ERROR_INVALID_PTX";
    case 221: return "CUDA_ERROR_JIT_COMPILER_NOT_FOUND";
    case 222: return "CUDA_ERROR_UNSUPPORTED_PTX_VERSION";
    case 701: return "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES";
    case 702: return "CUDA_ERROR_LAUNCH_TIMEOUT";
    case 709: return "CUDA_ERROR_CONTEXT_IS_DESTROYED";
    case 710: return "CUDA_ERROR_ASSERT";
    case 712: return "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED";
    case 713: return "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED";
    case 716: return "CUDA_ERROR_MISALIGNED_ADDRESS";
    case 802: return "CUDA_ERROR_SYSTEM_NOT_READY";
    case 803: return "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH";
    case 804: return "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE";
    case 902: return "CUDA_ERROR_STREAM_CAPTURE_MERGE";
    case 903: return "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED";
    case 905: return "CUDA_ERROR_STREAM_CAPTURE_ISOLATION";
    default: return "CUDA error";
  }
}

}  // namespace

std::string to_string(call_result answer) {
  return std::string(answer.call) + ": " + name_of(answer.status) + " (" +
         std::to_string(static_cast<int>(answer.status)) + ")";
}

error to_error(call_result answer, const std::string& doing) {
  error_code code = error_code::driver_failure;
  if (answer.status == driver_status::out_of_memory) code = error_code::out_of_memory;
  if (answer.status == driver_status::not_supported) code = error_code::not_supported;
  return {code, doing + ": " + to_string(answer)};
}

const char* to_string(memory_kind kind) noexcept {
  switch (kind) {
    case memory_kind::device: return "device";
    case memory_kind::driver_pool: return "driver pool";
    case memory_kind::pinned: return "pinned";
    case memory_kind::managed: return "managed";
    case memory_kind::pageable: return "pageable";
  }
  return "unknown";
}

}  // namespace millpond
