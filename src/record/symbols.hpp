// Return addresses to frames of the program.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "record/stacks.hpp"
#include "trace/tables.hpp"

namespace millpond::record {

// At most `most` frames, innermost first, without those of CUDA's libraries, CUPTI and this
// recorder at the inner end. Frames of Python, which the store numbered, stand in place of the
// interpreter's own. A native frame's file is the module's path, and its symbol "name (+0x1f2a)"
// with the address in the module's file: lines.hpp makes lines of them when the program is over.
[[nodiscard]] std::vector<trace::frame> frames_of(std::span<const std::uintptr_t> stack,
                                                  std::size_t most, trace::string_table& strings,
                                                  const stack_store& store);

// Whether a module or a symbol is the CUDA runtime's, the driver's or CUPTI's: frames that no user
// wrote.
[[nodiscard]] bool is_cuda_module(std::string_view path) noexcept;
[[nodiscard]] bool is_cuda_symbol(std::string_view name) noexcept;

}  // namespace millpond::record
