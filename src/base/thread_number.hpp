// A small number for each thread of the process, from 0 in the order in which they first ask.
#pragma once
#include <cstdint>

namespace millpond {

[[nodiscard]] std::uint32_t thread_number() noexcept;

}  // namespace millpond
