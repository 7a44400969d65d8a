// The identity pattern on memory that the host can touch: the same bytes as the kernels write.
//
// A block is a run of 8-byte words counted from its own start, whatever its address: word i is
// identity_word(identity, i) in little-endian order, and the last bytes % 8 bytes are the low bytes
// of the word that would stand there. Linear in bytes; the memory must not change meanwhile.
#pragma once
#include <cstdint>

#include "millpond/driver/driver.hpp"

namespace millpond {

void fill_identity(void* at, std::uint64_t bytes, std::uint64_t identity) noexcept;

// Adds the words that differ to report->mismatches; where report->address is still 0 the first of
// them is described, its word with zeros above the tail's bytes. Gives the number found now.
std::uint64_t verify_identity(const void* at, std::uint64_t bytes, std::uint64_t identity,
                              identity_report* report) noexcept;

}  // namespace millpond
