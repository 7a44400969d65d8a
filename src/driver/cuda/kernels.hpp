// The identity and spin kernels on one device: the module, and how a launch is shared out.
#pragma once
#include <cstdint>
#include <span>

#include "driver/cuda/functions.hpp"

namespace millpond::cuda {

// How the kernels see their blocks: identity.cu's launch_table, passed by value (2056 of 4096
// bytes).
struct launch_piece {
  std::uint64_t address;
  std::uint64_t bytes;
  std::uint64_t identity;
  std::uint32_t first_cta;
  std::uint32_t ctas;
};
struct launch_table {
  launch_piece pieces[max_identity_blocks];
  std::uint32_t count;
  std::uint32_t unused;
};
static_assert(sizeof(launch_piece) == 32 && sizeof(launch_table) == 2056);
static_assert(sizeof(identity_report) == 32);

inline constexpr unsigned kernel_threads = 256;

// Fills the table from the blocks that have bytes; gives the launch's thread blocks, 0 for nothing
// to do. Each piece gets thread blocks by its size, at least one, about 16 a multiprocessor in all.
[[nodiscard]] unsigned share_out(std::span<const identity_block> blocks, int multiprocessors,
                                 launch_table& table) noexcept;

struct kernel_set {
  module_handle module = nullptr;
  function_handle write = nullptr;
  function_handle check = nullptr;
  function_handle spin = nullptr;
  // Why there are none, where there are none: what a launch then answers.
  call_result failure{driver_status::not_supported, "identity kernels (not loaded)"};
};

// Compiles the PTX for the current context's device (the driver keeps the result in its cache) and
// loads each function, so that no launch loads anything, which a capture would forbid.
[[nodiscard]] kernel_set load_kernels(const function_table& functions) noexcept;

// The text that load_kernels gives to the driver.
[[nodiscard]] const char* identity_ptx() noexcept;

}  // namespace millpond::cuda
