// Fetching a cache line ahead of a write. GCC's __builtin_prefetch asks for a line to read on
// x86-64 unless it knows that the processor has prefetchw; all that have 64 bits take the
// instruction (the oldest do nothing), so it is written out.
#pragma once

namespace millpond {

// Any address, valid or not.
inline void prefetch_to_write(const void* at) noexcept {
#if defined(__x86_64__)
  asm volatile("prefetchw (%0)" : : "r"(at));
#else
  __builtin_prefetch(at, 1);
#endif
}

}  // namespace millpond
