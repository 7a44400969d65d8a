// The functions that stand behind ours: those of the CUDA runtime and driver that the program would
// have called.
//
// Types are CUDA's by layout: the library is built without the toolkit. A status is a cudaError_t
// or a CUresult.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "millpond/driver/driver.hpp"

namespace millpond::preload {

using status = int;
inline constexpr status success = 0;
inline constexpr status invalid_value = 1;  // cudaErrorInvalidValue, CUDA_ERROR_INVALID_VALUE
inline constexpr status memory_allocation =
    2;                                        // cudaErrorMemoryAllocation, CUDA_ERROR_OUT_OF_MEMORY
inline constexpr status not_supported = 801;  // cudaErrorNotSupported, CUDA_ERROR_NOT_SUPPORTED
inline constexpr status no_function = 36;     // cudaErrorCallRequiresNewerDriver

// One function of a library, looked up when it is first called: behind us in the global scope, else
// in a copy that was loaded for a part of the program alone (Python modules do that).
enum class origin : std::uint8_t { runtime, driver };
[[nodiscard]] void* find_real(origin where, const char* name) noexcept;

template <class Function>
class real_function {
 public:
  constexpr real_function(origin where, const char* name) noexcept : where_(where), name_(name) {}
  [[nodiscard]] Function* get() noexcept {
    if (auto* const known = function_.load(std::memory_order_acquire)) return known;
    auto* const found = reinterpret_cast<Function*>(find_real(where_, name_));
    if (found != nullptr) function_.store(found, std::memory_order_release);
    return found;
  }
  template <class... Arguments>
  status operator()(Arguments... arguments) noexcept {
    Function* const function = get();
    return function == nullptr ? no_function : function(arguments...);
  }

 private:
  const origin where_;
  const char* const name_;
  std::atomic<Function*> function_{nullptr};
};

}  // namespace millpond::preload
