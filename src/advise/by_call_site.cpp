#include "advise/by_call_site.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "advise/choose.hpp"
#include "driver/usual_costs.hpp"
#include "millpond/base/units.hpp"

namespace millpond::advise {
namespace {

// A place that allocates, frees and allocates again this often asks for a pool.
constexpr std::uint64_t loop_rounds = 8;
// Data up to this size that both sides touch is better reached over the link than moved: a 4 KiB
// control block cost 800 us at the 99th percentile as managed memory and 22 to 30 as mapped pinned
// memory on an H200 (2026-11-30).
constexpr std::uint64_t small_bytes = 64 * KiB;

// One call to allocate and one to free, where the trace has no times.
double usual_pair_ns(const call_site_summary& of) {
  const usual_costs& costs = usual_costs::h200();
  switch (of.of) {
    case trace::kind::device: return costs.device_pair_ns(of.largest_bytes);
    case trace::kind::driver_pool: return costs.emptied_driver_pool_pair_ns;
    case trace::kind::pinned: return costs.pinned_pair_ns(of.largest_bytes);
    case trace::kind::managed: return costs.managed_pair_ns(of.largest_bytes);
    case trace::kind::pageable: return 0;
  }
  return 0;
}

std::vector<std::string> pool_code(const char* resource, const char* name) {
  return {fmt::format("    millpond::{} memory(gpu);", resource),
          fmt::format("    millpond::pool {}(memory);", name),
          fmt::format("    void* ptr = {}.allocate(bytes, stream);", name),
          fmt::format("    {}.deallocate(ptr, bytes, stream);", name)};
}

const replay::outcome* find_outcome(std::span<const replay::outcome> outcomes,
                                    std::string_view strategy) {
  const auto found = std::ranges::find(outcomes, strategy, &replay::outcome::strategy);
  return found == outcomes.end() ? nullptr : &*found;
}

call_site_advice advise_one(const call_site_summary& of, const trace::trace_info& trace,
                            double pair_ns) {
  call_site_advice made;
  made.where = of;
  const std::string_view call = trace.strings.at(of.call);
  made.now = call.empty() ? fmt::format("{} memory", to_string(of.of))
                          : fmt::format("{}, {} memory", call, to_string(of.of));
  made.time_estimated = of.time_ns == 0;
  const double now =
      of.time_ns > 0 ? of.time_ns : usual_pair_ns(of) * static_cast<double>(of.rounds);
  const bool loop = of.rounds >= loop_rounds;
  const auto then = pair_ns * static_cast<double>(of.blocks);
  // Where the calls are not known the blocks are a library's own, out of memory that it holds: no
  // time is promised.
  const bool calls_known = of.call != 0;
  if (of.of == trace::kind::managed) {
    if (of.largest_bytes <= small_bytes && of.touched_by_cpu > 0 && of.used_by_kernels > 0) {
      made.use = "mapped";
      made.why = fmt::format(
          "both sides touch it and it has {} at most: pages of it would go back and forth",
          format_bytes(of.largest_bytes));
      made.code = {"    cudaHostAlloc(&ptr, bytes, cudaHostAllocMapped);  // one address for both"};
    } else if (of.used_by_kernels > 0) {
      made.use = "managed + prefetch";
      const usual_costs& costs = usual_costs::h200();
      made.why = fmt::format(
          "kernels use it: moved ahead of them it comes at {:.0f} GB/s, and by faults at {:.0f}",
          costs.managed_prefetch, costs.managed_fault_in);
      if (of.touched_by_cpu > 0) {
        made.time_now_ns = static_cast<double>(of.bytes) / costs.managed_fault_in;
        made.time_then_ns = static_cast<double>(of.bytes) / costs.managed_prefetch;
      }
      made.time_estimated = true;
      made.code = {
          "    cudaMemLocation there{cudaMemLocationTypeDevice, device};   // before the first "
          "kernel:",
          "    cudaMemPrefetchAsync(ptr, bytes, there, 0, stream);"};
    }
  } else if (loop && of.of == trace::kind::pinned) {
    made.use = "pinned + pool";
    made.why = fmt::format("it is pinned and given back {} times: a pool pins once", of.rounds);
    made.code = pool_code("pinned_resource", "staging");
  } else if (loop && (of.of == trace::kind::device || of.of == trace::kind::driver_pool)) {
    made.use = "device + pool";
    made.why =
        calls_known
            ? fmt::format("it allocates again {} times after its own frees", of.rounds)
            : fmt::format(
                  "it allocates again {} times after its own frees, from a recorded allocator",
                  of.rounds);
    made.code = {"    millpond::pool pool(gpu);", "    void* ptr = pool.allocate(bytes, stream);",
                 "    pool.deallocate(ptr, bytes, stream);"};
  }
  if (made.use.empty()) {
    made.use = "leave";
    made.why = of.rounds == 0 ? "it allocates and keeps"
                              : fmt::format("it allocates again {} times only", of.rounds);
    made.time_estimated = false;
  } else if (made.time_now_ns == 0 && calls_known && loop) {
    made.time_now_ns = now;
    made.time_then_ns = std::min(now, then);
  }
  return made;
}

}  // namespace

whole_advice advise_call_sites(const explanation& of, const trace::trace_info& trace,
                               std::span<const replay::outcome> outcomes,
                               const plan::iterations* repeats) {
  whole_advice made;
  double pair_ns = usual_costs::h200().pool_pair_ns;
  if (!outcomes.empty()) {
    const recommendation taken =
        choose(outcomes, {.program_ns = static_cast<double>(of.what.duration_ns)});
    made.strategy = taken.strategy;
    made.why = taken.why;
    if (const replay::outcome* pool = find_outcome(outcomes, "millpond-pool");
        pool != nullptr && pool->allocate.count() > 0) {
      const double sum = pool->allocate.mean_ns() + pool->free.mean_ns();
      if (sum > 0) pair_ns = sum;
    }
  }
  if (repeats != nullptr && repeats->found.size() >= 3) {
    const auto& planned = repeats->totals[static_cast<std::size_t>(plan::block_fate::planned)];
    std::uint64_t all = 0;
    for (const auto& each : repeats->totals) all += each.bytes;
    if (planned.bytes * 2 > all) {
      made.planned = fmt::format(
          "{} iterations of {} shapes hold {:.0f}% of all bytes between them: fixed offsets are "
          "possible "
          "(`millpond plan {}`), with no allocator in the iteration at all "
          "(millpond::planned_resource)",
          repeats->found.size(), repeats->shapes.size(),
          100 * static_cast<double>(planned.bytes) /
              static_cast<double>(std::max<std::uint64_t>(all, 1)),
          trace.name);
    }
  }
  for (const call_site_summary& each : of.call_sites) {
    if (each.of != trace::kind::pageable)
      made.call_sites.push_back(advise_one(each, trace, pair_ns));
  }
  std::ranges::stable_sort(
      made.call_sites, [](const call_site_advice& a, const call_site_advice& b) {
        const double left = a.time_now_ns - a.time_then_ns, right = b.time_now_ns - b.time_then_ns;
        if (left != right) return left > right;
        return (a.use != "leave") > (b.use != "leave");
      });
  return made;
}

}  // namespace millpond::advise
