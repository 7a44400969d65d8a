// Which streams a program uses.
#pragma once
#include "trace/event.hpp"

namespace millpond::trace {

// Whether the event stands in its stream's order, so that the stream is one that the program uses.
// An allocation or free that is known to be of a call without a stream (cudaMalloc) stands in none,
// though its `stream` reads as the default one's number.
[[nodiscard]] bool on_stream(const event& at) noexcept;

}  // namespace millpond::trace
