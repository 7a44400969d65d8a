// A full memory barrier on every running thread of the process (Linux membarrier, private
// expedited): what lets the owner of a biased lock pay none.
#pragma once

namespace millpond {

// Registers the process, once; false where the kernel has no such call. The kernel is quick while
// the process has one thread, and otherwise waits for a grace period of its own: 6 to 20 ms were
// seen on a host with 16 cores (2026-11-30). So whatever starts threads (opening the CUDA driver)
// asks first, and a pool asks when it is made, never in an allocation.
bool process_barrier_available() noexcept;

// Registered: the system call, about a microsecond; otherwise a fence of this thread alone.
void process_barrier() noexcept;

}  // namespace millpond
