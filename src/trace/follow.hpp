// A trace that is still being written, read as it grows.
#pragma once
#include <functional>
#include <string>

#include "millpond/base/result.hpp"
#include "trace/source.hpp"

namespace millpond::trace {

// Opens an .mpt that another process writes. Where no more bytes are there, `wait` is called, on
// the calling thread: true to look again (it sleeps a little, this room has no clock), false where
// no more will come; then what was read is the trace, `complete` or `cut` as for any file. Opening,
// too, waits for the first event. Ask for one event at a time: a larger piece is given only when it
// is full.
[[nodiscard]] result<trace_source> follow_trace(const std::string& path,
                                                std::function<bool()> wait);

}  // namespace millpond::trace
