#include "millpond/memory/adaptors.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <mutex>

#include "base/brief_mutex.hpp"
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

// What streams were outside captures, by their handles; where two share a place, the later one.
struct trace_resource::known_streams {
  struct entry {
    std::atomic<std::uint64_t> key{0}, id{0};
  };
  static constexpr unsigned bits = 10;
  std::array<entry, std::size_t{1} << bits> entries;
  brief_mutex writing;  // a leaf: over what is kept changing, and over reading it whole

  entry& at(std::uint64_t key) noexcept {
    return entries[(key * 0x9e3779b97f4a7c15ULL) >> (64 - bits)];
  }
  void keep(std::uint64_t key, std::uint64_t id) noexcept {
    entry& of = at(key);
    // Nearly always so, and then no line is written that threads share.
    if (of.key.load(std::memory_order_relaxed) == key &&
        of.id.load(std::memory_order_relaxed) == id)
      return;
    const std::lock_guard lock(writing);
    of.key.store(key, std::memory_order_relaxed);
    of.id.store(id, std::memory_order_relaxed);
  }
  // 0: not known.
  std::uint64_t find(std::uint64_t key) noexcept {
    const entry& of = at(key);
    const std::lock_guard lock(writing);
    return of.key.load(std::memory_order_relaxed) == key ? of.id.load(std::memory_order_relaxed)
                                                         : 0;
  }
};

trace_resource::trace_resource(memory_resource& upstream, sink events, trace_options options)
    : resource_adaptor(upstream),
      known_(std::make_unique<known_streams>()),
      sink_(std::move(events)),
      options_(std::move(options)),
      next_(options_.first_sequence) {}

trace_resource::~trace_resource() = default;

// The capture is asked for first: asking a capturing stream for its identity ends its capture.
std::uint64_t trace_resource::number_of(stream_handle stream) const {
  if (stream == nullptr) return 0;
  const auto handle = reinterpret_cast<std::uint64_t>(stream);
  if (gpu() == nullptr) return handle;
  constexpr std::uint64_t unseen = std::uint64_t{1} << 63;
  // The per-thread stream is another one on each thread.
  const std::uint64_t key = stream == per_thread_stream ? unseen | thread_number() : handle;
  std::uint64_t id = 0;
  capture_info capture;
  if (gpu()->id_outside_capture(stream, &id) ||
      (gpu()->stream_capture(stream, &capture).status == driver_status::invalid_context &&
       gpu()->bind_thread().ok() && gpu()->id_outside_capture(stream, &id))) {
    known_->keep(key, id);
    return id;
  }
  const std::uint64_t before = known_->find(key);
  return before != 0 ? before : unseen | key;
}

trace::event trace_resource::about(trace::action what, std::uint64_t bytes,
                                   stream_handle stream) const {
  trace::event made;
  made.what = what;
  made.of = static_cast<trace::kind>(kind());
  made.bytes = bytes;
  made.stream = number_of(stream);
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
