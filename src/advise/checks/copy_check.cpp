#include "advise/checks/copy_check.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "driver/usual_costs.hpp"
#include "millpond/base/units.hpp"
#include "trace/event_views.hpp"

namespace millpond::advise {
namespace {

using trace::copy_direction;

// A copy of pageable memory to the device of at most 64 KiB is staged and returns at once (CUDA's
// documentation of synchronisation behaviour); only larger ones, and all to the host, block.
constexpr std::uint64_t staged_bytes = std::uint64_t{64} << 10;

// Pinned memory is too much where it is at least this and the copies between two synchronises never
// needed an eighth of it.
constexpr std::uint64_t least_pinned_bytes = std::uint64_t{256} << 20;
constexpr std::uint64_t pinned_use_share = 8;

}  // namespace

void copy_check::copied(const trace::event& at, std::uint32_t index, std::uint32_t to,
                        std::uint32_t from) {
  const trace::copy_operands copy = trace::as_copy(at);
  const bool up = copy.direction == copy_direction::host_to_device;
  const bool down = copy.direction == copy_direction::device_to_host;
  if (up || down) {
    if (at.of == trace::kind::pinned) {
      in_flight_ += at.bytes;
      most_in_flight_ = std::max(most_in_flight_, in_flight_);
    }
    const bool blocks = down || at.bytes > staged_bytes;
    if (at.of == trace::kind::pageable && copy.asynchronous && blocks) {
      auto [made, is_new] =
          of_.found.add(flaw::pageable_async_copy, call_site_key(at.stack, up ? 1 : 2), 0, index);
      const usual_costs& costs = usual_costs::h200();
      made.bytes += at.bytes;
      made.time_ns += at.duration_ns != 0
                          ? at.duration_ns
                          : static_cast<double>(at.bytes) /
                                (up ? costs.pageable_copy_to_device : costs.pageable_copy_to_host);
      made.time_estimated = made.time_estimated || at.duration_ns == 0;
      made.time_after_ns += static_cast<double>(at.bytes) / costs.pinned_copy;
      if (is_new) {
        made.call_sites.push_back({up ? "copied to the device" : "copied to the host", at.stack});
        made.seen = "seen: the host address is in no pinned or managed block that the program made";
        made.remedy = {"Keep the host side in pinned memory, made once:",
                       "    cudaHostAlloc(&host, bytes, cudaHostAllocDefault);",
                       "    // or, of memory that is there: cudaHostRegister(existing, bytes, 0);",
                       "    // now returns at once:",
                       "    cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream);",
                       fmt::format("With millpond: a pool over pinned_resource gives such a block "
                                   "and takes it back in {}.",
                                   format_duration(costs.pool_pair_ns))};
      }
    }
  }
  if (from != no_index) touched(from);
  if (to != no_index) written(at, index, to, true);
}

void copy_check::set(const trace::event& at, std::uint32_t index, std::uint32_t block) {
  if (block != no_index) written(at, index, block, false);
}

void copy_check::written(const trace::event& at, std::uint32_t index, std::uint32_t block,
                         bool copy) {
  block_facts& of = of_.book.blocks()[block];
  of.extent = std::max(of.extent, at.address + at.bytes - of.address);
  if (of.stored || !trace::is_gpu_memory(of.of)) return;
  const write now{at.address, at.address + at.bytes, at.stream, index, at.stack, copy};
  const auto [last, is_new] = writes_.try_emplace(block, now);
  if (is_new) return;
  // Managed memory may have been read by the CPU meanwhile, unseen.
  if (of.of != trace::kind::managed && last->second.stream == at.stream &&
      now.begin <= last->second.begin && now.end >= last->second.end && at.bytes >= staged_bytes) {
    const std::uint64_t wasted = last->second.end - last->second.begin;
    auto [made, fresh] = of_.found.add(flaw::dead_write, call_site_key(last->second.stack, 1),
                                       call_site_key(at.stack, 2), index);
    made.time_ns +=
        static_cast<double>(wasted) /
        (last->second.copy ? usual_costs::h200().pinned_copy : usual_costs::h200().device_memory);
    made.time_estimated = true;
    if (fresh) {
      made.events.insert(made.events.begin(), last->second.event);
      made.summary = fmt::format(
          "Event {} writes {} into the {}, and event {} writes over all of it: nothing was seen to "
          "read it between.",
          last->second.event, format_bytes(wasted), of_.name_block(of), index);
      made.call_sites = {
          {last->second.copy ? "written by a copy" : "written by a memset", last->second.stack},
          {copy ? "written over by a copy" : "written over by a memset", at.stack}};
      made.seen =
          "seen: no kernel was given an address in the block between the two writes; not seen: "
          "kernels that found "
          "it in memory";
      made.remedy = {"Leave the first write out."};
    }
  }
  last->second = now;
}

void copy_check::allocated(const trace::event& at) {
  if (at.of != trace::kind::pinned) return;
  pinned_live_ += at.bytes;
  if (at.bytes > largest_pinned_) {
    largest_pinned_ = at.bytes;
    largest_pinned_stack_ = at.stack;
    largest_pinned_call_ = trace::as_allocation(at).call;
  }
  if (pinned_live_ <= pinned_peak_) return;
  pinned_peak_ = pinned_live_;
  pinned_peak_event_ = of_.book.blocks().back().allocated;
}

void copy_check::freed(std::uint32_t block) {
  writes_.erase(block);
  const block_facts& of = of_.book.blocks()[block];
  if (of.of != trace::kind::pinned) return;
  pinned_live_ -= of.bytes;
  if (of.by_kernel || of.in_structure || of.stored) pinned_by_kernels_ += of.bytes;
}

void copy_check::synchronised() {
  in_flight_ = 0;
}

void copy_check::finish() {
  of_.found.each(flaw::pageable_async_copy, [](finding& each) {
    each.summary = fmt::format(
        "{} of pageable memory ({}) asked to be asynchronous and blocked: {}{} against {} from "
        "pinned "
        "memory, and nothing overlaps with them.",
        each.count == 1 ? "A copy" : fmt::format("{} copies", each.count), format_bytes(each.bytes),
        each.time_estimated ? "about " : "", format_duration(each.time_ns),
        format_duration(each.time_after_ns));
    each.bytes = 0;
  });
  for (const block_facts& each : of_.book.blocks()) {
    if (each.of == trace::kind::pinned && each.freed == no_index &&
        (each.by_kernel || each.in_structure || each.stored)) {
      pinned_by_kernels_ += each.bytes;
    }
  }
  // Pinned memory that kernels reach is memory in its own right, no staging. Without kernels'
  // pointers nobody knows.
  if (!of_.what.kernel_pointers || pinned_peak_ < least_pinned_bytes || pinned_by_kernels_ > 0 ||
      most_in_flight_ * pinned_use_share > pinned_peak_) {
    return;
  }
  auto [made, is_new] = of_.found.add(flaw::pinned_overuse,
                                      call_site_key(largest_pinned_stack_, largest_pinned_call_), 0,
                                      pinned_peak_event_);
  made.bytes = pinned_peak_ - most_in_flight_;
  made.summary = fmt::format(
      "{} are pinned at most, and never were more than {} of pinned memory copied between two "
      "synchronises: the rest is kept from the system for nothing.",
      format_bytes(pinned_peak_), format_bytes(most_in_flight_));
  block_facts block;
  block.of = trace::kind::pinned;
  block.stack = largest_pinned_stack_;
  block.call = largest_pinned_call_;
  of_.place_allocation(made, block);
  made.seen = "seen: copies, and no kernel argument into pinned memory";
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

}  // namespace millpond::advise
