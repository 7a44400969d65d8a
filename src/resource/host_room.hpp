// Whether memory of a kind can exist on this machine at all, asked before the driver is: some
// drivers answer a size beyond everything with success, and the program ends when it is touched.
#pragma once
#include <cstdint>
#include <string>

#include "millpond/base/result.hpp"
#include "millpond/driver/driver.hpp"

namespace millpond {

struct machine_room {
  std::uint64_t ram_bytes = 0;  // 0: not known, and nothing is refused
  std::uint64_t swap_bytes = 0;
  bool overcommits = false;  // the system hands out pageable memory that it does not have
                             // (vm.overcommit_memory is 1)
};
// Of the machine that the driver's memory is on: the simulated GPU's profile, else this one (read
// once). Any thread.
[[nodiscard]] machine_room room_of(const driver* gpu);

// out_of_memory with the numbers where `bytes` cannot exist; `who` begins the message. Managed
// pages lie on the host or on any device.
[[nodiscard]] result<void> managed_can_exist(const driver& gpu, const machine_room& room,
                                             std::uint64_t bytes, const std::string& who);
// Pinned memory is never swapped.
[[nodiscard]] result<void> pinned_can_exist(const machine_room& room, std::uint64_t bytes,
                                            const std::string& who);
[[nodiscard]] result<void> pageable_can_exist(const machine_room& room, std::uint64_t bytes,
                                              const std::string& who);

}  // namespace millpond
