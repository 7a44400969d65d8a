#include "resource/host_room.hpp"

#include <fmt/format.h>

#include "machine/machine_facts.hpp"
#include "millpond/base/units.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace millpond {
namespace {

machine_room this_machine() {
  const host_facts host = read_host_facts("");
  return {host.ram_bytes.value_or(0), host.swap_bytes.value_or(0),
          host.overcommit.value_or(0) == 1};
}

error refused(std::string message) {
  return {error_code::out_of_memory, std::move(message)};
}

}  // namespace

machine_room room_of(const driver* gpu) {
  if (const auto* simulated = dynamic_cast<const simulated_gpu*>(gpu))
    return {simulated->profile().host_bytes, 0, false};
  static const machine_room known = this_machine();
  return known;
}

result<void> managed_can_exist(const driver& gpu, const machine_room& room, std::uint64_t bytes,
                               const std::string& who) {
  const std::uint64_t device = gpu.info().total_bytes;
  if (room.ram_bytes == 0 || device == 0 || bytes <= room.ram_bytes + device) return {};
  std::uint64_t devices = 1;
  if (const auto counted = count_cuda_devices(); !gpu.simulated() && counted && *counted > 1)
    devices = static_cast<std::uint64_t>(*counted);
  if (bytes <= room.ram_bytes + devices * device) return {};
  return refused(fmt::format(
      "{}: {} is more than the machine's {} of memory and the {} of {} together, so that not all "
      "of its pages can exist: use "
      "it in parts",
      who, format_bytes(bytes), format_bytes(room.ram_bytes), format_bytes(devices * device),
      devices == 1 ? std::string("its device") : fmt::format("its {} devices", devices)));
}

result<void> pinned_can_exist(const machine_room& room, std::uint64_t bytes,
                              const std::string& who) {
  if (room.ram_bytes == 0 || bytes <= room.ram_bytes) return {};
  return refused(
      fmt::format("{}: {} is more than the machine's {} of memory, all of which pinned memory "
                  "would have to lie in: pin a part, and "
                  "move the rest through it (staging)",
                  who, format_bytes(bytes), format_bytes(room.ram_bytes)));
}

result<void> pageable_can_exist(const machine_room& room, std::uint64_t bytes,
                                const std::string& who) {
  if (room.ram_bytes == 0 || room.overcommits || bytes <= room.ram_bytes + room.swap_bytes)
    return {};
  return refused(fmt::format(
      "{}: {} is more than the machine's {} of memory and {} of swap together", who,
      format_bytes(bytes), format_bytes(room.ram_bytes), format_bytes(room.swap_bytes)));
}

}  // namespace millpond
