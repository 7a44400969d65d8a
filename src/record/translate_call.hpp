// One callback of CUPTI while it is translated.
#pragma once
#include <array>
#include <cstdint>

#include "record/translate.hpp"

#define MILLPOND_ID(name) CUPTI_DRIVER_TRACE_CBID_##name

namespace millpond::record {

// A kernel's layout as a thread keeps it: what a launch needs of it lies in one line of the cache.
struct alignas(64) thread_known_layout {
  struct parameter {
    std::uint16_t number, bytes;
  };
  static constexpr std::size_t most = 8;
  static constexpr std::uint8_t elsewhere =
      0xff;  // in the layout itself: more than there is room for, or larger
  CUfunction function = nullptr;
  const void* shape = nullptr;  // a translator::layout
  const char* name = nullptr;
  std::uint32_t unloaded = 0;      // of the count of unloaded modules
  std::uint8_t count = elsewhere;  // of the parameters here
  std::array<parameter, most> parameters{};
};
static_assert(sizeof(thread_known_layout) == 64);

// What a thread keeps between the two callbacks of a call, and about its context.
struct alignas(64) thread_state {
  // What every call looks at, in one line of the cache.
  std::uint64_t entered = 0;  // in ticks
  CUcontext context = nullptr;
  std::uint16_t device = 0;
  bool free_noted = false;
  std::uint32_t pool_version =
      0;  // of the translator's count of changes when it was asked; 0: never
  const char* runtime_name = nullptr;  // of the runtime's call in progress
  std::uint64_t free_position = 0;
  std::uint64_t pool = 0;  // the device's current one
  // Kernels' layouts that this thread met, by the function's handle.
  struct known_layouts : std::array<thread_known_layout, 1024> {};
  known_layouts* layouts = nullptr;
};

// Static storage of the thread, reached without a call: the recorder is loaded at the start, when
// there is room for it.
extern constinit thread_local thread_state here __attribute__((tls_model("initial-exec")));

struct translator::call {
  const CUpti_CallbackData& data;
  bool per_thread = false;  // the form of the call for which stream 0 is the thread's own
  bool noted = false;       // an earlier event of the same call has its time
  [[nodiscard]] bool at_exit() const { return data.callbackSite == CUPTI_API_EXIT; }
  [[nodiscard]] std::int32_t status() const {
    return data.functionReturnValue == nullptr
               ? 0
               : static_cast<std::int32_t>(*static_cast<const CUresult*>(data.functionReturnValue));
  }
  template <class Parameters>
  [[nodiscard]] const Parameters& of() const {
    return *static_cast<const Parameters*>(data.functionParams);
  }
  [[nodiscard]] const char* name() const {
    return here.runtime_name != nullptr ? here.runtime_name : data.functionName;
  }
};

// An address or a handle as an event has it.
[[nodiscard]] inline std::uint64_t bits(const void* pointer) {
  return reinterpret_cast<std::uint64_t>(pointer);
}
[[nodiscard]] inline std::uint64_t bits(CUdeviceptr address) {
  return address;
}

[[nodiscard]] inline trace::page_side side_of(CUdevice device) {
  return device == CU_DEVICE_CPU ? trace::page_side::host : trace::page_side::device;
}
[[nodiscard]] inline trace::page_side side_of(const CUmemLocation& where) {
  return where.type == CU_MEM_LOCATION_TYPE_DEVICE ? trace::page_side::device
                                                   : trace::page_side::host;
}

}  // namespace millpond::record
