// What a callback writes down: an event in the program's own terms. Names are pointers to text that
// is never freed, streams and graphs are handles, times are ticks of the recorder's clock, and what
// takes a search or a division is left to the thread that reads the notes (trace_builder.hpp).
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "trace/event.hpp"

namespace millpond::record {

enum class note_form : std::uint8_t {
  event,   // `at` with object: `const char*` for allocate, free, kernel and mark; stream: a handle
  launch,  // `kernel`: an event with the first of its arguments, which the reader takes apart
  amend,   // `at.status` and `took` belong to the event noted at position `link`
  arguments,   // of the kernel noted before: `words`
  graph_made,  // at.object: executable graph, at.other: the graph it was made of
  reset,       // every block of at.device is gone
};

// Words among a kernel's arguments that look like addresses of blocks: many to a note, since
// launches are what a program makes most.
struct argument_words {
  static constexpr std::size_t most = 9;
  std::array<std::uint64_t, most> address{};
  std::uint16_t count = 0;
  std::uint16_t structures = 0;  // bit n: address[n] lay inside a larger argument
};

// A kernel with the first of its words: most launches are this one note, of two lines of the cache.
struct kernel_launch {
  static constexpr std::size_t most = 5;
  std::uint64_t time = 0;    // ticks
  std::uint64_t stream = 0;  // handle
  const char* name = nullptr;
  std::uint32_t thread = 0, stack = 0;
  std::int32_t status = 0;
  std::uint16_t device = 0;
  std::uint8_t count = 0;
  std::uint8_t structures = 0;              // as of argument_words
  std::array<std::uint64_t, most> address;  // of `count`; the rest is not written
};
static_assert(sizeof(kernel_launch) <= sizeof(trace::event));

struct note {
  union {
    trace::event at;  // of every form but launch and arguments
    argument_words words;
    kernel_launch kernel;
  };
  std::uint64_t link = 0;  // kernel, launch: how many notes of arguments follow; amend: position
  std::uint64_t took = 0;  // ticks from the call's begin to its end; event, launch, amend
  note_form form = note_form::event;
  bool awaits_amend = false;  // its status and duration come later
  bool in_ns = false;         // at.time_ns and at.duration_ns are nanoseconds already

  note() noexcept : at() {}
};
static_assert(std::is_trivially_copyable_v<note>);

// Handles that stand for default streams (cuda.h: CU_STREAM_LEGACY, CU_STREAM_PER_THREAD).
inline constexpr std::uint64_t legacy_stream = 1, per_thread_stream = 2;

// A duration as an event holds it.
[[nodiscard]] constexpr std::uint32_t saturated(std::uint64_t duration_ns) noexcept {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(duration_ns, UINT32_MAX));
}

[[nodiscard]] inline std::uint64_t text_bits(const char* text) noexcept {
  return reinterpret_cast<std::uint64_t>(text);
}

}  // namespace millpond::record
