// The log of RMM's logging_resource_adaptor: `Thread,Time,Action,Pointer,Size,Stream`.
#pragma once
#include <memory>
#include <string_view>

#include "millpond/base/result.hpp"
#include "trace/input.hpp"
#include "trace/source.hpp"

namespace millpond::trace {

[[nodiscard]] bool is_rmm_header(std::string_view line) noexcept;

// Threads and streams become small numbers in the order of their first row. Streams 0x0 and 0x1
// (null and legacy) are both 0; 0x2 (per-thread) is a stream a thread. The time of day becomes time
// from the first row, on the day that puts it nearest to the latest row before it.
result<std::unique_ptr<event_reader>> read_rmm(input_buffer from, const open_options& options);

}  // namespace millpond::trace
