// Ranges that the CPU may not touch now, and the handler that says so when it does.
#pragma once
#include <cstdint>

#include "millpond/base/result.hpp"

namespace millpond::memory_traps {

// A place in the table for a range that is guarded from time to time. The first one installs a
// handler for SIGSEGV that prints one line when the address is in an armed range, and then does
// what was done before it: that handler has the signal, on the thread's alternate stack where there
// is one, or the program ends by it, also where the signal was sent. Errors: not_supported where
// the range is part of a larger mapping on a card (splitting a mapping of the unified-memory driver
// disables it) or where the table is full.
[[nodiscard]] result<int> take(void* at, std::uint64_t bytes);
void arm(int place, bool on) noexcept;
void release(int place) noexcept;

}  // namespace millpond::memory_traps
