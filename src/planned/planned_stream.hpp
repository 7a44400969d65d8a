// A planned stream of the planned resource: records shapes, serves them from the arena, and notices
// deviations.
//
// What makes serving safe. A place of the plan may overlap those of blocks that the recording had
// freed before, and of no other block that is live. So step k may be served when all of its
// `frees_before` are done in this iteration too; `freed_` counts how far, in recorded order, that
// is true. Where the program is later than recorded, the blocks in between that are still live are
// looked at one by one. Blocks that outlive their iteration are `held`, and looked at by every
// allocation until they are freed; one that a capture freed stays so until its graph is gone.
#pragma once
#include <atomic>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/fork.hpp"
#include "base/own_counter.hpp"
#include "millpond/planned/planned_resource.hpp"
#include "planned/planned_shape.hpp"

namespace millpond::detail {

// Graphs that hold addresses of an arena. Shared with them: a graph may outlive the resource.
using pin_count = std::atomic<std::uint64_t>;
using graph_pins = std::shared_ptr<pin_count>;

// One block behind plans. Changed by the planned stream's thread, and only while nothing in it is
// live; frees of other threads ask whether it holds what they free, to refuse them.
struct planned_arena {
  struct block {
    std::byte* at;
    std::uint64_t bytes;
  };
  std::atomic<std::byte*> at{nullptr};
  std::atomic<std::uint64_t> bytes{0};

  [[nodiscard]] bool holds(const void* ptr) const noexcept;
  [[nodiscard]] std::uint64_t size() const noexcept {
    return bytes.load(std::memory_order_relaxed);
  }
  [[nodiscard]] block take() noexcept;
  void put(block of) noexcept;
};

class planned_stream_state {
 public:
  planned_stream_state(planned_resource& owner, stream_handle stream)
      : owner_(owner), stream_(stream) {}
  ~planned_stream_state();
  planned_stream_state(const planned_stream_state&) = delete;
  planned_stream_state& operator=(const planned_stream_state&) = delete;

  void begin(std::uint64_t key);
  void end();
  result<void*> allocate(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t site);
  result<void> deallocate(void* ptr, std::uint64_t bytes) noexcept;

  [[nodiscard]] stream_handle stream() const { return stream_; }
  // From any thread.
  [[nodiscard]] bool in_arena(const void* ptr) const;
  [[nodiscard]] planned_counters counters() const;
  void tell(const error& failure) noexcept { owner_.report(failure); }

 private:
  enum class mode : std::uint8_t { idle, recording, serving, passing };
  enum class state : std::uint8_t { waiting, live, done };
  struct held_range {
    std::byte* at;
    std::uint64_t bytes;       // as asked for
    graph_pins freed_to = {};  // not null: freed in a capture, whose graph may use it still
  };
  // An arena that no longer serves.
  struct former_arena {
    planned_arena::block of;
    graph_pins pins;  // given back when no graph holds it; null: at the end
  };

  [[nodiscard]] result<void*> serve(std::uint32_t step, std::uint64_t alignment);
  [[nodiscard]] result<void*> deviate(std::uint64_t bytes, std::uint64_t alignment,
                                      std::uint64_t site);
  [[nodiscard]] bool is_clear(const planned_step& of) const;
  void advance_freed();
  void remember(planned_shape&& shape);
  [[nodiscard]] bool is_step(std::uint32_t step, std::uint64_t offset) const;
  [[nodiscard]] result<void> free_planned(std::byte* at, std::uint64_t bytes) noexcept;
  [[nodiscard]] result<void*> from_upstream(std::uint64_t bytes, std::uint64_t alignment);
  [[nodiscard]] bool as_begun() noexcept;
  [[nodiscard]] result<void> leave_plan() noexcept;
  void keep_live_blocks();
  [[nodiscard]] result<void> free_held(std::vector<held_range>::iterator held) noexcept;
  [[nodiscard]] bool forked() const noexcept { return fork_count() != born_in_fork_; }

  // planned_arena.cpp: the blocks behind the plans, and what orders their reuse.
  enum class growth : std::uint8_t { done, over_budget, refused };
  [[nodiscard]] growth grow_arena(std::uint64_t bytes);
  void set_aside(planned_arena& of, graph_pins pins);
  void give_back_former();
  [[nodiscard]] bool pin_for_capture(std::uint64_t bytes);
  [[nodiscard]] bool own_work_is_done() noexcept;
  [[nodiscard]] call_result order_the_end(stream_handle* on) noexcept;
  void forget_gone_graphs();
  // Where the stream captures: pins of that capture's graph, for a block outside the graphs' arena.
  [[nodiscard]] result<graph_pins> pin_for_free() noexcept;
  [[nodiscard]] bool ask_capture() noexcept;
  [[nodiscard]] bool stream_is_ready();
  void mark_end() noexcept;

  planned_resource& owner_;
  const stream_handle stream_;
  const std::uint32_t born_in_fork_ = fork_count();
  planned_arena arena_, graph_arena_;
  std::byte* base_ = nullptr;  // of the arena that serves this iteration
  std::vector<former_arena> former_;
  own_counter former_added_, former_removed_;         // bytes; for counters()
  graph_pins pins_ = std::make_shared<pin_count>(0);  // of the graphs' arena
  capture_info capture_;                              // when last asked
  std::uint64_t pinned_capture_ = 0;                  // whose graph has a pin already
  graph_pins freed_to_;                               // of the graph that blocks were freed to last
  std::uint64_t freed_to_capture_ = 0;                // of which capture that is
  std::uint64_t stream_id_ = 0;                       // 0: not asked yet
  event_handle served_ = nullptr;                     // behind the last iteration that served
  bool marked_ = false;                               // served_ was recorded
  std::unordered_map<std::uint64_t, planned_shape> shapes_;
  shape_recorder recorder_;
  mode mode_ = mode::idle;
  std::uint64_t key_ = 0;
  planned_shape* shape_ = nullptr;           // while serving
  std::uint32_t next_ = 0;                   // the step that should come next
  std::uint32_t freed_ = 0;                  // of free_order, all before are done
  std::vector<state> states_;                // by step
  std::vector<std::uint32_t> live_in_slot_;  // by slot: the step served there last
  std::vector<held_range> held_;
  std::uint64_t deviated_ = 0;  // in this iteration
  struct {
    own_counter iterations, recorded, served, upstream, deviations, late_frees, skipped,
        over_budget, stream_waits, forgotten;
  } counts_;
  std::atomic<std::uint64_t> planned_bytes_{0}, lower_bound_bytes_{0};
};

}  // namespace millpond::detail
