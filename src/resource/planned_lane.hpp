// A lane of the planned resource: records shapes, serves them from the arena, and notices deviations.
//
// What makes serving safe. A place of the plan may overlap those of blocks that the recording had freed
// before, and of no other block that is live. So step k may be served when all of its `frees_before` are done
// in this iteration too; `freed_` counts how far, in recorded order, that is true. Where the program is later
// than recorded, the blocks in between that are still live are looked at one by one. Blocks that outlive their
// iteration are `held`, and looked at by every allocation until they are freed.
#pragma once
#include <atomic>
#include <memory>
#include <unordered_map>
#include <vector>

#include "millpond/planned_resource.hpp"
#include "resource/planned_shape.hpp"

namespace millpond::detail {

class planned_lane_state {
 public:
  planned_lane_state(planned_resource& owner, stream_handle stream) : owner_(owner), stream_(stream) {}
  ~planned_lane_state();
  planned_lane_state(const planned_lane_state&) = delete;
  planned_lane_state& operator=(const planned_lane_state&) = delete;

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
    std::uint64_t offset;
    std::uint64_t bytes;
  };

  [[nodiscard]] result<void*> serve(std::uint32_t step, std::uint64_t alignment);
  [[nodiscard]] result<void*> deviate(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t site);
  [[nodiscard]] bool is_clear(const planned_step& of) const;
  void advance_freed();
  [[nodiscard]] bool grow_arena(std::uint64_t bytes);
  [[nodiscard]] result<void*> from_upstream(std::uint64_t bytes, std::uint64_t alignment);

  planned_resource& owner_;
  const stream_handle stream_;
  std::atomic<std::byte*> arena_{nullptr};         // both are read by frees of other threads, to refuse them;
  std::atomic<std::uint64_t> arena_bytes_{0};      // they change only while no planned block is live
  std::unordered_map<std::uint64_t, planned_shape> shapes_;
  shape_recorder recorder_;
  mode mode_ = mode::idle;
  std::uint64_t key_ = 0;
  planned_shape* shape_ = nullptr;                 // while serving
  std::uint32_t next_ = 0;                         // the step that should come next
  std::uint32_t freed_ = 0;                        // of free_order, all before are done
  std::vector<state> states_;                      // by step
  std::vector<std::uint32_t> live_in_slot_;        // by slot: the step served there last
  std::vector<held_range> held_;
  std::uint64_t deviated_ = 0;                     // in this iteration
  planned_counters counters_;
};

}  // namespace millpond::detail
