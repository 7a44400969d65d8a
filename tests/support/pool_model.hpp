// Random programs for the pool: logical threads, streams that come and go, uses on other streams,
// captures of their own memory and into a shared arena, broken captures, caches, calls that are
// wrong and driver calls that fail, on the simulated GPU with its checker, beside a reference that
// knows which blocks live. A program is a list of plain operations of which any part is a program
// too, so that a failing one can be shrunk.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "millpond/pool/pool.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace millpond::model {

inline constexpr std::uint32_t threads = 4;  // logical ones: the simulated GPU knows who calls

enum class action : std::uint8_t {
  allocate,
  free,
  free_elsewhere,
  kernel,
  use,
  advance,
  trim,
  renew_stream,
  begin_capture,
  end_capture,
  launch,
  drop_graph,
  abort_capture,
  renew_arena,
  nothing,
  wrong_call,
  fail_growth,
  fork,
  count_,
};
struct operation {
  action what = action::allocate;
  std::uint32_t thread = 0;
  std::uint32_t stream = 0;  // which stream, or block, or graph: taken modulo how many there are
  std::uint32_t other = 0;
  std::uint64_t amount = 0;  // bytes or nanoseconds
};
using program = std::vector<operation>;

// The rules that must hold (docs/internals/what_must_hold.md), each with how often a program could
// have broken it.
enum class rule : std::uint8_t {
  order,      // memory handed out that another stream had freed
  own_order,  // memory handed out again on the stream that freed it while its work was pending
  identity,   // streams destroyed whose handle came back
  special_handles,  // calls on the null, legacy and per-thread streams
  other_uses,       // frees of blocks that record_use had named streams for
  capture_calls,    // calls of the pool while a capture ran, other than for it
  capture_memory,   // launches of graphs that own memory while the program allocates beside them
  shared_arena,     // captures that took over an arena's memory
  aborted,          // captures broken half-way
  dead_streams,     // streams destroyed with frees on them that nothing had fenced yet
  locks,            // callbacks of the user that freed into the pool
  no_device_waits,  // calls served without a device-wide wait
  mappings,         // memory given back to the driver while other memory was in use
  kinds,            // wrong frees that were refused, the block unharmed
  ends,             // pools ended with all given back
  forks,            // calls refused in a forked child
  zero_and_null,    // zero bytes, null pointers and alignments
  failure,          // driver calls that failed under an allocation
  no_overlap,       // blocks compared with every live neighbour
  count_,
};
[[nodiscard]] const char* to_string(rule which) noexcept;
// Counts by rule.
using coverage = std::array<std::uint64_t, static_cast<std::size_t>(rule::count_)>;

struct settings {
  reuse_policy reuse = reuse_policy::idle;
  std::uint64_t limit_bytes = 0;
  // Puts something between the pool and the simulated GPU.
  std::function<std::shared_ptr<driver>(std::shared_ptr<simulated_gpu>)> wrap;
};
struct outcome {
  std::string failure;           // empty where all held
  std::size_t failed_at = 0;     // the operation
  std::uint64_t operations = 0;  // allocations and frees
  std::uint64_t refused = 0;     // allocations out of memory
  coverage covered{};
};

// Also what kinds of program a seed makes: policy and limit follow from it.
[[nodiscard]] program generate(std::uint64_t seed, std::size_t length);
[[nodiscard]] settings settings_of(std::uint64_t seed);
[[nodiscard]] outcome run(const program& of, const settings& how);
// A shorter program that fails too, in at most `tries` runs.
[[nodiscard]] program shrink(program failing, const settings& how, int tries);

void write(std::ostream& to, std::uint64_t seed, const program& of);
// False where the text is no such file.
[[nodiscard]] bool read(std::istream& from, std::uint64_t* seed, program* out);

}  // namespace millpond::model
