// The driver's counters of managed memory: faults and moves of pages, as CUPTI's activity records.
// Built where CUPTI's headers are.
#pragma once
#include <cuda.h>
#include <cupti.h>

#include <atomic>

#include "record/recorder.hpp"

namespace millpond::record {

// CUPTI's functions, found at run time.
struct cupti_entries {
  decltype(&cuptiSubscribe) subscribe = nullptr;
  decltype(&cuptiEnableCallback) enable_callback = nullptr;
  decltype(&cuptiEnableDomain) enable_domain = nullptr;
  decltype(&cuptiGetResultString) result_text = nullptr;
  decltype(&cuptiGetVersion) version = nullptr;
  decltype(&cuptiGetCallbackName) callback_name = nullptr;
  decltype(&cuptiActivityConfigureUnifiedMemoryCounter) configure_counters = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) register_buffers = nullptr;
  decltype(&cuptiActivityEnable) enable_activity = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiGetTimestamp) timestamp = nullptr;
};

// One a process.
class unified_memory {
 public:
  // device_count: cuDeviceGetCount, or null where it was not found.
  unified_memory(recorder& to, const cupti_entries& cupti,
                 decltype(&cuDeviceGetCount) device_count);
  // Once, at the first managed allocation; later calls cost a load.
  void begin();
  // Asks for what the driver has counted so far. On the recorder's background thread, and at the
  // end.
  void collect();

  // One record as a note; nothing for what is not recorded. `offset_ns`: the recording's time less
  // CUPTI's.
  [[nodiscard]] static std::optional<note> to_note(const CUpti_ActivityUnifiedMemoryCounter3& of,
                                                   std::int64_t offset_ns);

 private:
  static void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* bytes,
                                   std::size_t* most_records);
  static void CUPTIAPI take_buffer(CUcontext context, std::uint32_t stream, std::uint8_t* buffer,
                                   std::size_t bytes, std::size_t valid);

  recorder& to_;
  cupti_entries cupti_;
  decltype(&cuDeviceGetCount) device_count_;
  std::atomic<bool> begun_{false}, counting_{false};
  std::int64_t offset_ns_ = 0;
};

}  // namespace millpond::record
