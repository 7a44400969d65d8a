#include "advise/checks/managed_check.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "advise/prices.hpp"
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
  ++open_spans_;
  mine.open.push_back(
      {at.time_ns, UINT64_MAX, index, at.stack, static_cast<std::uint32_t>(0), work});
}

void managed_check::written(std::uint32_t block, std::uint32_t index, std::uint32_t stack) {
  facts& mine = blocks_[block];
  // What was written before the advice dropped nothing.
  if (mine.read_mostly == no_index || mine.write_event != no_index) return;
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

void managed_check::waited(std::uint64_t over) {
  // The wait is over when its call returns; what the CPU touches while another thread waits is
  // still too early.
  if (open_spans_ == 0) return;
  for (auto& [block, mine] : blocks_) {
    std::erase_if(mine.open, [&](span& each) {
      if (!of_.clocks.host_knows(each.work)) return false;
      --open_spans_;
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
  if (each.duration_ns == 0 && each.change == trace::page_change::to_device)
    mine.untimed_to_device += each.bytes;
  if (each.duration_ns == 0 && each.change == trace::page_change::to_host)
    mine.untimed_to_host += each.bytes;
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

void managed_check::thrashing::add(std::uint32_t id, const block_facts& block, const facts& of) {
  if (first_block == no_index) {
    first_block = id;
    sums.first_move = of.first_move;
  }
  ++blocks;
  bytes += block.bytes;
  sums.to_device += of.to_device;
  sums.to_host += of.to_host;
  sums.turns += of.turns;
  sums.cpu_faults += of.cpu_faults;
  sums.gpu_faults += of.gpu_faults;
  sums.page_ns += of.page_ns;
  sums.untimed_to_device += of.untimed_to_device;
  sums.untimed_to_host += of.untimed_to_host;
  // A small block is better reached over the link, a large one moved in one go.
  small = small && block.bytes <= prices::small_bytes;
  after_ns += block.bytes <= prices::small_bytes
                  ? prices::mapped_round_ns() * static_cast<double>((of.turns + 1) / 2)
                  : prices::prefetched_ns(of.to_device + of.to_host);
}

// One block that goes to and fro, or a place that makes a block each time: then each of them goes
// there and back once.
void managed_check::thrash() {
  std::map<std::uint32_t, thrashing> by_site;
  for (const auto& [id, mine] : blocks_) {
    const block_facts& block = of_.book.blocks()[id];
    const site_facts& site = of_.book.sites()[block.site];
    const bool each_time = site.again() >= of_.options.loop_rounds;
    if (mine.turns < (each_time ? 1 : least_turns)) continue;
    by_site[block.site].add(id, block, mine);
  }
  for (const auto& [site, all] : by_site) {
    // The first touches of new pages are faults too, and move nothing.
    if (all.sums.turns >= least_turns && all.sums.cpu_faults + all.sums.gpu_faults >= least_turns)
      thrash(of_.book.sites()[site], all);
  }
}

void managed_check::thrash(site_facts& site, const thrashing& all) {
  const block_facts& block = of_.book.blocks()[all.first_block];
  const facts& sums = all.sums;
  const double untimed = prices::faulted_ns(sums.untimed_to_device, sums.untimed_to_host);
  auto [made, is_new] = of_.found.add(flaw::managed_thrash, call_site_key(block.stack, block.call),
                                      block.site, sums.first_move, all.blocks);
  made.bytes += sums.to_device + sums.to_host;
  made.time_ns += sums.page_ns + untimed;
  made.time_after_ns += all.after_ns;
  made.time_estimated = made.time_estimated || untimed > 0;
  site.loses(flaw::managed_thrash, sums.page_ns + untimed, all.after_ns, untimed > 0);
  if (!is_new) return;
  const std::string moves = fmt::format(
      "{} moved to the device and {} to the host by faults, {} faults of the CPU and {} of the GPU",
      format_bytes(sums.to_device), format_bytes(sums.to_host), sums.cpu_faults, sums.gpu_faults);
  made.summary =
      all.blocks == 1
          ? fmt::format("Pages of the managed {} changed sides {} times: {}.",
                        of_.name_block(block), sums.turns, moves)
          : fmt::format("Pages of {} managed blocks, first the {}, changed sides {} times: {}.",
                        all.blocks, of_.name_block(block), sums.turns, moves);
  of_.place_allocation(made, block);
  made.seen = "seen: the driver's own counters of faults and moves";
  if (all.small) {
    made.remedy = {
        "Small data that both sides touch each round belongs in mapped pinned memory; nothing "
        "moves then:",
        "    cudaHostAlloc(&ptr, bytes, cudaHostAllocMapped);  // one address for both"};
    return;
  }
  made.remedy = {"Move the pages in one go before the side that needs them, or keep two buffers:",
                 "    cudaMemLocation there{cudaMemLocationTypeDevice, device};",
                 "    cudaMemPrefetchAsync(ptr, bytes, there, 0, stream);",
                 "Small data that both sides touch each round belongs in mapped pinned memory "
                 "(cudaHostAlloc)."};
}

void managed_check::written_advice(std::uint32_t id, const facts& mine) {
  const block_facts& block = of_.book.blocks()[id];
  auto [made, is_new] = of_.found.add(flaw::wrong_advice, call_site_key(mine.advice_stack, 1),
                                      call_site_key(block.stack, block.call), mine.read_mostly);
  made.bytes += block.bytes;
  if (!is_new) return;
  made.summary = fmt::format(
      "The managed {} is advised read-mostly, and event {} writes it on the GPU: each write drops "
      "the copies of the pages that the advice makes.",
      of_.name_block(block), mine.write_event);
  made.events.push_back(mine.write_event);
  made.call_sites.push_back({"written", mine.write_stack});
  of_.place_allocation(made, block);
  made.call_sites.push_back({"advised", mine.advice_stack});
  made.seen = "seen: the advice and, after it, a copy or memset into the block";
  made.remedy = {"Drop the advice, and prefetch to where the data is used next:",
                 "    cudaMemLocation there{cudaMemLocationTypeDevice, device};",
                 "    cudaMemPrefetchAsync(ptr, bytes, there, 0, stream);"};
}

void managed_check::advice(std::uint32_t id, const facts& mine) {
  const block_facts& block = of_.book.blocks()[id];
  if (mine.read_mostly != no_index && mine.write_event != no_index) {
    written_advice(id, mine);
    return;
  }
  if (mine.prefers_host == no_index || mine.kernels < 2) return;
  // Small blocks are where they should be: a prefetch costs more than the link.
  const double far = prices::far_passes_ns(block.bytes, mine.kernels);
  const double near = prices::near_passes_ns(block.bytes, mine.kernels);
  if (block.bytes <= prices::small_bytes || far - near < of_.options.least_ns) return;
  auto [made, is_new] = of_.found.add(flaw::wrong_advice, call_site_key(mine.advice_stack, 0),
                                      call_site_key(block.stack, block.call), mine.prefers_host);
  made.bytes += block.bytes;
  made.time_ns += far;
  made.time_after_ns += near;
  made.time_estimated = true;
  if (!is_new) return;
  made.summary = fmt::format(
      "The managed {} prefers the host, and {} were given it: the first maps its pages one by one, "
      "and each access of all goes over the link, at {:.0f} GB/s on an H200.",
      of_.name_block(block), plural(mine.kernels, "kernel"),
      usual_costs::h200().kernel_over_the_link);
  of_.place_allocation(made, block);
  made.call_sites.push_back({"advised", mine.advice_stack});
  made.seen =
      "seen: the address among kernels' arguments; not seen: how much of it they touch, which is "
      "taken to be all";
  made.remedy = {"Drop the advice, and prefetch to where the data is used next:",
                 "    cudaMemLocation there{cudaMemLocationTypeDevice, device};",
                 "    cudaMemPrefetchAsync(ptr, bytes, there, 0, stream);"};
}

void managed_check::finish() {
  std::ranges::stable_sort(pages_, {}, &page_note::time_ns);
  for (const page_note& each : pages_) moved(each);
  for (const touch& each : touches_) overlap(each);
  thrash();
  for (const auto& [block, mine] : blocks_) advice(block, mine);
}

}  // namespace millpond::advise
