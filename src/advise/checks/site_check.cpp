#include "advise/checks/site_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "advise/prices.hpp"
#include "advise/recorded_part.hpp"
#include "driver/usual_costs.hpp"
#include "millpond/base/units.hpp"
#include "trace/event_views.hpp"

namespace millpond::advise {
namespace {

// A growing place has more live at the end of at least seven of eight equal parts of the trace than
// at its begin, and none of them has over half of what is kept. At least half of its blocks come
// after something else was at work: a list of allocations and nothing else is a load.
constexpr std::size_t run_parts = 8, parts_with_growth = 7;
constexpr std::uint64_t least_growth_blocks = 16;
// Less than this in all is no matter for anyone.
constexpr double least_dear_ns = 1e7;
// A free that took so many times what one takes on an idle device waited for work.
constexpr double waited_factor = 1.5;

std::string size_text(const site_facts& of) {
  return of.smallest_bytes == of.largest_bytes
             ? format_bytes(of.largest_bytes)
             : fmt::format("{} to {}", format_bytes(of.smallest_bytes),
                           format_bytes(of.largest_bytes));
}

std::string devices_text(const site_facts& of) {
  const int devices = std::popcount(of.on_devices);
  return devices > 1 ? fmt::format(" on {} devices", devices) : std::string();
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
  if (!of_.clocks.device_busy(at.device)) return;
  // Work that nobody waited for may be over long since: where the free's time is known, it says.
  const double idle = prices::free_ns(of.of, of.bytes, of.first_use != no_index);
  if (at.duration_ns != 0 && at.duration_ns < waited_factor * idle) return;
  ++of_.book.sites()[of.site].busy_frees;
}

void site_check::failed(const trace::event& at, std::uint32_t index) {
  auto [made, is_new] =
      of_.found.add(flaw::failed_allocation, call_site_key(at.stack, trace::as_allocation(at).call),
                    static_cast<std::uint32_t>(at.status), index);
  made.bytes = std::max(made.bytes, at.bytes);
  if (!is_new) return;
  block_facts asked;
  asked.stack = at.stack;
  asked.call = trace::as_allocation(at).call;
  asked.of = at.of;
  const bool no_memory = at.status == trace::cuda_error_out_of_memory;
  made.summary = fmt::format("{} asked for {} and got status {}", of_.allocate_call(asked),
                             format_bytes(at.bytes), at.status);
  of_.place_allocation(made, asked);
  if (!no_memory) {
    made.summary += ": not for want of memory.";
    made.remedy = {
        "Look the status up among the CUresult values: the call's arguments, the context or an "
        "earlier error are at fault. 1 is an invalid argument."};
    return;
  }
  made.summary += fmt::format(" (out of memory); {} were live on device {} of what is recorded.",
                              format_bytes(of_.book.on_device(at.device).live_bytes), at.device);
  made.remedy = {
      "`millpond compare TRACE` shows how much each strategy reserves for this workload."};
}

// What a place does again and again. Its allocations count, not its rounds: a place that makes five
// hundred blocks a round is no better than one that makes one.
void site_check::repeats(std::uint32_t number) {
  const site_facts& site = of_.book.sites()[number];
  if (site.call == 0 || site.pairs == 0 || site.again() == 0) return;
  const auto run_ns = static_cast<double>(of_.what.duration_ns);
  const bool loop = site.again() >= of_.options.loop_rounds && site.rounds >= 2;
  const bool dear = site.rounds >= 2 && site.pair_ns >= least_dear_ns &&
                    site.pair_ns >= of_.options.dear_share * run_ns;
  if (!loop && !dear) return;
  loop_ns_ += site.timed_calls > 0 ? site.pair_ns : 0;
  if (site.of == trace::kind::driver_pool || site.of == trace::kind::pageable) return;
  const std::string free = of_.free_call(site.free_call, site.of);
  if (!free.starts_with("cudaFree") && !free.starts_with("cuMemFree") &&
      !free.starts_with("cudaHostUnregister") && !free.starts_with("cuMemHostUnregister")) {
    return;
  }
  const double after = prices::kept_pair_ns(site.of) * static_cast<double>(site.pairs);
  if (site.pair_ns - after < of_.options.least_ns) return;  // it is fast already
  // A wait that was not recorded may have come before each free.
  const bool stalls = site.busy_frees * 2 >= site.pairs && !part_of(of_.info.meta).gaps;
  churn(number, stalls, after);
}

void site_check::churn(std::uint32_t number, bool stalls, double after) {
  site_facts& site = of_.book.sites()[number];
  const block_facts block = as_block(site);
  const std::string allocate = of_.allocate_call(block);
  const std::string free = of_.free_call(site.free_call, site.of);
  const bool timed = site.timed_calls > 0;
  const flaw which = stalls ? flaw::device_wide_stall : flaw::allocation_churn;
  auto [made, is_new] = of_.found.add(which, call_site_key(site.stack, site.call), number,
                                      site.first_event, site.pairs);
  said_ = true;
  made.time_ns += site.pair_ns;
  // What keep_it says first: a pool over pinned memory, or the driver's pool that keeps its own.
  made.time_after_ns += after;
  made.time_estimated = made.time_estimated || !timed;
  site.loses(which, site.pair_ns, after, !timed);
  if (!is_new) return;
  if (site.first_free_event != no_index) made.events.push_back(site.first_free_event);
  const std::string each =
      timed
          ? fmt::format("{} a pair, {} in all",
                        format_duration(site.pair_ns / static_cast<double>(site.pairs)),
                        format_duration(site.pair_ns))
          : fmt::format("about {} in all by the medians of an H200", format_duration(site.pair_ns));
  if (stalls) {
    made.summary = fmt::format(
        "{} blocks of {} are allocated by {} and given back by {} in a loop{}, {} times with work "
        "still running: {} waits for the whole device each time, and so does every stream. {}.",
        site.pairs, size_text(site), allocate, free, devices_text(site), site.busy_frees, free,
        each);
    made.seen =
        "seen: work launched and not waited for when the free was called; the recorded time is the "
        "caller's alone";
  } else {
    made.summary = fmt::format(
        "{} blocks of {} are allocated by {} and given back by {} again and again{}, at most {} "
        "live at a time. {}.",
        site.pairs, size_text(site), allocate, free, devices_text(site), site.most_live, each);
  }
  of_.place_allocation(made, block);
  of_.place_free(made, block, free);
  made.remedy = keep_it(site);
}

void site_check::leak(std::uint32_t number, std::uint64_t oldest) {
  const site_facts& site = of_.book.sites()[number];
  const block_facts block = as_block(site);
  auto [made, is_new] =
      of_.found.add(flaw::leak, call_site_key(site.stack, site.call), number, oldest, site.live);
  made.bytes += site.live_bytes;
  if (!is_new) return;
  // What a place makes a few of and keeps for good does no harm: caches, weights, a library's
  // workspace.
  if (site.live == site.count && site.live < of_.options.loop_rounds) made.how_bad = severity::note;
  made.summary =
      fmt::format("{}, {} in all{}, from {} {} not freed when the program ended.",
                  plural(site.live, "block"), format_bytes(site.live_bytes), devices_text(site),
                  of_.allocate_call(block), site.live == 1 ? "was" : "were");
  of_.place_allocation(made, block);
  made.seen =
      "seen: every free until the program's end; the driver takes the memory back when the process "
      "is gone";
  made.remedy = {"Free it where its use ends, or give it an owner that does:",
                 fmt::format("    {}(ptr);", of_.right_free(block)),
                 "    auto memory = millpond::buffer(resource, bytes, stream);  // frees itself"};
}

void site_check::growth(std::uint32_t number, const std::vector<std::uint32_t>& parts) {
  const site_facts& site = of_.book.sites()[number];
  const block_facts block = as_block(site);
  auto [made, is_new] =
      of_.found.add(flaw::growth_without_end, call_site_key(site.stack, site.call), number,
                    site.first_event, site.live);
  made.bytes += site.live_bytes;
  if (!is_new) return;
  std::string shares;
  for (const std::uint32_t each : parts)
    shares += (shares.empty() ? "" : ", ") + std::to_string(each);
  made.summary = fmt::format(
      "{} of the {} blocks from {} are never freed{}, {} at the end, and they come evenly over the "
      "run "
      "(by eighths of it: {}): a longer run needs more memory.",
      site.live, site.count, of_.allocate_call(block), devices_text(site),
      format_bytes(site.live_bytes), shares);
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

std::vector<site_check::over_time> site_check::count_over_time() const {
  const std::uint64_t events = std::max<std::uint64_t>(of_.what.events, 1);
  std::vector<over_time> made(of_.book.sites().size());
  for (const block_facts& each : of_.book.blocks()) {
    over_time& mine = made[each.site];
    if (mine.net.empty()) {
      mine.net.resize(run_parts);
      mine.kept.resize(run_parts);
    }
    const std::uint64_t part = std::uint64_t{each.allocated} * run_parts / events;
    ++mine.net[part];
    if (each.freed != no_index) {
      --mine.net[std::uint64_t{each.freed} * run_parts / events];
      continue;
    }
    ++mine.kept[part];
    mine.oldest = std::min<std::uint64_t>(mine.oldest, each.allocated);
  }
  return made;
}

bool site_check::grows(const site_facts& site, const over_time& of) const {
  if (site.live < least_growth_blocks || site.live_bytes < of_.options.least_bytes) return false;
  if (site.while_running * 2 < site.count) return false;
  const auto growing = std::ranges::count_if(of.net, [](std::int64_t each) { return each > 0; });
  const auto with = std::ranges::count_if(of.kept, [](std::uint32_t each) { return each > 0; });
  const std::uint32_t most = *std::ranges::max_element(of.kept);
  return static_cast<std::size_t>(std::min(growing, with)) >= parts_with_growth &&
         std::uint64_t{most} * 2 <= site.live;
}

void site_check::kept() {
  const auto& sites = of_.book.sites();
  const std::vector<over_time> parts = count_over_time();
  const bool ended = part_of(of_.info.meta).ended;
  // The largest first: what is past the number of places that stand apart is small.
  std::vector<std::uint32_t> order(sites.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, [&](std::uint32_t a, std::uint32_t b) {
    return sites[a].live_bytes > sites[b].live_bytes;
  });
  for (const std::uint32_t at : order) {
    const site_facts& site = sites[at];
    if (site.live == 0 || site.of == trace::kind::pageable) continue;
    if (grows(site, parts[at])) {
      growth(at, parts[at].kept);
    } else if (ended) {
      leak(at, parts[at].oldest);
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
  if (said_ || of_.found.any(flaw::pool_gives_back)) return;  // said there, with the place
  // Each thread has the whole run to itself.
  const auto threads = static_cast<double>(std::max<std::uint64_t>(of_.what.allocating_threads, 1));
  const double all = static_cast<double>(of_.what.duration_ns);
  if (loop_ns_ < least_dear_ns || loop_ns_ < of_.options.dear_share * all * threads) return;
  auto [made, is_new] = of_.found.add(flaw::allocator_time, 0, 0, 0, of_.what.allocations);
  made.time_ns += loop_ns_;
  made.summary =
      threads > 1
          ? fmt::format(
                "{} go into calls that allocate and free in loops, on {} threads together: "
                "{:.1f}% of each one's {}.",
                format_duration(loop_ns_), of_.what.allocating_threads,
                100 * loop_ns_ / all / threads, format_duration(all))
          : fmt::format("{} of {} ({:.1f}%) go into calls that allocate and free in loops.",
                        format_duration(loop_ns_), format_duration(all), 100 * loop_ns_ / all);
  // What the program itself calls a request, a step or an iteration: of the ranges that come again
  // and again the outermost, which opens first.
  const mark_facts* outermost = nullptr;
  std::uint64_t name = 0;
  for (const auto& [text, mark] : of_.marks) {
    if (mark.count < of_.options.loop_rounds) continue;
    if (outermost != nullptr && outermost->first_event < mark.first_event) continue;
    outermost = &mark;
    name = text;
  }
  if (outermost != nullptr) {
    made.summary += fmt::format(" That is {} for each of the {} ranges `{}`.",
                                format_duration(loop_ns_ / static_cast<double>(outermost->count)),
                                outermost->count, of_.text(name));
  }
  made.remedy = {"`millpond advise TRACE` replays the strategies and says what each would take."};
}

void site_check::finish() {
  for (std::uint32_t at = 0; at < of_.book.sites().size(); ++at) repeats(at);
  kept();
  allocator_time();
}

}  // namespace millpond::advise
