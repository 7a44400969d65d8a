// Resources in front of another one, which must live as long:
//
//   guard_resource       knows every pointer: wrong frees are refused with both places named
//   limit_resource       a hard limit on the bytes that a part of a program may have out at once
//   statistics_resource  counts what goes through: live, peak, totals, a histogram by size
//   trace_resource       makes a trace::event of every allocation and free
//
// All are thread-safe and may stand in front of each other.
#pragma once
#include "millpond/detail/language.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "millpond/detail/pointer_registry.hpp"
#include "millpond/detail/resource_adaptor.hpp"
#include "millpond/trace/trace_event.hpp"

namespace millpond {

class block_sizes;

struct guard_options {
  // Names the upstream in messages: "pool" gives "pool.allocate" and "pool.deallocate". Default:
  // "guarded" and the kind.
  std::string name = {};
  // Freed blocks up to so many bytes are kept back, oldest given on first, so that their addresses
  // do not come again soon and a late second free is known for what it is. An event is recorded
  // behind each such free (0.3 us), and the block goes on behind it on a stream of the guard's own,
  // or on its own stream where the call that pushes it out names that: a stream may be destroyed,
  // and may capture, after its frees. A free in a capture is its graph's and goes on at once. 0:
  // all go on at once.
  std::uint64_t quarantine_bytes = 0;
};

// Blocks of the upstream are recorded in the registry with the call site of their allocation, and
// each free is checked there before the upstream sees it: wrong kind, double free, foreign and
// interior pointer, wrong size; the error names both calls and both call sites and the block stays
// allocated. See pointer_registry.hpp. Give it the registry of the other resources on the same
// driver. Blocks that outlive the guard are reported to the registry's leak sink and given back to
// the upstream, after a wait for the device. Costs some tens of nanoseconds a call.
class guard_resource final : public resource_adaptor {
 public:
  guard_resource(memory_resource& upstream, std::shared_ptr<pointer_registry> registry,
                 guard_options options = {});
  ~guard_resource() override;

  [[nodiscard]] const std::shared_ptr<pointer_registry>& registry() const noexcept {
    return registry_;
  }
  [[nodiscard]] std::vector<block_facts> live_blocks() const { return registry_->live(owner_); }
  [[nodiscard]] leak_report leaks() const { return registry_->report(owner_); }

  // Gives every block in quarantine back to the upstream. One that it refuses is reported to the
  // error sink and stays, to be tried again.
  void flush() noexcept;
  [[nodiscard]] std::uint64_t quarantined_bytes() const;

 private:
  struct quarantine;
  struct kept_back;
  struct named_stream {  // by the call that runs: alive, and not capturing
    stream_handle stream = nullptr;
    std::uint64_t id = 0;  // 0: none is named
  };
  result<void*> do_allocate(std::uint64_t bytes, std::uint64_t alignment,
                            stream_handle stream) override;
  result<void> do_deallocate(void* ptr, std::uint64_t bytes,
                             stream_handle stream) noexcept override;
  [[nodiscard]] bool fence(kept_back& of) noexcept;
  [[nodiscard]] call_result choose_stream(const kept_back& of, named_stream now,
                                          stream_handle* out) noexcept;
  void give_on(std::uint64_t keep_bytes, named_stream now) noexcept;
  void give_leaks(const std::vector<block_facts>& leaked) noexcept;

  std::shared_ptr<pointer_registry> registry_;
  const block_owner* owner_;
  std::unique_ptr<quarantine> quarantine_;
};

// The bytes counted are those asked for. Precise under threads: an allocation fails only where the
// bytes live and being allocated at that moment leave no room for it, and the limit is never
// passed, not for an instant. Lock-free with free_sizes::reported. Errors:
// out_of_memory with limit, live and asked; the upstream's.
class limit_resource final : public resource_adaptor {
 public:
  limit_resource(memory_resource& upstream, std::uint64_t limit_bytes,
                 free_sizes sizes = free_sizes::remembered);
  ~limit_resource() override;

  [[nodiscard]] std::uint64_t limit_bytes() const noexcept {
    return limit_.load(std::memory_order_relaxed);
  }
  // Below what is live now is legal: nothing is taken away, and allocations fail until enough is
  // freed.
  void set_limit_bytes(std::uint64_t bytes) noexcept {
    limit_.store(bytes, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t live_bytes() const noexcept {
    return live_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t refused() const noexcept {
    return refused_.load(std::memory_order_relaxed);
  }

 private:
  result<void*> do_allocate(std::uint64_t bytes, std::uint64_t alignment,
                            stream_handle stream) override;
  result<void> do_deallocate(void* ptr, std::uint64_t bytes,
                             stream_handle stream) noexcept override;

  // Counts alone: they publish nothing.
  std::atomic<std::uint64_t> limit_;
  std::atomic<std::uint64_t> live_{0};
  std::atomic<std::uint64_t> refused_{0};
  std::unique_ptr<block_sizes> sizes_;  // nullptr where sizes are reported
};

struct allocation_statistics {
  std::uint64_t live_bytes = 0;  // as asked for
  std::uint64_t live_blocks = 0;
  std::uint64_t peak_live_bytes = 0;  // exact
  std::uint64_t allocations = 0;      // that succeeded
  std::uint64_t deallocations = 0;
  std::uint64_t allocated_bytes = 0;  // ever
  std::uint64_t failed_allocations = 0;
  std::uint64_t failed_deallocations = 0;
  struct size_class {
    std::uint64_t from_bytes = 0;  // inclusive; a power of two
    std::uint64_t to_bytes = 0;    // exclusive
    std::uint64_t allocations = 0;
    std::uint64_t live_blocks = 0;
  };
  std::vector<size_class> classes = {};  // those ever used, by rising size
  // A table for people, a line a class.
  [[nodiscard]] std::string text() const;
};

// Threads count on cache lines of their own, but for the live bytes: an exact peak
// needs one number that all agree on. The numbers are exact when no call is in flight.
class statistics_resource final : public resource_adaptor {
 public:
  explicit statistics_resource(memory_resource& upstream,
                               free_sizes sizes = free_sizes::remembered);
  ~statistics_resource() override;

  [[nodiscard]] allocation_statistics statistics() const;
  // The peak from now on; everything else goes on counting.
  void reset_peak() noexcept;

 private:
  static constexpr std::size_t class_count = 61;  // floor(log2(bytes)) up to max_bytes
  static constexpr std::size_t stripe_count = 16;

  // Counts alone: they publish nothing. A free may be counted on another stripe than its
  // allocation, so differences are taken of the sums.
  struct alignas(64) stripe {
    std::atomic<std::uint64_t> allocated_bytes{0};
    std::atomic<std::uint64_t> failed_allocations{0}, failed_deallocations{0};
    std::array<std::atomic<std::uint64_t>, class_count> allocations{}, deallocations{};
  };

  result<void*> do_allocate(std::uint64_t bytes, std::uint64_t alignment,
                            stream_handle stream) override;
  result<void> do_deallocate(void* ptr, std::uint64_t bytes,
                             stream_handle stream) noexcept override;
  [[nodiscard]] stripe& mine() noexcept;

  std::unique_ptr<stripe[]> stripes_;
  alignas(64) std::atomic<std::uint64_t> live_bytes_{0};
  std::atomic<std::uint64_t> peak_live_bytes_{0};
  alignas(64) std::unique_ptr<block_sizes> sizes_;  // nullptr where sizes are reported
};

struct trace_options {
  // Host time in nanoseconds from the start of the recording. Never decreases on one thread.
  // Without one all times and durations are 0.
  std::function<std::uint64_t()> clock = {};
  // The calling thread's number in the trace. Default: small numbers in the order of the first
  // call.
  std::function<std::uint32_t()> thread = {};
  std::uint64_t first_sequence = 0;
};

// The sink is called on the thread that allocates or frees, with no lock held, by several threads
// at once; it must not throw and not call this resource. `sequence` is the order in the program: a
// free has its number from before the block goes back, an allocation from after it came, so that by
// sequence no address is live twice. Threads may bring their events out of that order; one thread's
// come in it. Failed calls are events too, with their CUresult in `status`. Streams are named by
// their identity (whether it captures and cuStreamGetId, 0.06 us), the default stream is 0. A
// stream that captures cannot be asked: it is named as its handle's stream was outside, and where
// that was never seen here, by a number with the highest bit set, which no identity has.
class trace_resource final : public resource_adaptor {
 public:
  using sink = std::function<void(const trace::event&)>;
  trace_resource(memory_resource& upstream, sink events, trace_options options = {});
  ~trace_resource() override;

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
  [[nodiscard]] std::uint64_t number_of(stream_handle stream) const;

  struct known_streams;
  std::unique_ptr<known_streams> known_;
  sink sink_;
  trace_options options_;
  std::atomic<std::uint64_t> next_;  // a number alone: it publishes nothing
};

}  // namespace millpond
