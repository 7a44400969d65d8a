// What a piece of managed memory is for, and what follows from it: advice, prefetches, and refusals
// of what is slow whatever is done.
#pragma once
#include "millpond/detail/language.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include "millpond/base/result.hpp"
#include "millpond/driver/driver.hpp"

namespace millpond {

enum class managed_intent : std::uint8_t {
  unstated,     // no advice: pages move to who touches them
  streaming,    // one side makes the data, the other uses it, over and over: prefetched before each
                // use
  read_mostly,  // written once, then read by both: both sides keep a copy
  gpu_resident,  // lives on the device; the CPU looks at it seldom
  cpu_resident,  // lives on the host; the device looks at little of it, over the link
  ping_pong,     // both sides write in turn: prefetched each way
};
[[nodiscard]] const char* to_string(managed_intent intent) noexcept;

// Sides may be joined: `both` is host and device.
enum class memory_side : std::uint8_t { nobody = 0, host = 1, device = 2, both = 3 };
[[nodiscard]] constexpr bool includes(memory_side all, memory_side one) noexcept {
  return (static_cast<unsigned>(all) & static_cast<unsigned>(one)) == static_cast<unsigned>(one);
}

struct managed_use {
  managed_intent intent = managed_intent::unstated;
  memory_side writers = memory_side::both;
  memory_side readers = memory_side::both;
};

struct managed_plan {
  struct advice {
    managed_advice what = managed_advice::set_read_mostly;
    memory_location location = memory_location::device;
  };
  std::vector<advice> advices = {};
  bool align_blocks = false;        // to 2 MiB, the unit in which the driver keeps and evicts
  bool prefetch_to_device = false;  // before the device uses what the host had
  bool prefetch_to_host = false;    // before the host uses what the device had
  bool start_on_device = false;     // prefetched when it is allocated
  std::vector<std::string> warnings = {};  // slow by this much, and what is not
};

// Errors: invalid_argument where the use is slow by construction (read-mostly memory that the
// device writes costs a fault of 130 us for each 4 KiB: 8.7 s a 256 MiB where a prefetch takes 5.6
// ms; one H200, driver 580.159, 2026-11-30) or contradicts itself; not_supported without concurrent
// managed access, where a CPU that touches managed memory while any kernel runs is killed.
[[nodiscard]] result<managed_plan> plan_managed(const managed_use& use, std::uint64_t bytes,
                                                const device_info& device);

}  // namespace millpond
