#include "advise/checks/copy_check.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "advise/host_waits.hpp"
#include "advise/prices.hpp"
#include "driver/usual_costs.hpp"
#include "millpond/base/units.hpp"
#include "trace/event_views.hpp"

namespace millpond::advise {
namespace {

using trace::copy_direction;

// Smaller writes are not worth a word.
constexpr std::uint64_t least_write_bytes = std::uint64_t{64} << 10;
// Pinned memory is too much where it is at least this and copies never go over more than an eighth
// of it.
constexpr std::uint64_t least_pinned_bytes = std::uint64_t{256} << 20;
constexpr std::uint64_t pinned_use_share = 8;

}  // namespace

void copy_check::stretches::add(std::uint64_t begin, std::uint64_t end) {
  auto next = ends_.upper_bound(begin);
  if (next != ends_.begin()) {
    const auto before = std::prev(next);
    if (before->second >= end) return;
    if (before->second >= begin) {
      begin = before->first;
      bytes_ -= before->second - before->first;
      ends_.erase(before);
    }
  }
  while (next != ends_.end() && next->first <= end) {
    end = std::max(end, next->second);
    bytes_ -= next->second - next->first;
    next = ends_.erase(next);
  }
  ends_.emplace(begin, end);
  bytes_ += end - begin;
}

void copy_check::copied(const trace::event& at, std::uint32_t index, std::uint32_t to,
                        std::uint32_t from, bool by_graph) {
  const trace::copy_operands copy = trace::as_copy(at);
  if (!by_graph && blocks_though_asynchronous(at)) blocking(at, index);
  auto& blocks = of_.book.blocks();
  for (const auto& [block, address] : {std::pair(to, copy.to), std::pair(from, copy.from)}) {
    if (block == no_index) continue;
    block_facts& of = blocks[block];
    of.extent = std::max(of.extent, address + at.bytes - of.address);
    if (of.of == trace::kind::pinned) {
      const std::uint64_t end = std::min(address + at.bytes, of.address + of.bytes);
      if (end > address) copied_[block].add(address, end);
    }
  }
  if (from != no_index) touched(from);
  if (to == no_index) return;
  write now{at.address, at.address + at.bytes, at.stream, index, at.stack, true};
  const bool known = !by_graph && at.duration_ns != 0 &&
                     wait_of(at, false, false, trace::kind::device).of != host_wait::scope::nothing;
  now.estimated = !known;
  now.cost_ns = known ? at.duration_ns : prices::copy_ns(copy.direction, at.of, at.bytes);
  written(at, index, to, now);
}

void copy_check::blocking(const trace::event& at, std::uint32_t index) {
  const bool up = trace::as_copy(at).direction == copy_direction::host_to_device;
  auto [made, is_new] =
      of_.found.add(flaw::pageable_async_copy, call_site_key(at.stack, up ? 1 : 2), 0, index);
  made.bytes += at.bytes;
  made.time_ns += at.duration_ns != 0
                      ? at.duration_ns
                      : prices::blocking_copy_ns(trace::as_copy(at).direction, at.of, at.bytes);
  made.time_estimated = made.time_estimated || at.duration_ns == 0;
  made.time_after_ns += prices::issued_copy_ns() + prices::copy_ns(trace::as_copy(at).direction,
                                                                   trace::kind::pinned, at.bytes);
  if (!is_new) return;
  made.call_sites.push_back({up ? "copied to the device" : "copied to the host", at.stack});
  made.seen =
      "seen: the host address is in no pinned or managed block that the program made; not seen: "
      "what the program could do while the copy runs, which is what is gained";
  made.remedy = {"Keep the host side in pinned memory, made once:",
                 "    cudaHostAlloc(&host, bytes, cudaHostAllocDefault);",
                 "    // or, of memory that is there: cudaHostRegister(existing, bytes, 0);",
                 "    // now returns at once:"};
  made.remedy.emplace_back(
      up ? "    cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream);"
         : "    cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream);");
  made.remedy.push_back(fmt::format(
      "With millpond: a pool over pinned_resource gives such a block and takes it back in {}.",
      format_duration(usual_costs::h200().pool_pair_ns)));
}

void copy_check::set(const trace::event& at, std::uint32_t index, std::uint32_t block) {
  if (block == no_index) return;
  block_facts& of = of_.book.blocks()[block];
  of.extent = std::max(of.extent, at.address + at.bytes - of.address);
  write now{at.address, at.address + at.bytes, at.stream, index, at.stack, false};
  now.cost_ns = prices::memset_ns(at.bytes);
  written(at, index, block, now);
}

void copy_check::written(const trace::event& at, std::uint32_t, std::uint32_t block, write now) {
  const block_facts& of = of_.book.blocks()[block];
  if (of.stored || !trace::is_gpu_memory(of.of)) return;
  const auto [last, is_new] = writes_.try_emplace(block, now);
  if (is_new) return;
  // Managed memory may have been read by the CPU meanwhile, unseen.
  if (of.of != trace::kind::managed && last->second.stream == at.stream &&
      now.begin <= last->second.begin && now.end >= last->second.end &&
      at.bytes >= least_write_bytes) {
    dead(last->second, now, block);
  }
  last->second = now;
}

void copy_check::dead(const write& last, const write& now, std::uint32_t block) {
  const block_facts& of = of_.book.blocks()[block];
  auto [made, fresh] = of_.found.add(flaw::dead_write, call_site_key(last.stack, 1),
                                     call_site_key(now.stack, 2), now.event);
  made.time_ns += last.cost_ns;
  made.time_estimated = made.time_estimated || last.estimated;
  if (!fresh) return;
  made.events.insert(made.events.begin(), last.event);
  made.summary = fmt::format(
      "Event {} writes {} into the {}, and event {} writes over all of it: nothing was seen to "
      "read it between.",
      last.event, format_bytes(last.end - last.begin), of_.name_block(of), now.event);
  made.call_sites = {{last.copy ? "written by a copy" : "written by a memset", last.stack},
                     {now.copy ? "written over by a copy" : "written over by a memset", now.stack}};
  made.seen =
      "seen: no kernel, copy or launched graph was given an address in the block between the two "
      "writes; not seen: kernels that found it in memory";
  made.remedy = {"Leave the first write out."};
}

void copy_check::judge_blocking(finding& of) const {
  // A small copy back costs little, and its program mostly waits for it anyway.
  if (of.time_ns - of.time_after_ns < of_.options.least_ns) {
    finding_list::leave_out(of);
    return;
  }
  of.summary = fmt::format(
      "{} of pageable memory ({}) asked to be asynchronous and blocked: {}{} against {} from "
      "pinned memory, and nothing overlaps with them.",
      of.count == 1 ? "A copy" : fmt::format("{} copies", of.count), format_bytes(of.bytes),
      of.time_estimated ? "about " : "", format_duration(of.time_ns),
      format_duration(of.time_after_ns));
  of.bytes = 0;
}

// Pinned memory that kernels reach is memory in its own right, no staging: it is left out, block by
// block. Without kernels' pointers nobody knows.
void copy_check::pinned() {
  if (!of_.what.kernel_pointers || of_.unknown_graphs) return;
  const auto& blocks = of_.book.blocks();
  std::map<std::uint32_t, std::int64_t> changes;  // of live bytes, by event
  std::uint64_t copied = 0;
  std::uint32_t largest = no_index;
  for (std::uint32_t id = 0; id < blocks.size(); ++id) {
    const block_facts& each = blocks[id];
    if (each.of != trace::kind::pinned || each.by_kernel || each.in_structure || each.stored)
      continue;
    changes[each.allocated] += static_cast<std::int64_t>(each.bytes);
    if (each.freed != no_index) changes[each.freed] -= static_cast<std::int64_t>(each.bytes);
    if (const auto seen = copied_.find(id); seen != copied_.end()) copied += seen->second.bytes();
    if (largest == no_index || each.bytes > blocks[largest].bytes) largest = id;
  }
  std::int64_t live = 0, most = 0;
  std::uint32_t most_event = 0;
  for (const auto& [event, change] : changes) {
    live += change;
    if (live > most) most_event = event;
    most = std::max(most, live);
  }
  const auto peak = static_cast<std::uint64_t>(most);
  if (peak < least_pinned_bytes || copied * pinned_use_share > peak) return;
  const block_facts& block = blocks[largest];
  auto [made, is_new] =
      of_.found.add(flaw::pinned_overuse, call_site_key(block.stack, block.call), 0, most_event);
  made.bytes += peak - copied;
  made.summary = fmt::format(
      "{} are pinned at most, and copies went over {} of it in all: the rest is kept from the "
      "system for nothing.",
      format_bytes(peak), format_bytes(copied));
  of_.place_allocation(made, block);
  made.seen = "seen: the addresses of all copies, and no kernel argument into this pinned memory";
  made.remedy = {
      ("Pin a few buffers of the largest copy's size and go round them, waiting for the event of "
       "each:"),
      "    for (each chunk) {",
      "      cudaEventSynchronize(done[i]);",
      "      fill(staging[i]);",
      "      cudaMemcpyAsync(...);",
      "      cudaEventRecord(done[i], stream);",
      "    }"};
}

void copy_check::finish() {
  of_.found.each(flaw::pageable_async_copy, [&](finding& each) { judge_blocking(each); });
  pinned();
}

}  // namespace millpond::advise
