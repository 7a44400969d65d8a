#include "advise/by_call_site.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "advise/choose.hpp"
#include "advise/prices.hpp"
#include "driver/usual_costs.hpp"
#include "millpond/base/units.hpp"

namespace millpond::advise {
namespace {

// A place that allocates, frees and allocates again this often asks for a pool.
constexpr std::uint64_t loop_rounds = 8;
std::vector<std::string> pool_code(const char* resource, const char* name) {
  return {fmt::format("    millpond::{} memory(gpu);", resource),
          fmt::format("    millpond::pool {}(memory);", name),
          fmt::format("    void* ptr = {}.allocate(bytes, stream);", name),
          fmt::format("    {}.deallocate(ptr, bytes, stream);", name)};
}

void advise_managed(call_site_advice& made, const call_site_summary& of) {
  if (of.used_by_kernels == 0) return;
  if (of.largest_bytes <= prices::small_bytes && of.touched_by_cpu > 0) {
    made.use = "mapped";
    made.why = fmt::format(
        "both sides touch it and it has {} at most: pages of it would go back and forth",
        format_bytes(of.largest_bytes));
    made.code = {"    cudaHostAlloc(&ptr, bytes, cudaHostAllocMapped);  // one address for both"};
    return;
  }
  made.use = "managed + prefetch";
  const usual_costs& costs = usual_costs::h200();
  made.why = fmt::format(
      "kernels use it: moved ahead of them it comes at {:.0f} GB/s, and by faults at {:.0f}",
      costs.managed_prefetch, costs.managed_fault_in);
  made.code = {
      "    cudaMemLocation there{cudaMemLocationTypeDevice, device};   // before the first kernel:",
      "    cudaMemPrefetchAsync(ptr, bytes, there, 0, stream);"};
  if (of.touched_by_cpu == 0 || of.loss_ns > 0) return;
  made.time_now_ns = prices::faulted_ns(of.bytes, 0);
  made.time_then_ns = prices::prefetched_ns(of.bytes);
  made.time_estimated = true;
}

// A driver's pool that gives its memory back needs a threshold, and no other pool; one that keeps
// it is fast.
void advise_driver_pool(call_site_advice& made, const call_site_summary& of) {
  if (of.loss_ns == 0 || of.loses_by != flaw::pool_gives_back) return;
  made.use = "driver pool, kept";
  made.why =
      "the pool gives its memory back at each synchronise and fetches it again: with a release "
      "threshold it keeps it";
  made.code = {"    uint64_t keep = UINT64_MAX;  // once, after the pool is made:",
               "    cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep);"};
}

void advise_pool(call_site_advice& made, const call_site_summary& of, bool calls_known) {
  // Where the calls are not known the blocks are a library's own, out of memory that it holds: no
  // time is promised.
  const bool loses = of.loss_ns > 0;
  if (calls_known ? !loses : of.rounds < loop_rounds) return;
  if (of.of == trace::kind::pinned) {
    made.use = "pinned + pool";
    made.why = fmt::format("{} blocks are pinned and given back: a pool pins once", of.blocks);
    made.code = pool_code("pinned_resource", "staging");
    return;
  }
  made.use = "device + pool";
  made.why = fmt::format("it allocates again {} times after its own frees{}", of.rounds,
                         calls_known ? "" : ", from a recorded allocator");
  made.code = {"    millpond::pool pool(gpu);", "    void* ptr = pool.allocate(bytes, stream);",
               "    pool.deallocate(ptr, bytes, stream);"};
}

// The times are those of the finding about the place: one number for one thing.
call_site_advice advise_one(const call_site_summary& of, const trace::trace_info& trace) {
  call_site_advice made;
  made.where = of;
  const std::string_view call = trace.strings.at(of.call);
  made.now = call.empty() ? fmt::format("{} memory", to_string(of.of))
                          : fmt::format("{}, {} memory", call, to_string(of.of));
  const bool calls_known = of.call != 0;
  switch (of.of) {
    case trace::kind::managed: advise_managed(made, of); break;
    case trace::kind::driver_pool:
      if (calls_known)
        advise_driver_pool(made, of);
      else
        advise_pool(made, of, false);
      break;
    case trace::kind::device:
    case trace::kind::pinned: advise_pool(made, of, calls_known); break;
    case trace::kind::pageable: break;
  }
  if (made.use.empty()) {
    made.use = "leave";
    made.why = of.rounds == 0 ? "it allocates and keeps"
                              : fmt::format(
                                    "it allocates again {} times, and loses nothing worth "
                                    "a change",
                                    of.rounds);
    return made;
  }
  if (of.loss_ns > 0) {
    made.time_now_ns = of.loss_ns;
    made.time_then_ns = std::min(of.loss_ns, of.loss_after_ns);
    made.time_estimated = of.loss_estimated;
  }
  return made;
}

}  // namespace

whole_advice advise_call_sites(const explanation& of, const trace::trace_info& trace,
                               std::span<const replay::outcome> outcomes,
                               const plan::iterations* repeats) {
  whole_advice made;
  if (!outcomes.empty()) {
    const recommendation taken =
        choose(outcomes, {.program_ns = static_cast<double>(of.what.duration_ns)});
    made.strategy = taken.strategy;
    made.why = taken.why;
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
    if (each.of != trace::kind::pageable) made.call_sites.push_back(advise_one(each, trace));
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
