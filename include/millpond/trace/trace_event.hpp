// The event: what any part of millpond records, reads and replays. One plain struct for all
// actions; a field an action does not use is 0. On disk an event has a type and a length (see
// mpt.hpp), so that a reader skips what it does not know.
#pragma once
#include "millpond/detail/language.hpp"

#include <cstdint>

namespace millpond::trace {

enum class action : std::uint8_t {
  allocate,  // address, bytes, stream, kind; object: string id of the call; other: the driver's
             // pool
  free,      // address, stream, kind: that the call is for; bytes where known; object: as allocate
  use,       // address, stream: a block is used on a stream (record_use, or see kernel);
             // object: use_form
  stream_synchronize,  // stream
  event_synchronize,   // object: event
  device_synchronize,
  event_record,    // object: event, stream
  event_wait,      // object: event, stream
  stream_create,   // stream, object: 1 where it does not wait for the default stream
  stream_destroy,  // stream
  copy,  // address: to, other: from, bytes, stream, object: copy_direction, and copy_asynchronous
         // where the call says so; kind: of the host side's memory (pinned, pageable, managed), or
         // device where there is none
  memset,    // address, bytes, stream
  kernel,    // object: kernel name id, stream; other: how many `use` events that follow are its
             // blocks; bytes: that it reads and writes, 0 where unknown
  prefetch,  // address, bytes, stream, other: place
  advise,    // address, bytes, other: advice, object: place
  capture_begin,     // stream, object: capture
  capture_end,       // stream, object: graph
  graph_launch,      // object: graph, stream
  graph_destroy,     // object: graph
  segment_allocate,  // address, bytes: a recorded allocator's own memory, not the workload
  segment_free,      // address, bytes
  mark,              // object: string id: a step, a range, a note
  free_complete,  // address, bytes, stream: an allocator that had kept a freed block back for other
                  // streams' uses let it go; not the workload, see "deferred" in lifetimes.hpp
  segment_map,    // address, bytes: pages given to a segment
  segment_unmap,  // address, bytes
  pool_set,       // address: the driver's pool, object: pool_attribute, other: its value
  pages,          // address, bytes, object: page_change: what the driver did with managed pages
};
inline constexpr int action_count = static_cast<int>(action::pages) + 1;
[[nodiscard]] const char* to_string(action what) noexcept;

// As cudaMemcpyKind. `unknown` leaves it to the addresses.
enum class copy_direction : std::uint8_t {
  unknown,
  host_to_device,
  device_to_host,
  device_to_device,
  host_to_host
};

// Beside the direction in a copy's `object`: the call promises to return before the copy is done.
inline constexpr std::uint64_t copy_asynchronous = 0x100;

// How a `use` was seen.
enum class use_form : std::uint8_t {
  argument,   // a kernel's argument points into the block; or the program said so (record_use)
  structure,  // eight bytes inside a larger argument, passed by value, are such an address: perhaps
              // by chance
  stored,     // a small copy to the device held such an address: kernels may find the block there
};

// A pool's attribute, as CUmemPool_attribute.
enum class pool_attribute : std::uint8_t { release_threshold = 4 };

enum class page_change : std::uint8_t {
  to_device,   // pages moved to the device
  to_host,     // pages moved to the host
  cpu_fault,   // the CPU touched a page that was not at hand
  gpu_fault,   // a kernel did
  thrashing,   // the driver saw pages go back and forth
  throttling,  // and held accesses back for it
  remote_map,  // pages are reached over the link
};

// As millpond::memory_kind, on disk: 0 device, 1 driver pool, 2 pinned, 3 managed, 4 pageable.
enum class kind : std::uint8_t { device, driver_pool, pinned, managed, pageable };
[[nodiscard]] const char* to_string(kind of) noexcept;

// The status of an allocation that failed for want of memory: CUDA_ERROR_OUT_OF_MEMORY in cuda.h.
inline constexpr std::int32_t cuda_error_out_of_memory = 2;

struct event {
  std::uint64_t sequence = 0;  // order in the program, from 0
  std::uint64_t time_ns = 0;   // host time from the start of the recording
  std::uint64_t stream = 0;    // identity of the stream in this trace; 0 the default stream
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t object = 0;       // event, graph, capture, kernel or string, by the action
  std::uint64_t other = 0;        // second operand, by the action
  std::uint32_t duration_ns = 0;  // of the recorded call, 0 where unknown; saturates
  std::uint32_t thread = 0;       // small number a thread
  std::uint32_t stack = 0;        // call-stack id, 0 for none
  std::int32_t status = 0;        // the recorded call's result (CUresult), 0 success
  std::uint16_t device = 0;
  action what{};
  kind of{};

  friend bool operator==(const event&, const event&) = default;
};

}  // namespace millpond::trace
