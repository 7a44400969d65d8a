#include "advise/checks/site_check.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "driver/usual_costs.hpp"
#include "millpond/base/units.hpp"
#include "trace/event_views.hpp"

namespace millpond::advise {
namespace {

// A growing place spreads what it keeps over the whole run: of eight equal parts of the trace at
// least seven have a part of it, and none has over half.
constexpr std::size_t run_parts = 8, parts_with_growth = 7;
constexpr std::uint64_t least_growth_blocks = 16;

std::string size_text(const site_facts& of) {
  return of.smallest_bytes == of.largest_bytes
             ? format_bytes(of.largest_bytes)
             : fmt::format("{} to {}", format_bytes(of.smallest_bytes),
                           format_bytes(of.largest_bytes));
}

block_facts as_block(const site_facts& site) {
  block_facts made;
  made.stack = site.stack;
  made.call = site.call;
  made.of = site.of;
  made.free_stack = site.free_stack;
  return made;
}

std::vector<std::string> keep_it(const site_facts& site) {
  const bool pinned = site.of == trace::kind::pinned;
  std::vector<std::string> lines{
      "Allocate once, at the largest size, and use it again; or take it from a pool that keeps its "
      "memory:"};
  if (pinned) {
    lines.insert(
        lines.end(),
        {"    millpond::pinned_resource pinned(gpu);", "    millpond::pool staging(pinned);",
         fmt::format("    void* ptr = staging.allocate(bytes, stream);   // {} a pair, warm",
                     format_duration(usual_costs::h200().pool_pair_ns)),
         "    staging.deallocate(ptr, bytes, stream);"});
  } else {
    lines.insert(lines.end(),
                 {"    cudaMemPool_t pool; cudaDeviceGetDefaultMemPool(&pool, device);",
                  "    uint64_t keep = UINT64_MAX;", "    // once:",
                  "    cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep);",
                  "    // each time, waiting for nothing:",
                  "    cudaMallocAsync(&ptr, bytes, stream); ... cudaFreeAsync(ptr, stream);",
                  ("With millpond: millpond::pool pool(gpu); pool.allocate(bytes, stream); "
                   "pool.deallocate(ptr, bytes, stream);")});
  }
  return lines;
}

}  // namespace

void site_check::freed(const trace::event& at, std::uint32_t block) {
  const block_facts& of = of_.book.blocks()[block];
  if (trace::as_free(at).call != 0 && free_waits(at.of) && of_.clocks.device_busy(at.device)) {
    ++of_.book.sites()[of.site].busy_frees;
  }
}

void site_check::failed(const trace::event& at, std::uint32_t index) {
  auto [made, is_new] = of_.found.add(
      flaw::failed_allocation, call_site_key(at.stack, trace::as_allocation(at).call), 0, index);
  made.bytes = std::max(made.bytes, at.bytes);
  if (!is_new) return;
  block_facts asked;
  asked.stack = at.stack;
  asked.call = trace::as_allocation(at).call;
  asked.of = at.of;
  made.summary =
      fmt::format("{} asked for {} and got status {}{}; {} were live of what is recorded.",
                  of_.allocate_call(asked), format_bytes(at.bytes), at.status,
                  at.status == trace::cuda_error_out_of_memory ? " (out of memory)" : "",
                  format_bytes(of_.book.live_bytes()));
  of_.place_allocation(made, asked);
  made.remedy = {
      "`millpond compare TRACE` shows how much each strategy reserves for this workload."};
}

double site_check::estimated_ns(const site_facts& site) {
  const usual_costs& costs = usual_costs::h200();
  const double pair_ns = site.of == trace::kind::pinned ? costs.pinned_pair_ns(site.largest_bytes)
                         : site.of == trace::kind::managed
                             ? costs.managed_pair_ns(site.largest_bytes)
                             : costs.device_pair_ns(site.largest_bytes);
  return pair_ns * static_cast<double>(site.rounds);
}

void site_check::repeats(const site_facts& site) {
  if (site.rounds < of_.options.loop_rounds || site.call == 0) return;
  loop_ns_ += site.allocate_ns + site.free_ns - site.slowest_ns;
  if (site.of == trace::kind::driver_pool || site.of == trace::kind::pageable) return;
  const block_facts block = as_block(site);
  const std::string allocate = of_.allocate_call(block);
  const std::string free = of_.free_call(site.free_call, site.of);
  if (!free.starts_with("cudaFree") && !free.starts_with("cuMemFree") &&
      !free.starts_with("cudaHostUnregister") && !free.starts_with("cuMemHostUnregister")) {
    return;
  }
  const bool timed = site.timed_calls > 0;
  const double share = static_cast<double>(site.rounds) / static_cast<double>(site.count);
  const double cost =
      timed ? (site.allocate_ns - site.slowest_ns + site.free_ns) * share : estimated_ns(site);
  const bool stalls = site.busy_frees * 2 >= site.rounds;
  auto [made, is_new] =
      of_.found.add(stalls ? flaw::device_wide_stall : flaw::allocation_churn,
                    call_site_key(site.stack, site.call), site.largest_bytes, site.first_event);
  made.count = site.rounds;
  made.time_ns = cost;
  // What keep_it says first: a pool over pinned memory, or the driver's pool that keeps its own.
  const double pair_after_ns = site.of == trace::kind::pinned
                                   ? usual_costs::h200().pool_pair_ns
                                   : usual_costs::h200().kept_driver_pool_pair_ns;
  made.time_after_ns = pair_after_ns * static_cast<double>(site.rounds);
  made.time_estimated = !timed;
  if (site.first_free_event != no_index) made.events.push_back(site.first_free_event);
  const std::string each =
      timed ? fmt::format("{} a round, {} in all",
                          format_duration(cost / static_cast<double>(site.rounds)),
                          format_duration(cost))
            : fmt::format("about {} in all by the medians of an H200", format_duration(cost));
  if (stalls) {
    made.summary = fmt::format(
        "{} blocks of {} are allocated by {} and given back by {} in a loop, {} times with work "
        "still running: {} waits for the whole device each time, and so does every stream. {}.",
        site.count, size_text(site), allocate, free, site.busy_frees, free, each);
    made.seen =
        "seen: work launched and not waited for when the free was called; the recorded time is the "
        "caller's alone";
  } else {
    made.summary = fmt::format(
        "{} blocks of {} are allocated by {} and given back by {} again and again, {} times right "
        "after one another's free. {}.",
        site.count, size_text(site), allocate, free, site.rounds, each);
  }
  of_.place_allocation(made, block);
  of_.place_free(made, block, free);
  made.remedy = keep_it(site);
}

void site_check::leak(const site_facts& site, std::uint64_t oldest) {
  const block_facts block = as_block(site);
  auto [made, is_new] =
      of_.found.add(flaw::leak, call_site_key(site.stack, site.call), site.largest_bytes, oldest);
  made.count = site.live;
  made.bytes = site.live_bytes;
  // What a place makes a few of and keeps for good does no harm: caches, weights, a library's
  // workspace.
  if (site.live == site.count && site.live < of_.options.loop_rounds) made.how_bad = severity::note;
  made.summary = fmt::format("{}, {} in all, from {} {} not freed when the program ended.",
                             plural(site.live, "block"), format_bytes(site.live_bytes),
                             of_.allocate_call(block), site.live == 1 ? "was" : "were");
  of_.place_allocation(made, block);
  made.seen =
      "seen: every free until the program's end; the driver takes the memory back when the process "
      "is gone";
  made.remedy = {"Free it where its use ends, or give it an owner that does:",
                 fmt::format("    {}(ptr);", of_.right_free(block)),
                 "    auto memory = millpond::buffer(resource, bytes, stream);  // frees itself"};
}

void site_check::growth(const site_facts& site, const std::vector<std::uint32_t>& parts) {
  const block_facts block = as_block(site);
  auto [made, is_new] =
      of_.found.add(flaw::growth_without_end, call_site_key(site.stack, site.call),
                    site.largest_bytes, site.first_event);
  made.count = site.live;
  made.bytes = site.live_bytes;
  std::string shares;
  for (const std::uint32_t each : parts)
    shares += (shares.empty() ? "" : ", ") + std::to_string(each);
  made.summary = fmt::format(
      "{} of the {} blocks from {} are never freed, {} at the end, and they come evenly over the "
      "run "
      "(by eighths of it: {}): a longer run needs more memory.",
      site.live, site.count, of_.allocate_call(block), format_bytes(site.live_bytes), shares);
  of_.place_allocation(made, block);
  made.seen = site.stack == 0 ? "seen: sizes alone; no call stack was recorded, so that several "
                                "call sites may count as one"
                              : "";
  made.remedy = {
      "Bound what is kept: a cache needs a largest size, a list of requests an end:",
      "    if (cache.size() == limit) {",
      fmt::format("      {}(cache.front().ptr);", of_.right_free(block)),
      "      cache.pop_front();",
      "    }",
      "With millpond: limit_resource refuses what is over a bound, with the call site that asked."};
}

void site_check::kept() {
  const auto& sites = of_.book.sites();
  const std::uint64_t events = std::max<std::uint64_t>(of_.what.events, 1);
  std::vector<std::vector<std::uint32_t>> parts(sites.size());
  std::vector<std::uint64_t> oldest(sites.size(), UINT64_MAX);
  for (const block_facts& each : of_.book.blocks()) {
    if (each.freed != no_index) continue;
    if (parts[each.site].empty()) parts[each.site].resize(run_parts);
    ++parts[each.site][std::uint64_t{each.allocated} * run_parts / events];
    oldest[each.site] = std::min<std::uint64_t>(oldest[each.site], each.allocated);
  }
  bool ended = false;
  for (const auto& [name, value] : of_.info.meta.notes)
    ended = ended || (name == "ended" && value == "exit");
  for (std::size_t at = 0; at < sites.size(); ++at) {
    const site_facts& site = sites[at];
    if (site.live == 0 || site.of == trace::kind::pageable) continue;
    const auto with = std::ranges::count_if(parts[at], [](std::uint32_t each) { return each > 0; });
    const std::uint32_t most = *std::ranges::max_element(parts[at]);
    if (site.live >= least_growth_blocks && site.live_bytes >= of_.options.least_bytes &&
        static_cast<std::size_t>(with) >= parts_with_growth &&
        std::uint64_t{most} * 2 <= site.live) {
      growth(site, parts[at]);
    } else if (ended) {
      leak(site, oldest[at]);
    }
  }
  if (!ended && of_.book.live_blocks() > 0) {
    of_.what.remarks.push_back(
        fmt::format("{} live at the end are not called leaks: the trace does not say that the "
                    "program ended by itself",
                    plural(of_.book.live_blocks(), "block")));
  }
}

void site_check::allocator_time() {
  const double all = static_cast<double>(of_.what.duration_ns);
  for (const flaw other :
       {flaw::device_wide_stall, flaw::allocation_churn, flaw::pool_gives_back}) {
    if (of_.found.any(other)) return;  // said there, with the place
  }
  // Less than 10 ms in all is no matter for anyone.
  if (loop_ns_ < 1e7 || loop_ns_ < 0.05 * all) return;
  auto [made, is_new] = of_.found.add(flaw::allocator_time, 0, 0, 0);
  made.count = of_.what.allocations;
  made.time_ns = loop_ns_;
  made.summary = fmt::format("{} of {} ({:.1f}%) go into calls that allocate and free in loops.",
                             format_duration(loop_ns_), format_duration(all), 100 * loop_ns_ / all);
  // What the program itself calls a request, a step or an iteration: the range that comes most
  // often.
  const auto most =
      std::ranges::max_element(of_.marks, {}, [](const auto& each) { return each.second; });
  if (most != of_.marks.end() && most->second >= of_.options.loop_rounds) {
    made.summary += fmt::format(" That is {} for each of the {} ranges `{}`.",
                                format_duration(loop_ns_ / static_cast<double>(most->second)),
                                most->second, of_.text(most->first));
  }
  made.remedy = {"`millpond advise TRACE` replays the strategies and says what each would take."};
}

void site_check::finish() {
  for (const site_facts& site : of_.book.sites()) repeats(site);
  kept();
  allocator_time();
}

}  // namespace millpond::advise
