// One shape of an iteration: how it is recorded, and the plan it is served from.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "millpond/base/result.hpp"

namespace millpond::detail {

struct planned_step {
  static constexpr std::uint64_t upstream = ~std::uint64_t{0};
  std::uint64_t bytes = 0;
  std::uint64_t site = 0;
  std::uint64_t offset = upstream;  // in the arena; `upstream` where the block is not planned
  std::uint32_t frees_before = 0;   // how many planned frees come before this allocation
  std::uint32_t slot = 0;  // steps with one offset share a slot: at most one of them is live
};

struct planned_shape {
  std::vector<planned_step> steps;         // by order of allocation
  std::vector<std::uint32_t> free_order;   // steps, in the order in which they were freed
  std::vector<std::uint64_t> slot_offset;  // ascending
  std::uint64_t peak = 0;
  std::uint64_t lower_bound = 0;
  std::uint64_t bad_in_a_row = 0;  // iterations that deviated
  std::uint64_t last_begun = 0;    // the per_stream's iteration count then
};

// Notes an iteration's allocations and frees.
class shape_recorder {
 public:
  void allocated(void* ptr, std::uint64_t bytes, std::uint64_t site, bool plannable);
  void freed(void* ptr) noexcept;
  // Plans the blocks that were freed before the end. The recorder is empty afterwards.
  [[nodiscard]] result<planned_shape> finish(std::uint64_t planning_steps);

 private:
  struct note {
    std::uint64_t bytes;
    std::uint64_t site;
    std::uint64_t allocated_at;
    std::uint64_t freed_at;  // 0: not yet
    bool plannable;
  };
  std::vector<note> notes_;
  std::vector<std::uint32_t> free_order_;
  std::unordered_map<void*, std::uint32_t> live_;
  std::uint64_t time_ = 0;
};

}  // namespace millpond::detail
