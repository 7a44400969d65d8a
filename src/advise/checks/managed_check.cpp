#include "advise/checks/managed_check.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "driver/usual_costs.hpp"
#include "millpond/base/units.hpp"
#include "trace/event_views.hpp"

namespace millpond::advise {
namespace {

// Pages that changed direction this often went back and forth; one round is how results come home.
constexpr std::uint64_t least_turns = 8;
constexpr std::size_t most_touches = 1u << 20, most_spans = 4096;
// Faults of the CPU are timed by the driver: nearer than this to a launch or a wait, which came
// first is not sure.
constexpr std::uint64_t clock_slack_ns = 20'000;

}  // namespace

void managed_check::used(const trace::event& at, std::uint32_t index, std::uint32_t block,
                         epoch work) {
  facts& mine = blocks_[block];
  ++mine.kernels;
  if (!work.tracked() || mine.open.size() >= most_spans) return;
  mine.open.push_back(
      {at.time_ns, UINT64_MAX, index, at.stack, static_cast<std::uint32_t>(0), work});
}

void managed_check::written(std::uint32_t block, std::uint32_t index, std::uint32_t stack) {
  facts& mine = blocks_[block];
  if (mine.write_event != no_index) return;
  mine.write_event = index;
  mine.write_stack = stack;
}

void managed_check::advised(const trace::event& at, std::uint32_t index) {
  const std::uint32_t block = of_.book.holding(at.address);
  if (block == no_index) return;
  facts& mine = blocks_[block];
  const trace::advice_operands given = trace::as_advice(at);
  switch (given.advice) {
    case trace::memory_advice::set_read_mostly:
      mine.read_mostly = index;
      mine.advice_stack = at.stack;
      break;
    case trace::memory_advice::unset_read_mostly: mine.read_mostly = no_index; break;
    case trace::memory_advice::set_preferred:
      mine.prefers_host = given.side == trace::page_side::host ? index : no_index;
      if (given.side == trace::page_side::host) mine.advice_stack = at.stack;
      break;
    case trace::memory_advice::unset_preferred: mine.prefers_host = no_index; break;
    default: break;
  }
}

void managed_check::prefetched(std::uint32_t block) {
  blocks_[block].prefetch = true;
}

void managed_check::synchronised(const trace::event& at) {
  // The wait is over when its call returns; what the CPU touches while another thread waits is
  // still too early.
  const std::uint64_t over = at.time_ns + at.duration_ns;
  for (auto& [block, mine] : blocks_) {
    std::erase_if(mine.open, [&](span& each) {
      if (!of_.clocks.host_knows(each.work)) return false;
      each.end_ns = over;
      if (mine.closed.size() < most_spans) mine.closed.push_back(each);
      return true;
    });
  }
}

void managed_check::allocated(const trace::event& at, std::uint32_t block) {
  if (at.of == trace::kind::managed)
    lifetimes_.push_back({at.address, at.address + at.bytes, at.time_ns, UINT64_MAX, block});
}

void managed_check::freed(const trace::event& at, std::uint32_t block) {
  for (std::size_t n = lifetimes_.size(); n-- > 0;) {
    if (lifetimes_[n].block != block) continue;
    lifetimes_[n].to_ns = at.time_ns + at.duration_ns;
    return;
  }
}

void managed_check::pages(const trace::event& at, std::uint32_t index) {
  if (pages_.size() >= most_touches) return;
  const trace::pages_operands moved = trace::as_pages(at);
  pages_.push_back({at.time_ns, at.address, at.bytes, at.duration_ns, index, at.stack, moved.change,
                    moved.cause == trace::page_cause::program});
}

std::uint32_t managed_check::block_of(const page_note& each) const {
  std::uint32_t made = no_index;
  for (const lifetime& life : lifetimes_) {
    if (each.address < life.begin || each.address >= life.end) continue;
    made = life.block;
    if (each.time_ns + clock_slack_ns >= life.from_ns && each.time_ns <= life.to_ns) return made;
  }
  return made;  // the clocks differ a little: the last block that was there
}

void managed_check::moved(const page_note& each) {
  const std::uint32_t block = block_of(each);
  if (block == no_index) return;
  facts& mine = blocks_[block];
  if (each.asked_for) {
    // What the program moves with prefetches is its own will; only what comes back by faults is a
    // turn.
    if (each.change == trace::page_change::to_device) mine.last_direction = 1;
    if (each.change == trace::page_change::to_host) mine.last_direction = 2;
    return;
  }
  if (mine.first_move == no_index) mine.first_move = each.event;
  mine.page_ns += each.duration_ns;
  int direction = 0;
  switch (each.change) {
    case trace::page_change::to_device:
      direction = 1;
      mine.to_device += each.bytes;
      break;
    case trace::page_change::to_host:
      direction = 2;
      mine.to_host += each.bytes;
      break;
    case trace::page_change::cpu_fault:
      ++mine.cpu_faults;
      touches_.push_back({block, each.time_ns, each.event, each.stack});
      break;
    case trace::page_change::gpu_fault: ++mine.gpu_faults; break;
    default: break;
  }
  if (direction == 0) return;
  if (mine.last_direction != 0 && mine.last_direction != direction) ++mine.turns;
  mine.last_direction = direction;
}

void managed_check::overlap(const touch& each) {
  const facts& mine = blocks_[each.block];
  const block_facts& block = of_.book.blocks()[each.block];
  for (const auto* spans : {&mine.closed, &mine.open}) {
    for (const span& work : *spans) {
      const bool after = each.time_ns > work.begin_ns + clock_slack_ns;
      const bool before = work.end_ns == UINT64_MAX || each.time_ns + clock_slack_ns < work.end_ns;
      if (!after || !before) continue;
      auto [made, is_new] = of_.found.add(flaw::managed_touched_unsynchronised,
                                          call_site_key(block.stack, block.call),
                                          call_site_key(work.stack, 0), each.event);
      if (!is_new) return;
      made.summary = fmt::format(
          "The CPU touched the managed {} {} after a kernel was launched that was given it (event "
          "{}), "
          "and before the program waited for that kernel.",
          of_.name_block(block), format_duration(static_cast<double>(each.time_ns - work.begin_ns)),
          work.event);
      made.events.insert(made.events.begin(), work.event);
      of_.place_allocation(made, block);
      made.call_sites.push_back({"given to a kernel", work.stack});
      if (each.stack != 0) made.call_sites.push_back({"touched by the CPU", each.stack});
      made.seen =
          "seen: a page fault of the CPU in the block; touches of pages that were at hand are not "
          "seen";
      made.remedy = {"Wait for the work before the CPU reads or writes what it was given:",
                     "    cudaStreamSynchronize(stream);",
                     "Or keep what the CPU polls in mapped pinned memory (cudaHostAlloc), apart "
                     "from the kernel's data."};
      return;
    }
  }
}

void managed_check::thrash(std::uint32_t id, const facts& mine) {
  const block_facts& block = of_.book.blocks()[id];
  auto [made, is_new] = of_.found.add(flaw::managed_thrash, call_site_key(block.stack, block.call),
                                      0, mine.first_move);
  made.bytes += mine.to_device + mine.to_host;
  made.time_ns += mine.page_ns;
  made.time_after_ns +=
      static_cast<double>(mine.to_device + mine.to_host) / usual_costs::h200().managed_prefetch;
  if (!is_new) return;
  made.summary = fmt::format(
      "Pages of the managed {} changed sides {} times: {} moved to the device and {} to the host, "
      "{} "
      "faults of the CPU and {} of the GPU.",
      of_.name_block(block), mine.turns, format_bytes(mine.to_device), format_bytes(mine.to_host),
      mine.cpu_faults, mine.gpu_faults);
  of_.place_allocation(made, block);
  made.seen = "seen: the driver's own counters of faults and moves";
  made.remedy = {"Move the pages in one go before the side that needs them, or keep two buffers:",
                 "    cudaMemLocation there{cudaMemLocationTypeDevice, device};",
                 "    cudaMemPrefetchAsync(ptr, bytes, there, 0, stream);",
                 "Small data that both sides touch each round belongs in mapped pinned memory "
                 "(cudaHostAlloc)."};
}

void managed_check::advice(std::uint32_t id, const facts& mine) {
  const block_facts& block = of_.book.blocks()[id];
  const bool written = mine.read_mostly != no_index && mine.write_event != no_index;
  const bool far = mine.prefers_host != no_index && mine.kernels >= 2;
  if (!written && !far) return;
  auto [made, is_new] = of_.found.add(flaw::wrong_advice, call_site_key(mine.advice_stack, 0),
                                      call_site_key(block.stack, block.call),
                                      written ? mine.read_mostly : mine.prefers_host);
  made.bytes = std::max(made.bytes, block.bytes);
  if (!is_new) return;
  if (written) {
    made.summary = fmt::format(
        "The managed {} is advised read-mostly, and event {} writes it on the GPU: each write "
        "drops "
        "the copies of the pages that the advice makes.",
        of_.name_block(block), mine.write_event);
    made.events.push_back(mine.write_event);
    made.call_sites.push_back({"written", mine.write_stack});
  } else {
    const usual_costs& costs = usual_costs::h200();
    made.summary = fmt::format(
        "The managed {} prefers the host, and {} were given it: each of their accesses goes over "
        "the "
        "link, at {:.0f} GB/s on an H200.",
        of_.name_block(block), plural(mine.kernels, "kernel"), costs.kernel_over_the_link);
    made.time_ns = static_cast<double>(block.bytes) / costs.kernel_over_the_link * mine.kernels;
    made.time_after_ns = static_cast<double>(block.bytes) / costs.device_memory * mine.kernels;
    made.time_estimated = true;
  }
  of_.place_allocation(made, block);
  made.call_sites.push_back({"advised", mine.advice_stack});
  made.seen = "seen: the address among kernels' arguments; not seen: how much of it they touch";
  made.remedy = {"Drop the advice, and prefetch to where the data is used next:",
                 "    cudaMemLocation there{cudaMemLocationTypeDevice, device};",
                 "    cudaMemPrefetchAsync(ptr, bytes, there, 0, stream);"};
}

void managed_check::finish() {
  std::ranges::stable_sort(pages_, {}, &page_note::time_ns);
  for (const page_note& each : pages_) moved(each);
  for (const touch& each : touches_) overlap(each);
  for (const auto& [block, mine] : blocks_) {
    // The first touches of new pages are faults too, and move nothing.
    if (mine.turns >= least_turns && mine.cpu_faults + mine.gpu_faults >= least_turns)
      thrash(block, mine);
    advice(block, mine);
  }
}

}  // namespace millpond::advise
