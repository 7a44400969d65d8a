// Blocks for whoever uses them at once and in no stream's order: the CPU, and interfaces that know
// no streams.
#pragma once
#include "millpond/detail/language.hpp"

#include <cstdint>

#include "millpond/memory/memory_resource.hpp"

namespace millpond::detail {

// Until all that was put on the stream so far has run. The stream is asked first whether it
// captures: not_permitted then, and the capture stays intact. Other errors: the driver's, by name.
[[nodiscard]] result<void> wait_on_host(driver& gpu, stream_handle stream);

// A block that no work uses any more. What is freed on a stream may be handed out there again at
// once, while the work that uses it is still to come; only work behind it may touch the block then.
// So this waits for the stream. 0 bytes gives nullptr. Errors: the resource's, and those of
// wait_on_host; nothing stays allocated then.
[[nodiscard]] result<void*> allocate_and_wait(memory_resource& from, std::uint64_t bytes,
                                              std::uint64_t alignment, stream_handle stream);

}  // namespace millpond::detail
