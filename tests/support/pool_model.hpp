// Random programs for the pool: logical threads, streams that come and go, uses on other streams, captures, on the
// simulated GPU with its checker, beside a reference that knows which blocks live. A program is a list of plain
// operations of which any part is a program too, so that a failing one can be shrunk.
#pragma once
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "millpond/pool.hpp"
#include "millpond/simulated_gpu.hpp"

namespace millpond::model {

enum class action : std::uint8_t {
  allocate, free, free_elsewhere, kernel, use, advance, trim, renew_stream, begin_capture, end_capture, launch,
  drop_graph, count_,
};
struct operation {
  action what = action::allocate;
  std::uint32_t thread = 0;
  std::uint32_t stream = 0;   // which stream, or block, or graph: taken modulo how many there are
  std::uint32_t other = 0;
  std::uint64_t amount = 0;   // bytes or nanoseconds
};
using program = std::vector<operation>;

struct settings {
  reuse_policy reuse = reuse_policy::idle;
  std::uint64_t limit_bytes = 0;
  // Puts something between the pool and the simulated GPU.
  std::function<std::shared_ptr<driver>(std::shared_ptr<simulated_gpu>)> wrap;
};
struct outcome {
  std::string failure;         // empty where all held
  std::size_t failed_at = 0;   // the operation
  std::uint64_t operations = 0;    // allocations and frees
  std::uint64_t refused = 0;       // allocations out of memory
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
