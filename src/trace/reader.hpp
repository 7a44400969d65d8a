// Reads .mpt: smart where the writer is dumb. Streams chunk by chunk, at most 16 MiB of it in
// memory; skips what a newer minor version added; trusts no length or count that the file claims.
#pragma once
#include <memory>
#include <string_view>

#include "millpond/base/result.hpp"
#include "trace/input.hpp"
#include "trace/source.hpp"

namespace millpond::trace {

// Does a file that starts with these bytes look like an .mpt, maybe cut within its first bytes?
[[nodiscard]] bool is_mpt(std::string_view head) noexcept;

// The metadata in front of the first event is known when this returns. A file that ends too early
// is read up to the last whole chunk, then has status cut; a chunk whose checksum is wrong is
// bad_input.
result<std::unique_ptr<event_reader>> read_mpt(input_buffer from, const open_options& options);

}  // namespace millpond::trace
