// Makes a trace::event of every allocation and free that goes through.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>

#include "millpond/resource_adaptor.hpp"
#include "millpond/trace_event.hpp"

namespace millpond {

struct trace_options {
  // Host time in nanoseconds from the start of the recording. Never decreases on one thread.
  // Without one all times and durations are 0.
  std::function<std::uint64_t()> clock;
  // The calling thread's number in the trace. Default: small numbers in the order of the first
  // call.
  std::function<std::uint32_t()> thread;
  std::uint64_t first_sequence = 0;
};

// The sink is called on the thread that allocates or frees, with no lock held, by several threads
// at once; it must not throw and not call this resource. `sequence` is the order in the program: a
// free has its number from before the block goes back, an allocation from after it came, so that by
// sequence no address is live twice. Threads may bring their events out of that order; one thread's
// come in it. Failed calls are events too, with their CUresult in `status`. Streams are named by
// their identity (cuStreamGetId, 0.03 us), the default stream is 0.
class trace_resource final : public resource_adaptor {
 public:
  using sink = std::function<void(const trace::event&)>;
  trace_resource(memory_resource& upstream, sink events, trace_options options = {});

  [[nodiscard]] std::uint64_t events() const noexcept {
    return next_.load(std::memory_order_relaxed) - options_.first_sequence;
  }

 private:
  result<void*> do_allocate(std::uint64_t bytes, std::uint64_t alignment,
                            stream_handle stream) override;
  result<void> do_deallocate(void* ptr, std::uint64_t bytes,
                             stream_handle stream) noexcept override;
  [[nodiscard]] std::uint64_t now() const { return options_.clock ? options_.clock() : 0; }
  [[nodiscard]] trace::event about(trace::action what, std::uint64_t bytes,
                                   stream_handle stream) const;

  sink sink_;
  trace_options options_;
  std::atomic<std::uint64_t> next_;  // a number alone: it publishes nothing
};

}  // namespace millpond
