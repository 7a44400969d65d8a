// Which kind of memory one buffer should have, from what the buffer is for and what the machine's
// profile says things cost.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "millpond/managed/managed_use.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace millpond::advise {

struct buffer_question {
  std::uint64_t bytes = 0;
  double lifetime_s = 1;  // from its allocation to its free
  double allocations =
      1;  // how often such a buffer is made while the program runs: lifetime and rate
  // How often in one lifetime the data goes from one side to the other (the host writes and the
  // device reads, or back).
  double exchanges = 0;
  std::uint64_t exchange_bytes = 0;  // each time; 0: all of it
  memory_side writers = memory_side::device, readers = memory_side::device;
  enum class growth : std::uint8_t { fixed, grows };
  growth size = growth::fixed;
  enum class pattern : std::uint8_t {
    varying,
    repeating
  };  // repeating: each iteration allocates the same
  pattern requests = pattern::varying;
  enum class stage : std::uint8_t { production, prototype };
  stage program = stage::production;
};

// One way, with what it would cost over the program, from the profile.
struct buffer_option {
  memory_kind kind = memory_kind::device;
  std::string how;           // "pinned pool, mapped: kernels touch it over the link"
  double setup_ns = 0;       // once
  double allocation_ns = 0;  // each allocation and free
  double exchange_ns = 0;    // each exchange
  double total_ns = 0;
};

struct buffer_choice {
  memory_kind kind = memory_kind::device;
  std::string pool;                   // "millpond::pool", "pinned pool", "planned_resource", "none"
  std::vector<std::string> settings;  // what to write
  buffer_option cost;
  std::string reason;                 // with the numbers that decided
  std::vector<buffer_option> others;  // that could serve too, the cheapest first
};

// Errors: invalid_argument for 0 bytes, nobody who touches it, or negative numbers; out_of_memory
// for more than the device or the host has, with where it could be kept instead. Deterministic.
[[nodiscard]] result<buffer_choice> choose(const buffer_question& question,
                                           const gpu_profile& profile);

}  // namespace millpond::advise
