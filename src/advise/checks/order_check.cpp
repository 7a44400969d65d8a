#include "advise/checks/order_check.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "millpond/base/units.hpp"
#include "trace/event_views.hpp"

namespace millpond::advise {
namespace {

std::string stream_text(std::uint64_t stream) {
  return stream == 0 ? std::string("the default stream") : fmt::format("stream {}", stream);
}

// An address inside a structure may stand there by chance or be left over, and one that was only
// stored may never be followed: nothing is claimed of them.
bool perhaps_by_chance(const trace::event& at) {
  return at.what == trace::action::use && trace::as_use(at).form != trace::use_form::argument;
}

}  // namespace

std::string order_check::by_whom(std::uint32_t name) const {
  return name == 0 ? std::string("a copy or memset") : fmt::format("kernel {}", of_.text(name));
}

order_check::state& order_check::state_of(block_facts& block) {
  if (block.state == no_index) {
    if (spare_.empty()) {
      block.state = static_cast<std::uint32_t>(states_.size());
      states_.emplace_back();
    } else {
      block.state = spare_.back();
      spare_.pop_back();
      states_[block.state].uses.clear();
      states_[block.state].allocated = {};
    }
  }
  return states_[block.state];
}

void order_check::allocated(const trace::event& at, std::uint32_t, std::uint32_t block) {
  if (at.of != trace::kind::driver_pool) return;
  // The allocation is work on its stream: what does not wait for it may come before it.
  state& mine = state_of(of_.book.blocks()[block]);
  mine.allocated = of_.clocks.issue(at.stream, at.device);
  mine.stream = at.stream;
}

void order_check::freed(const trace::event& at, std::uint32_t index, std::uint32_t id) {
  const block_facts& block = of_.book.blocks()[id];
  of_.clocks.issue(at.stream, at.device);
  if (block.state == no_index) return;
  for (const use& each : states_[block.state].uses) {
    if (each.reported || of_.clocks.host_knows(each.when)) continue;
    if (!of_.clocks.knows(at.stream, at.device, each.when)) free_in_use(at, index, block, each);
  }
}

void order_check::forget(std::uint32_t id) {
  block_facts& block = of_.book.blocks()[id];
  if (block.state == no_index) return;
  spare_.push_back(block.state);
  block.state = no_index;
}

void order_check::launched(const trace::event& at) {
  name_ = at.what == trace::action::kernel ? trace::as_kernel(at).name : 0;
  work_ = of_.clocks.issue(at.stream, at.device);
}

std::uint32_t order_check::used(const trace::event& at, std::uint32_t index,
                                std::uint64_t address) {
  const std::uint32_t id = of_.book.holding(address);
  if (id == no_index) {
    const std::uint32_t dead = of_.book.freed_holding(address);
    if (dead != no_index) use_after_free(at, index, of_.book.blocks()[dead], address);
    return no_index;
  }
  if (perhaps_by_chance(at)) return id;
  block_facts& block = of_.book.blocks()[id];
  state& mine = state_of(block);
  if (mine.allocated.tracked() && !of_.clocks.host_knows(mine.allocated) &&
      !of_.clocks.knows(at.stream, at.device, mine.allocated)) {
    use_before(at, index, block, mine);
  }
  const use made{work_, index, at.stack, at.stream, name_, false};
  for (use& each : mine.uses) {
    if (each.stream == at.stream) {
      each = made;
      return id;
    }
  }
  mine.uses.push_back(made);
  return id;
}

void order_check::refused(const trace::event& at, std::uint32_t index, std::uint64_t address) {
  if (of_.book.holding(address) != no_index) return;
  const std::uint32_t dead = of_.book.freed_holding(address);
  if (dead == no_index) return;
  name_ = 0;
  use_after_free(at, index, of_.book.blocks()[dead], address);
}

void order_check::reported(const trace::event& at) {
  const std::uint32_t id = of_.book.holding(at.address);
  if (id == no_index) return;
  for (use& each : state_of(of_.book.blocks()[id]).uses) {
    if (each.stream == at.stream) each.reported = true;
  }
}

void order_check::free_in_use(const trace::event& at, std::uint32_t index, const block_facts& block,
                              const use& by) {
  const std::string call = of_.free_call(trace::as_free(at).call, at.of);
  auto [made, is_new] = of_.found.add(flaw::free_while_in_use, call_site_key(by.stack, by.name),
                                      call_site_key(at.stack, trace::as_free(at).call), index);
  made.bytes = std::max(made.bytes, block.bytes);
  if (!is_new) return;
  made.events.insert(made.events.begin(), by.event);
  made.summary = fmt::format(
      "{} on {} frees the {} while {} on {} (event {}) may still use it: nothing orders the free "
      "after it. The memory can be handed out again under the running work.",
      call, stream_text(at.stream), of_.name_block(block), by_whom(by.name), stream_text(by.stream),
      by.event);
  of_.place_allocation(made, block);
  made.call_sites.push_back({"used by " + by_whom(by.name), by.stack});
  made.call_sites.push_back({"freed by " + call, at.stack});
  made.seen =
      "seen: the address among the work's arguments; not seen: whether the work has ended by then";
  made.remedy = {
      ("Make the stream of the free wait for the work, or free on the stream that used the block "
       "last:"),
      "    cudaEventRecord(done, user_stream);", "    cudaStreamWaitEvent(free_stream, done);",
      "    cudaFreeAsync(ptr, free_stream);",
      ("With millpond: pool.record_use(ptr, user_stream) before pool.deallocate(ptr, bytes, "
       "free_stream).")};
}

void order_check::use_after_free(const trace::event& at, std::uint32_t index,
                                 const block_facts& block, std::uint64_t address) {
  if (perhaps_by_chance(at)) return;
  auto [made, is_new] = of_.found.add(flaw::use_after_free, call_site_key(at.stack, name_),
                                      call_site_key(block.stack, block.call), index);
  if (!is_new) return;
  made.events.insert(made.events.begin(), block.freed);
  made.summary =
      fmt::format("{} on {} was given {:#x}, in the {} that event {} had freed.", by_whom(name_),
                  stream_text(at.stream), address, of_.name_block(block), block.freed);
  if (at.status != 0) made.summary += fmt::format(" The driver refused it (status {}).", at.status);
  of_.place_allocation(made, block);
  made.call_sites.push_back({"freed", block.free_stack});
  made.call_sites.push_back({"used by " + by_whom(name_), at.stack});
  made.seen =
      "seen: the address among the work's arguments; not seen: whether the work reads or writes "
      "there";
  made.remedy = {
      "Move the free behind the last launch that is given the pointer, on the same stream:",
      "    kernel<<<grid, block, 0, stream>>>(ptr, ...);", "    cudaFreeAsync(ptr, stream);"};
}

void order_check::use_before(const trace::event& at, std::uint32_t index, const block_facts& block,
                             const state& mine) {
  auto [made, is_new] = of_.found.add(flaw::use_before_allocation, call_site_key(at.stack, name_),
                                      call_site_key(block.stack, block.call), index);
  if (!is_new) return;
  made.summary = fmt::format(
      "{} on {} uses the {}, allocated in the order of {}: nothing makes {} wait for that.",
      by_whom(name_), stream_text(at.stream), of_.name_block(block), stream_text(mine.stream),
      stream_text(at.stream));
  of_.place_allocation(made, block);
  made.call_sites.push_back({"used by " + by_whom(name_), at.stack});
  made.events.insert(made.events.begin(), block.allocated);
  made.seen =
      "seen: the address among the work's arguments, and every event and wait between the two "
      "streams";
  made.remedy = {"Allocate on the stream that uses the block, or make it wait:",
                 "    cudaMallocAsync(&ptr, bytes, allocating_stream);",
                 "    cudaEventRecord(ready, allocating_stream);",
                 "    cudaStreamWaitEvent(using_stream, ready);"};
}

}  // namespace millpond::advise
