#include "millpond/managed/managed_use.hpp"

#include <fmt/format.h>

#include "millpond/base/units.hpp"

namespace millpond {
namespace {

// Below this a control block in mapped pinned memory is better: p99 22 to 30 us a round where
// managed memory has 800.
constexpr std::uint64_t control_bytes = 64 * KiB;

error refused(const managed_use& use, std::string why) {
  return {error_code::invalid_argument,
          fmt::format("managed memory, {}: {}", to_string(use.intent), why)};
}

}  // namespace

const char* to_string(managed_intent intent) noexcept {
  switch (intent) {
    case managed_intent::unstated: return "unstated";
    case managed_intent::streaming: return "streaming";
    case managed_intent::read_mostly: return "read-mostly";
    case managed_intent::gpu_resident: return "gpu-resident";
    case managed_intent::cpu_resident: return "cpu-resident";
    case managed_intent::ping_pong: return "ping-pong";
  }
  return "unknown";
}

result<managed_plan> plan_managed(const managed_use& use, std::uint64_t bytes,
                                  const device_info& device) {
  managed_plan plan;
  if (use.intent == managed_intent::unstated) return plan;
  if (!device.concurrent_managed_access) {
    return error{error_code::not_supported,
                 fmt::format("managed memory, {}: {} has no concurrent managed access, so that "
                             "advice and prefetch are refused and "
                             "the CPU may not touch managed memory while a kernel runs; use pinned "
                             "memory and copies",
                             to_string(use.intent), device.name)};
  }
  if (bytes > device.total_bytes && use.intent == managed_intent::gpu_resident) {
    return error{error_code::out_of_memory,
                 fmt::format("managed memory, gpu-resident: {} cannot live on a device of {}; "
                             "state streaming, and use it in parts",
                             format_bytes(bytes), format_bytes(device.total_bytes))};
  }
  plan.align_blocks = true;
  switch (use.intent) {
    case managed_intent::unstated: break;
    case managed_intent::streaming:
      if (use.writers == memory_side::both)
        return refused(use, "both sides write; state ping-pong, which prefetches each way");
      plan.prefetch_to_device =
          includes(use.writers, memory_side::host) || includes(use.readers, memory_side::device);
      plan.prefetch_to_host =
          includes(use.readers, memory_side::host) && includes(use.writers, memory_side::device);
      break;
    case managed_intent::read_mostly:
      if (includes(use.writers, memory_side::device)) {
        return refused(
            use,
            "the device writes, and each write to a duplicated page is a fault that takes its "
            "copies away (27 to 132 us "
            "for each 4 KiB with the CPU as preferred location); state streaming or gpu-resident");
      }
      plan.advices = {{managed_advice::set_read_mostly, memory_location::device}};
      plan.prefetch_to_device = true;
      break;
    case managed_intent::gpu_resident:
      plan.advices = {{managed_advice::set_preferred_location, memory_location::device}};
      plan.prefetch_to_device = plan.start_on_device = true;
      plan.prefetch_to_host = false;
      if (includes(use.writers, memory_side::host)) {
        plan.warnings.push_back(
            "the CPU writes it: each block that it touches comes back at 28 us a fault and goes "
            "again; prefetch, or "
            "write through pinned memory");
      }
      break;
    case managed_intent::cpu_resident:
      plan.advices = {{managed_advice::set_preferred_location, memory_location::host},
                      {managed_advice::set_accessed_by, memory_location::device}};
      if (bytes >= 16 * MiB && (includes(use.readers, memory_side::device) ||
                                includes(use.writers, memory_side::device))) {
        plan.warnings.push_back(
            fmt::format("a kernel that goes through all of it has the link's 42 GB/s, {} each "
                        "time; state streaming "
                        "where the device uses it whole",
                        format_duration(static_cast<double>(bytes) / 42e9 * 1e9)));
      }
      break;
    case managed_intent::ping_pong:
      plan.prefetch_to_device = plan.prefetch_to_host = true;
      if (bytes <= control_bytes) {
        plan.warnings.push_back(
            "a small block that both sides write: the p99 of a round is 800 us in managed memory "
            "and 22 to 30 us in "
            "mapped pinned memory; use a control_block of a pinned pool");
      } else {
        plan.warnings.push_back(
            fmt::format("each round moves it both ways, {} where two pinned copies take {}",
                        format_duration(static_cast<double>(bytes) * (1 / 50e9 + 1 / 16e9) * 1e9),
                        format_duration(static_cast<double>(bytes) * 2 / 55e9 * 1e9)));
      }
      break;
  }
  return plan;
}

}  // namespace millpond
