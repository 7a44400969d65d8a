#if __has_include(<cupti.h>) && __has_include(<cuda.h>)
#include "record/unified_memory.hpp"

#include "trace/event_views.hpp"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace millpond::record {
namespace {

constexpr std::size_t buffer_bytes = std::size_t{1} << 20;
unified_memory* the_one = nullptr;  // CUPTI's buffer callbacks carry no argument

}  // namespace

unified_memory::unified_memory(recorder& to, const cupti_entries& cupti,
                               decltype(&cuDeviceGetCount) device_count)
    : to_(to), cupti_(cupti), device_count_(device_count) {
  the_one = this;
}

void unified_memory::begin() {
  if (begun_.load(std::memory_order_relaxed) || begun_.exchange(true)) return;
  if (cupti_.configure_counters == nullptr || cupti_.register_buffers == nullptr ||
      cupti_.enable_activity == nullptr || cupti_.next_record == nullptr ||
      cupti_.flush == nullptr) {
    return;
  }
  constexpr CUpti_ActivityUnifiedMemoryCounterKind kinds[] = {
      CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD,
      CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH,
      CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_CPU_PAGE_FAULT_COUNT,
      CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_GPU_PAGE_FAULT,
      CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_THRASHING,
      CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_THROTTLING,
      CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_REMOTE_MAP};
  int devices = 1;
  if (device_count_ == nullptr || device_count_(&devices) != CUDA_SUCCESS || devices < 1)
    devices = 1;
  std::vector<CUpti_ActivityUnifiedMemoryCounterConfig> wanted;
  for (int device = 0; device < devices; ++device) {
    for (const auto kind : kinds) {
      CUpti_ActivityUnifiedMemoryCounterConfig each{};
      each.scope = CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_SCOPE_PROCESS_SINGLE_DEVICE;
      each.kind = kind;
      each.deviceId = static_cast<std::uint32_t>(device);
      each.enable = 1;
      wanted.push_back(each);
    }
  }
  CUptiResult answer = cupti_.register_buffers(give_buffer, take_buffer);
  if (answer == CUPTI_SUCCESS)
    answer = cupti_.configure_counters(wanted.data(), static_cast<std::uint32_t>(wanted.size()));
  if (answer == CUPTI_SUCCESS)
    answer = cupti_.enable_activity(CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER);
  std::uint64_t theirs = 0;
  if (cupti_.timestamp != nullptr && cupti_.timestamp(&theirs) == CUPTI_SUCCESS) {
    offset_ns_ = static_cast<std::int64_t>(to_.now()) - static_cast<std::int64_t>(theirs);
  }
  if (answer == CUPTI_SUCCESS) {
    counting_.store(true, std::memory_order_release);
    to_.say("managed_pages", "counted");
  } else {
    const char* text = nullptr;
    if (cupti_.result_text != nullptr) cupti_.result_text(answer, &text);
    to_.say("managed_pages", std::string("not counted: ") + (text == nullptr ? "refused" : text));
  }
}

void unified_memory::collect() {
  if (counting_.load(std::memory_order_acquire)) cupti_.flush(0);
}

void unified_memory::give_buffer(std::uint8_t** buffer, std::size_t* bytes,
                                 std::size_t* most_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, buffer_bytes));
  *bytes = *buffer == nullptr ? 0 : buffer_bytes;
  *most_records = 0;
}

std::optional<note> unified_memory::to_note(const CUpti_ActivityUnifiedMemoryCounter3& of,
                                            std::int64_t offset_ns) {
  note made;
  made.in_ns = true;
  made.at.what = trace::action::pages;
  made.at.of = trace::kind::managed;
  made.at.address = of.address;
  made.at.time_ns = static_cast<std::uint64_t>(
      std::max<std::int64_t>(0, static_cast<std::int64_t>(of.start) + offset_ns));
  if (of.end > of.start)
    made.at.duration_ns =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(of.end - of.start, UINT32_MAX));
  trace::page_change change{};
  // The GPU's side of a move or a fault; the CPU has a number that no device has.
  constexpr std::uint32_t most_devices = 64;
  const bool to_device =
      of.counterKind == CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD;
  const bool of_cpu =
      of.counterKind == CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_CPU_PAGE_FAULT_COUNT ||
      of.counterKind == CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_THRASHING;  // a mask of devices
  const std::uint32_t device = to_device ? of.dstId : of.srcId;
  if (!of_cpu && device < most_devices) made.at.device = static_cast<std::uint16_t>(device);
  switch (of.counterKind) {
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD:
      change = trace::page_change::to_device;
      made.at.bytes = of.value;
      break;
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH:
      change = trace::page_change::to_host;
      made.at.bytes = of.value;
      break;
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_CPU_PAGE_FAULT_COUNT:
      change = trace::page_change::cpu_fault;
      break;
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_GPU_PAGE_FAULT:
      change = trace::page_change::gpu_fault;
      break;
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_THRASHING:
      change = trace::page_change::thrashing;
      made.at.bytes = of.value;
      break;
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_THROTTLING:
      change = trace::page_change::throttling;
      break;
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_REMOTE_MAP:
      change = trace::page_change::remote_map;
      made.at.bytes = of.value;
      break;
    default: return std::nullopt;
  }
  set_operands(made.at, trace::pages_operands{change, static_cast<trace::page_cause>(of.flags)});
  return made;
}

void unified_memory::take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t,
                                 std::size_t valid) {
  CUpti_Activity* record = nullptr;
  while (the_one->cupti_.next_record(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER) continue;
    const auto& of = *reinterpret_cast<const CUpti_ActivityUnifiedMemoryCounter3*>(record);
    auto made = to_note(of, the_one->offset_ns_);
    if (!made) continue;
    // The instruction that touched the page: the driver tells it for faults of the CPU.
    if (of.counterKind == CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_CPU_PAGE_FAULT_COUNT &&
        of.value != 0) {
      made->at.stack = the_one->to_.stack_at(of.value + 1);
    }
    the_one->to_.put(*made);
  }
  std::free(buffer);
}

}  // namespace millpond::record
#endif
