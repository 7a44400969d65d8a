// How to get from a frame to its caller's, by the place in the code: the part of DWARF's call frame
// information that x86-64 code uses, looked up once for each return address. With it a walk costs a
// few nanoseconds a frame, where the runtime of the compiler looks everything up anew each time.
#pragma once
#include <cstdint>

namespace millpond::record {

struct frame_rule {
  enum class base : std::uint8_t {
    unknown,     // nothing here can say: the whole stack is to be unwound by other means
    end,         // the outermost frame, or code that has no frame information
    stack,       // the frame's top (CFA) is the stack pointer and `offset`
    frame,       // rbp and `offset`
    frame_load,  // what lies at rbp and `offset`: functions that align their stack
  };
  enum class saved : std::uint8_t {
    same,      // rbp is the caller's still
    at_top,    // rbp was saved at the frame's top and `saved_offset`
    at_frame,  // at rbp and `saved_offset`
  };
  base from = base::unknown;
  saved frame_pointer = saved::same;
  std::int32_t offset = 0, saved_offset = 0;
};

// For the call before the return address. Any thread; takes no lock on a system that has
// _dl_find_object (glibc 2.35), and allocates nothing.
[[nodiscard]] frame_rule find_frame_rule(std::uintptr_t return_address) noexcept;

// Counts libraries that were unloaded: what was found before may be of code that is gone.
[[nodiscard]] std::uint64_t count_unloaded() noexcept;

}  // namespace millpond::record
