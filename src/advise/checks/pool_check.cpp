#include "advise/checks/pool_check.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "advise/prices.hpp"
#include "advise/recorded_part.hpp"
#include "base/bits.hpp"
#include "driver/usual_costs.hpp"
#include "millpond/base/units.hpp"
#include "trace/event_views.hpp"

namespace millpond::advise {
namespace {

std::uint64_t in_steps(std::uint64_t bytes) {
  const std::uint64_t step = usual_costs::h200().driver_pool_step_bytes;
  return (bytes + step - 1) / step * step;
}

}  // namespace

void pool_check::allocated(const trace::event& at, std::uint32_t index, std::uint32_t block) {
  if (at.of != trace::kind::driver_pool) return;
  pool& mine = pools_[trace::as_allocation(at).driver_pool];
  pool_of_[block] = trace::as_allocation(at).driver_pool;
  mine.device = at.device;
  mine.live += at.bytes;
  if (mine.live > mine.reserved) grows(mine, at, index, block);
}

void pool_check::grows(pool& mine, const trace::event& at, std::uint32_t index,
                       std::uint32_t block) {
  const std::uint64_t grown = in_steps(mine.live);
  if (grown <= mine.peak_reserved) {
    const bool timed = at.duration_ns != 0;
    const double cost = timed ? at.duration_ns : prices::pool_refill_ns(grown - mine.reserved);
    ++mine.refills;
    mine.refilled_bytes += grown - mine.reserved;
    mine.refill_ns += cost;
    mine.estimated = mine.estimated || !timed;
    site_refills& site = by_site_[of_.book.blocks()[block].site];
    ++site.count;
    site.ns += cost;
    site.after_ns += usual_costs::h200().kept_driver_pool_allocation_ns;
    site.estimated = site.estimated || !timed;
    if (mine.first == no_index) {
      mine.first = index;
      mine.stack = at.stack;
      mine.call = trace::as_allocation(at).call;
    }
    mine.last = index;
  }
  mine.reserved = grown;
  mine.peak_reserved = std::max(mine.peak_reserved, grown);
}

void pool_check::freed(std::uint32_t block) {
  const auto found = pool_of_.find(block);
  if (found == pool_of_.end()) return;
  pools_[found->second].live -= of_.book.blocks()[block].bytes;
  pool_of_.erase(found);
}

void pool_check::set(const trace::event& at) {
  const trace::pool_set_operands set = trace::as_pool_set(at);
  if (set.attribute == trace::pool_attribute::release_threshold)
    pools_[set.driver_pool].threshold = set.value;
}

void pool_check::synchronised(std::uint16_t device) {
  for (auto& [handle, mine] : pools_) {
    if (mine.device != device) continue;
    mine.reserved = std::min(mine.reserved, std::max(in_steps(mine.live), mine.threshold));
  }
}

void pool_check::finish() {
  // A threshold that was set unseen would make all of it false.
  const recorded_part part = part_of(of_.info.meta);
  bool any = false;
  for (const auto& [handle, mine] : pools_) {
    if (mine.refills < of_.options.loop_rounds || mine.first == no_index) continue;
    const double after =
        static_cast<double>(mine.refills) * usual_costs::h200().kept_driver_pool_allocation_ns;
    // Times that were recorded say whether the driver was asked at all.
    if (mine.refill_ns - after < of_.options.least_ns) continue;
    if ((part.gaps || part.window) && mine.estimated) continue;
    any = true;
    auto [made, is_new] = of_.found.add(flaw::pool_gives_back, handle, 0, mine.first, mine.refills);
    made.time_estimated = made.time_estimated || mine.estimated;
    made.time_ns += mine.refill_ns;
    made.time_after_ns += after;
    made.events.push_back(mine.last);
    made.summary = fmt::format(
        "The driver pool keeps {} over a synchronise{}, so that {} allocations had to fetch memory "
        "from the driver again "
        "that the pool had had before ({} in all): {}{} in these calls.",
        mine.threshold == 0 ? "nothing" : format_bytes(mine.threshold),
        mine.threshold == 0 ? " (its release threshold is 0, the default)" : "", mine.refills,
        format_bytes(mine.refilled_bytes), mine.estimated ? "about " : "",
        format_duration(mine.refill_ns));
    block_facts block;
    block.stack = mine.stack;
    block.call = mine.call;
    block.of = trace::kind::driver_pool;
    of_.place_allocation(made, block);
    made.seen =
        "seen: allocations, frees and synchronises; what the pool holds is worked out from them, "
        "in the driver's steps of " +
        format_bytes(usual_costs::h200().driver_pool_step_bytes);
    made.remedy = {
        "Let the pool keep what it has; once, after it is made:", "    uint64_t keep = UINT64_MAX;",
        "    cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep);"};
  }
  if (!any) return;
  for (const auto& [site, refills] : by_site_) {
    if (refills.count >= of_.options.loop_rounds)
      of_.book.sites()[site].loses(flaw::pool_gives_back, refills.ns, refills.after_ns,
                                   refills.estimated);
  }
}

}  // namespace millpond::advise
