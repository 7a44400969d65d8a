// An event's operands under their own names: what `object`, `other` and the rest mean for each
// action is decided here and nowhere else. `as_ACTION` reads, `set_operands` writes; a view of an
// event of another action means nothing. Operands that an event has under their own names (address,
// bytes, stream) are not repeated.
#pragma once
#include <cstdint>

#include "trace/event.hpp"

namespace millpond::trace {

// Memory that a peak of GPU memory counts: what kernels are given and the GPU holds while they run.
// Managed memory is in it, all of it: its pages may lie on the host for now, and a kernel brings
// them back. Pinned and pageable memory is the host's.
[[nodiscard]] constexpr bool is_gpu_memory(kind of) noexcept {
  return of == kind::device || of == kind::driver_pool || of == kind::managed;
}
// GPU memory that the CPU cannot touch: each access to it is a call or a kernel that a recording
// may hold, and PyTorch's histories know no other.
[[nodiscard]] constexpr bool is_out_of_the_cpus_reach(kind of) noexcept {
  return of == kind::device || of == kind::driver_pool;
}

struct allocation_operands {
  std::uint32_t call = 0;         // string id of the call's name, 0 where it is not known
  std::uint64_t driver_pool = 0;  // of a stream-ordered call: the driver's pool
};
[[nodiscard]] constexpr allocation_operands as_allocation(const event& of) noexcept {
  return {static_cast<std::uint32_t>(of.object), of.other};
}
// What the device had free, as PyTorch says it of an allocation that failed.
[[nodiscard]] constexpr std::uint64_t free_bytes_at_failure(const event& of) noexcept {
  return of.other;
}
constexpr void set_free_bytes_at_failure(event& of, std::uint64_t bytes) noexcept {
  of.other = bytes;
}

struct free_operands {
  std::uint32_t call = 0;  // as of an allocation
};
[[nodiscard]] constexpr free_operands as_free(const event& of) noexcept {
  return {static_cast<std::uint32_t>(of.object)};
}

struct use_operands {
  use_form form{};
};
[[nodiscard]] constexpr use_operands as_use(const event& of) noexcept {
  return {static_cast<use_form>(of.object)};
}
constexpr void set_operands(event& of, const use_operands& to) noexcept {
  of.object = static_cast<std::uint64_t>(to.form);
}

// Of event_record, event_wait and event_synchronize.
struct cuda_event_operands {
  std::uint64_t cuda_event = 0;
};
[[nodiscard]] constexpr cuda_event_operands as_cuda_event(const event& of) noexcept {
  return {of.object};
}

struct stream_create_operands {
  bool waits_for_default_stream = true;
};
[[nodiscard]] constexpr stream_create_operands as_stream_create(const event& of) noexcept {
  return {of.object != 1};
}

struct copy_operands {
  std::uint64_t to = 0, from = 0;
  copy_direction direction{};
  bool asynchronous = false;  // the call promises to return before the copy is done
};
[[nodiscard]] constexpr copy_operands as_copy(const event& of) noexcept {
  return {of.address, of.other, static_cast<copy_direction>(of.object & 0xff),
          (of.object & copy_asynchronous) != 0};
}
constexpr void set_operands(event& of, const copy_operands& to) noexcept {
  of.address = to.to;
  of.other = to.from;
  of.object = static_cast<std::uint64_t>(to.direction) | (to.asynchronous ? copy_asynchronous : 0);
}

struct kernel_operands {
  std::uint32_t name = 0;  // string id
  std::uint64_t uses = 0;  // how many `use` events that follow are its blocks
};
[[nodiscard]] constexpr kernel_operands as_kernel(const event& of) noexcept {
  return {static_cast<std::uint32_t>(of.object), of.other};
}
constexpr void set_operands(event& of, const kernel_operands& to) noexcept {
  of.object = to.name;
  of.other = to.uses;
}

// Which side a prefetch or an advice is for.
enum class page_side : std::uint8_t { device = 0, host = 1 };

struct prefetch_operands {
  page_side to{};
};
[[nodiscard]] constexpr prefetch_operands as_prefetch(const event& of) noexcept {
  return {static_cast<page_side>(of.other)};
}
constexpr void set_operands(event& of, const prefetch_operands& to) noexcept {
  of.other = static_cast<std::uint64_t>(to.to);
}

// Numbers of CUmem_advise, which recordings keep; others may come.
enum class memory_advice : std::uint64_t {
  set_read_mostly = 1,
  unset_read_mostly = 2,
  set_preferred = 3,
  unset_preferred = 4,
};
struct advice_operands {
  memory_advice advice{};
  page_side side{};
};
[[nodiscard]] constexpr advice_operands as_advice(const event& of) noexcept {
  return {static_cast<memory_advice>(of.other), static_cast<page_side>(of.object)};
}
constexpr void set_operands(event& of, const advice_operands& to) noexcept {
  of.other = static_cast<std::uint64_t>(to.advice);
  of.object = static_cast<std::uint64_t>(to.side);
}

// Of capture_begin.
struct capture_operands {
  std::uint64_t capture = 0;
};
[[nodiscard]] constexpr capture_operands as_capture(const event& of) noexcept {
  return {of.object};
}

// Of capture_end (0: the capture failed), graph_launch and graph_destroy.
struct graph_operands {
  std::uint64_t graph = 0;
};
[[nodiscard]] constexpr graph_operands as_graph(const event& of) noexcept {
  return {of.object};
}

struct mark_operands {
  std::uint32_t text = 0;    // string id
  std::uint64_t amount = 0;  // what the program adds to it: how many requests, how many tokens
};
[[nodiscard]] constexpr mark_operands as_mark(const event& of) noexcept {
  return {static_cast<std::uint32_t>(of.object), of.other};
}
constexpr void set_operands(event& of, const mark_operands& to) noexcept {
  of.object = to.text;
  of.other = to.amount;
}

struct pool_set_operands {
  std::uint64_t driver_pool = 0;
  pool_attribute attribute{};
  std::uint64_t value = 0;
};
[[nodiscard]] constexpr pool_set_operands as_pool_set(const event& of) noexcept {
  return {of.address, static_cast<pool_attribute>(of.object), of.other};
}
constexpr void set_operands(event& of, const pool_set_operands& to) noexcept {
  of.address = to.driver_pool;
  of.object = static_cast<std::uint64_t>(to.attribute);
  of.other = to.value;
}

// Why pages moved: CUPTI's numbers (CUpti_ActivityUnifiedMemoryMigrationCause), which recordings
// keep. Beside a prefetch of the program's there are faults, the driver's guesses, room for other
// blocks and access counters.
enum class page_cause : std::uint64_t { unknown = 0, program = 1 };
struct pages_operands {
  page_change change{};
  page_cause cause{};
};
[[nodiscard]] constexpr pages_operands as_pages(const event& of) noexcept {
  return {static_cast<page_change>(of.object), static_cast<page_cause>(of.other)};
}
constexpr void set_operands(event& of, const pages_operands& to) noexcept {
  of.object = static_cast<std::uint64_t>(to.change);
  of.other = static_cast<std::uint64_t>(to.cause);
}

// The string id of the name that an event carries: a call's, a kernel's, a mark's text. 0 for the
// actions that have none, and where it is not known.
[[nodiscard]] constexpr std::uint32_t name_of(const event& of) noexcept {
  switch (of.what) {
    case action::allocate: return as_allocation(of).call;
    case action::free: return as_free(of).call;
    case action::kernel: return as_kernel(of).name;
    case action::mark: return as_mark(of).text;
    default: return 0;
  }
}

}  // namespace millpond::trace
