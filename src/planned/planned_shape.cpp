#include "planned/planned_shape.hpp"

#include <algorithm>

#include "base/bits.hpp"
#include "millpond/memory/memory_resource.hpp"
#include "plan/solve.hpp"

namespace millpond::detail {

void shape_recorder::allocated(void* ptr, std::uint64_t bytes, std::uint64_t site, bool plannable) {
  live_[ptr] = static_cast<std::uint32_t>(notes_.size());
  notes_.push_back({bytes, site, time_++, 0, plannable});
}

void shape_recorder::freed(void* ptr) noexcept {
  const auto at = live_.find(ptr);
  if (at == live_.end()) return;  // from before the iteration
  notes_[at->second].freed_at = time_++;
  free_order_.push_back(at->second);
  live_.erase(at);
}

result<planned_shape> shape_recorder::finish(std::uint64_t planning_steps) {
  planned_shape out;
  plan::problem instance;
  std::vector<std::uint32_t> step_of;  // by buffer
  for (const note& n : notes_) {
    if (n.plannable && n.freed_at != 0) {
      plan::buffer b;
      b.lower = static_cast<std::int64_t>(n.allocated_at);
      b.upper = static_cast<std::int64_t>(n.freed_at);
      b.size = align_up(n.bytes, default_alignment);  // so that every offset is aligned
      instance.buffers.push_back(std::move(b));
      step_of.push_back(static_cast<std::uint32_t>(out.steps.size()));
    }
    out.steps.push_back({n.bytes, n.site, planned_step::upstream, 0, 0});
  }
  plan::solve_options options;
  options.node_limit = planning_steps;
  const auto solved = plan::solve(instance, options);
  if (!solved) return solved.error();
  out.peak = solved->peak;
  out.lower_bound = solved->lower_bound;
  for (std::size_t k = 0; k < step_of.size(); ++k)
    out.steps[step_of[k]].offset = solved->offsets[k];
  for (const std::uint32_t step : free_order_)
    if (out.steps[step].offset != planned_step::upstream) out.free_order.push_back(step);
  std::uint32_t frees = 0;
  for (std::size_t s = 0; s < out.steps.size(); ++s) {
    while (frees < out.free_order.size() &&
           notes_[out.free_order[frees]].freed_at < notes_[s].allocated_at)
      ++frees;
    out.steps[s].frees_before = frees;
    if (out.steps[s].offset != planned_step::upstream)
      out.slot_offset.push_back(out.steps[s].offset);
  }
  std::sort(out.slot_offset.begin(), out.slot_offset.end());
  out.slot_offset.erase(std::unique(out.slot_offset.begin(), out.slot_offset.end()),
                        out.slot_offset.end());
  for (planned_step& s : out.steps) {
    if (s.offset == planned_step::upstream) continue;
    const auto at = std::lower_bound(out.slot_offset.begin(), out.slot_offset.end(), s.offset);
    s.slot = static_cast<std::uint32_t>(at - out.slot_offset.begin());
  }
  *this = {};
  return out;
}

}  // namespace millpond::detail
