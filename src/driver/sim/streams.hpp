// Streams, events and the contexts that they are of.
//
// One device has its primary context, those that cuCtxCreate makes, and green ones, which are parts
// of the primary. A context's default streams are its own, and so are its events; whatever asks for
// the current context asks the calling thread's. Memory is of the device: which context it came
// from makes no difference here.
#pragma once
#include <cstdint>
#include <map>
#include <memory>

#include "driver/sim/capture.hpp"
#include "driver/sim/checker.hpp"
#include "driver/sim/clocks.hpp"

namespace millpond::sim {

struct context_record;

struct stream_record {
  timeline line;             // its number is the stream's id
  std::uint64_t end_ns = 0;  // of the last work queued
  bool blocking = false;     // waits for its context's legacy stream and is waited for by it
  context_record* context = nullptr;
  capture_record* capture = nullptr;
  capture_branch* branch = nullptr;
  [[nodiscard]] timeline& current() noexcept { return branch != nullptr ? branch->line : line; }
  [[nodiscard]] stream_name name() const noexcept {
    return {line.number, capture != nullptr ? capture->id : 0};
  }
};

struct event_record {
  std::uint64_t complete_ns = 0;  // 0 when never recorded: complete
  vector_clock clock;
  std::uint64_t capture_id = 0;  // recorded in a capture: only that capture can wait for it
  std::uint64_t offset_ns = 0;
  const context_record* context = nullptr;  // a green one's are its primary's
};

struct context_record {
  std::uint64_t number = 0;           // of its timelines
  context_record* primary = nullptr;  // whose part a green context is
  bool destroyed = false;
  stream_record legacy;
  std::map<std::uint64_t, std::unique_ptr<stream_record>> thread_streams;
  std::uint64_t end_ns = 0;  // of all work ever queued in it, destroyed streams' too

  // Whose events its streams take.
  [[nodiscard]] const context_record* family() const noexcept {
    return primary != nullptr ? primary : this;
  }
  // What asks for this context's work asks for the other's too: a primary's is its green parts' as
  // well.
  [[nodiscard]] bool covers(const context_record& other) const noexcept {
    return &other == this || other.primary == this;
  }
};

}  // namespace millpond::sim
