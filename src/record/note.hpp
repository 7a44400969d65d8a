// What a callback writes down: an event in the program's own terms. Names are pointers to text that is never freed,
// streams and graphs are handles, and what takes a search is left to the thread that reads the notes (scribe.hpp).
#pragma once
#include <cstdint>

#include "trace/event.hpp"

namespace millpond::record {

enum class note_form : std::uint8_t {
  event,      // `at` with object: `const char*` for allocate, free, kernel and mark; stream: a handle
  amend,      // `at.status` and `at.duration_ns` belong to the event noted at position `link`
  argument,   // of the kernel noted before: at.address, at.object: trace::use_form; `link` counts those left
  graph_made, // at.object: executable graph, at.other: the graph it was made of
  reset,      // every block of at.device is gone
};

struct note {
  trace::event at;
  std::uint64_t link = 0;    // kernel: how many arguments follow; amend: position; see note_form
  note_form form = note_form::event;
  bool awaits_amend = false; // its status and duration come later
};

// Handles that stand for default streams (cuda.h: CU_STREAM_LEGACY, CU_STREAM_PER_THREAD).
inline constexpr std::uint64_t legacy_stream = 1, per_thread_stream = 2;

[[nodiscard]] inline std::uint64_t text_bits(const char* text) noexcept { return reinterpret_cast<std::uint64_t>(text); }

}  // namespace millpond::record
