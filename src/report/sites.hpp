// What counts as one call site in `top` and in a report, and what it is called.
#pragma once
#include <cstdint>
#include <string>

#include "trace/source.hpp"

namespace millpond::report {

// Of an allocation: its call stack and call where stacks were recorded, else its call, kind and
// doubling of sizes.
[[nodiscard]] std::uint64_t key_of_site(const trace::event& allocation);
// "cudaMalloc, 64 KiB to 128 KiB".
[[nodiscard]] std::string label_without_stack(const trace::event& allocation,
                                              const trace::trace_info& info);
// Of an allocation or a free: "cudaMalloc"; "allocate (device)" where the trace does not say.
[[nodiscard]] std::string name_of_call(const trace::event& of, const trace::trace_info& info);

}  // namespace millpond::report
