// Serves a program that repeats itself from a plan: fixed offsets in one block, no allocator at
// all.
//
//   planned_resource memory(pool);
//   planned_stream per_stream = memory.on_stream(stream);
//   for (each request) {
//     per_stream.begin(batch);            // the key of this iteration's shape
//     ... per_stream.allocate(bytes) ... per_stream.deallocate(ptr, bytes) ...
//     per_stream.end();
//   }
//
// The first iteration of each key is recorded while the upstream serves it; at its end its blocks
// are planned. From then on the nth allocation is served from the nth place of the plan when its
// size (and site, where the program gives one) is the recorded one. All shapes of a planned stream
// share one arena as large as the largest plan. A deviation is no error: an allocation that does
// not come next in the plan, and one whose place is still held because the program frees later than
// it did, go to the upstream and are counted.
//
// Captures. A CUDA graph's memory is planned so: run the iteration once, synchronise the stream,
// then begin() and end() it inside the capture. The graph's blocks have fixed addresses in an arena
// that all graphs of the planned stream share and that stays where it is, and serves nothing else,
// until those graphs and all made from them are gone. So graphs of one planned stream are launched
// one after the other: on one stream, or ordered. An iteration begun in a capture with no plan, no
// room or the stream not yet idle is served by the upstream as any allocation in a capture. So is
// the rest of an iteration in which a capture begins or ends; and what a capture frees of a block
// that an iteration outside of it was served keeps its bytes until the graph is gone.
//
// Streams. A planned stream belongs to the stream, not to its handle: when the stream was destroyed
// and a new one has its handle, the arena serves again once the old stream's work up to the last
// end() is done, and the upstream serves until then. Where an iteration was still open, its arena
// is set aside until the resource ends. The resource may end after its streams: it names none of
// them then, and waits for the device where no event tells that an arena's work is done.
#pragma once
#include "millpond/detail/language.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "millpond/detail/resource_adaptor.hpp"

namespace millpond {

struct planned_options {
  std::uint64_t budget_bytes =
      UINT64_MAX;  // of all arenas together; a shape that would pass it stays with the upstream
  std::uint64_t planning_steps = 200'000;  // of the solver, for one shape; some 0.2 s at most
  std::uint64_t relearn_after =
      3;  // iterations in a row that deviated before a shape is recorded again
  std::uint64_t most_shapes =
      1024;  // of a planned stream; past it the shape begun longest ago is forgotten; at least 1
  // Whether each block that the plan serves or takes back asks first if its stream captures still
  // as at begin(): 0.03 us. false: the program promises that captures begin and end between
  // iterations.
  bool asks_each_block = true;
};

// Of one planned stream, or of all. Blocks are counted when allocated.
struct planned_counters {
  std::uint64_t iterations = 0;
  std::uint64_t recorded = 0;  // of them, to learn their shape
  std::uint64_t served = 0;    // blocks from the plan
  std::uint64_t upstream =
      0;  // blocks that the plan leaves to the upstream: they outlive their iteration, ...
  std::uint64_t deviations = 0;   // blocks that were not the plan's next: other size, order or site
  std::uint64_t late_frees = 0;   // blocks whose place was still held
  std::uint64_t skipped = 0;      // places of the plan that the program did not ask for
  std::uint64_t over_budget = 0;  // iterations whose plan did not fit into the budget
  std::uint64_t stream_waits = 0;   // iterations left to the upstream because work had to be seen
                                    // done first: see Captures, Streams
  std::uint64_t forgotten = 0;      // shapes that made room for others
  std::uint64_t arena_bytes = 0;    // now, with those that are kept for graphs or set aside
  std::uint64_t planned_bytes = 0;  // the largest peak of any plan
  std::uint64_t lower_bound_bytes = 0;  // of that plan
};

namespace detail {
class planned_stream_state;
class quiet_stream;
}  // namespace detail

// A stream's part of a planned_resource. A handle: cheap to copy, good while the resource lives. A
// planned stream is used by one thread at a time, in the order of its stream; counters() may be
// asked by any thread at any time. Several streams are independent: each by its own thread, they
// share no lock and no written cache line while they serve. In a forked child every call is
// refused, as by any resource.
class planned_stream {
 public:
  explicit planned_stream(detail::planned_stream_state& state) : state_(&state) {}
  // Starts an iteration whose shape has this key (a batch size, say); ends the one before if it is
  // still open. Asks the driver whether the stream captures and which stream it is: some 0.06 us.
  void begin(std::uint64_t key);
  // Plans what was recorded; records an event behind what was served, outside captures (0.2 us).
  // Blocks still live keep their bytes until they are freed.
  void end();
  // As memory_resource::try_allocate on the planned stream's stream. `site`: any number that tells
  // call sites apart.
  [[nodiscard]] result<void*> try_allocate(std::uint64_t bytes,
                                           std::uint64_t alignment = default_alignment,
                                           std::uint64_t site = 0);
  // The same; throws out_of_memory or memory_error.
  [[nodiscard]] void* allocate(std::uint64_t bytes, std::uint64_t alignment = default_alignment,
                               std::uint64_t site = 0);
  // A block of this planned stream, or of the upstream; bytes: what was asked for, or 0. Errors go
  // to the resource's error sink: double_free, interior_pointer, invalid_argument for a wrong size;
  // the block stays then.
  void deallocate(void* ptr, std::uint64_t bytes) noexcept;
  [[nodiscard]] planned_counters counters() const;

 private:
  detail::planned_stream_state* state_;
};

// As a memory_resource, calls on a stream that has a planned stream go to that planned stream, and
// must come from the thread that uses it; calls on other streams go to the upstream, from any
// thread. Finding the planned stream takes no lock. A planned block is freed on its own stream:
// another stream's free is refused (not_permitted), and the bytes stay held. Blocks of streams must
// be freed, and graphs with planned memory released, before the resource ends.
class planned_resource final : public resource_adaptor {
 public:
  explicit planned_resource(memory_resource& upstream, planned_options options = {});
  ~planned_resource() override;

  // The planned stream of a stream, made at the first call. Thread-safe.
  [[nodiscard]] planned_stream on_stream(stream_handle stream);
  // The sum over the streams, from any thread; a moment's view while streams are in use.
  [[nodiscard]] planned_counters counters() const;

 private:
  friend class detail::planned_stream_state;
  using stream_list = std::vector<detail::planned_stream_state*>;  // by stream handle
  result<void*> do_allocate(std::uint64_t bytes, std::uint64_t alignment,
                            stream_handle stream) override;
  result<void> do_deallocate(void* ptr, std::uint64_t bytes,
                             stream_handle stream) noexcept override;
  [[nodiscard]] detail::planned_stream_state* find(stream_handle stream) const;

  const planned_options options_;
  std::atomic<std::uint64_t> arena_bytes_{0};    // a count against the budget: publishes nothing
  std::unique_ptr<detail::quiet_stream> quiet_;  // for what is freed after its stream
  mutable std::mutex mutex_;  // guards the two lists, held by on_stream() alone; a leaf
  std::vector<std::unique_ptr<detail::planned_stream_state>> streams_;
  std::vector<std::unique_ptr<const stream_list>>
      lists_;  // each one published so far: a reader may still be in it
  std::atomic<const stream_list*> published_{
      nullptr};  // release: the streams that it names are whole
};

}  // namespace millpond
