#include "millpond/memory/adaptors.hpp"

#include <algorithm>
#include <limits>

#include "base/thread_number.hpp"

namespace millpond {
namespace {

static_assert(static_cast<int>(memory_kind::device) == static_cast<int>(trace::kind::device));
static_assert(static_cast<int>(memory_kind::driver_pool) ==
              static_cast<int>(trace::kind::driver_pool));
static_assert(static_cast<int>(memory_kind::pinned) == static_cast<int>(trace::kind::pinned));
static_assert(static_cast<int>(memory_kind::managed) == static_cast<int>(trace::kind::managed));
static_assert(static_cast<int>(memory_kind::pageable) == static_cast<int>(trace::kind::pageable));

std::uint32_t saturated(std::uint64_t value) noexcept {
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(value, std::numeric_limits<std::uint32_t>::max()));
}

// The recorded call's CUresult, as far as our own error codes keep it.
std::int32_t status_of(error_code code) noexcept {
  switch (code) {
    case error_code::out_of_memory: return static_cast<std::int32_t>(driver_status::out_of_memory);
    case error_code::not_supported: return static_cast<std::int32_t>(driver_status::not_supported);
    case error_code::not_permitted: return static_cast<std::int32_t>(driver_status::not_permitted);
    case error_code::driver_failure: return static_cast<std::int32_t>(driver_status::unknown);
    default: return static_cast<std::int32_t>(driver_status::invalid_value);
  }
}

}  // namespace

trace_resource::trace_resource(memory_resource& upstream, sink events, trace_options options)
    : resource_adaptor(upstream),
      sink_(std::move(events)),
      options_(std::move(options)),
      next_(options_.first_sequence) {}

trace::event trace_resource::about(trace::action what, std::uint64_t bytes,
                                   stream_handle stream) const {
  trace::event made;
  made.what = what;
  made.of = static_cast<trace::kind>(kind());
  made.bytes = bytes;
  if (stream != nullptr) {
    made.stream = reinterpret_cast<std::uint64_t>(stream);
    std::uint64_t id = 0;
    if (gpu() != nullptr && gpu()->stream_id(stream, &id).ok()) made.stream = id;
  }
  made.thread = options_.thread ? options_.thread() : thread_number();
  if (gpu() != nullptr) made.device = static_cast<std::uint16_t>(gpu()->info().ordinal);
  made.time_ns = now();
  return made;
}

result<void*> trace_resource::do_allocate(std::uint64_t bytes, std::uint64_t alignment,
                                          stream_handle stream) {
  trace::event made = about(trace::action::allocate, bytes, stream);
  auto answer = upstream().try_allocate(bytes, alignment, stream);
  made.duration_ns = saturated(now() - made.time_ns);
  if (answer) {
    made.address = reinterpret_cast<std::uint64_t>(*answer);
  } else {
    made.status = status_of(answer.error().code);
  }
  made.sequence = next_.fetch_add(1, std::memory_order_relaxed);
  sink_(made);
  return answer;
}

result<void> trace_resource::do_deallocate(void* ptr, std::uint64_t bytes,
                                           stream_handle stream) noexcept {
  trace::event made = about(trace::action::free, bytes, stream);
  made.address = reinterpret_cast<std::uint64_t>(ptr);
  made.sequence = next_.fetch_add(1, std::memory_order_relaxed);
  auto answer = upstream().try_deallocate(ptr, bytes, stream);
  made.duration_ns = saturated(now() - made.time_ns);
  if (!answer) made.status = status_of(answer.error().code);
  sink_(made);
  return answer;
}

}  // namespace millpond
