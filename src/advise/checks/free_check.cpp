#include "advise/checks/free_check.hpp"

#include <fmt/format.h>

#include "millpond/base/units.hpp"
#include "trace/event_views.hpp"

namespace millpond::advise {
namespace {

// What the driver takes. That cudaFree takes a driver pool's block and cudaFreeAsync a cudaMalloc's
// was seen on an H200 (driver 580.159): they wait or do not wait as the call does, and the memory
// comes back.
bool call_takes(trace::kind call, trace::kind block) {
  if (call == block) return true;
  if (call == trace::kind::device)
    return block == trace::kind::managed || block == trace::kind::driver_pool;
  return call == trace::kind::driver_pool && block == trace::kind::device;
}

std::string answered(const trace::event& at) {
  return at.status != 0 ? fmt::format("The driver refused it (status {})", at.status)
                        : "The driver said nothing";
}

}  // namespace

std::uint32_t free_check::freed(const trace::event& at, std::uint32_t index) {
  if (at.address == 0) return no_index;  // freeing null is legal
  const auto answer = of_.book.look_up_free(at.address);
  using status = block_book::free_status;
  if (answer.status == status::freed) {
    const block_facts& block = of_.book.blocks()[answer.block];
    if (!call_takes(at.of, block.of)) wrong_kind(at, index, answer.block);
    return at.status == 0 ? answer.block : no_index;
  }
  // A recorded call that the driver accepted freed something that it knows and the recorder did not
  // see allocated; where calls and statuses are not known, the addresses alone speak.
  const bool call_known = trace::as_free(at).call != 0;
  if (call_known && at.status == 0) {
    ++unknown_;
    return no_index;
  }
  if (answer.status == status::already_freed) {
    second_time(at, index, of_.book.blocks()[answer.block]);
  } else if (at.status != 0 || answer.status == status::inside) {
    foreign(at, index, answer);
  } else {
    ++unknown_;
  }
  return no_index;
}

void free_check::wrong_kind(const trace::event& at, std::uint32_t index, std::uint32_t id) {
  const block_facts& block = of_.book.blocks()[id];
  const std::string call = of_.free_call(trace::as_free(at).call, at.of);
  const std::uint64_t place = call_site_key(block.stack, block.call);
  const std::uint64_t other_place = call_site_key(at.stack, trace::as_free(at).call);
  auto [made, is_new] = of_.found.add(flaw::wrong_kind_free, place, other_place, index);
  wrong_.push_back({place, other_place, index, id});
  made.refused = made.refused || at.status != 0;
  if (!is_new) return;
  const std::string right = of_.right_free(block);
  made.summary =
      fmt::format("{} was given a {} block that {} allocated: {}. {}", call, to_string(block.of),
                  of_.allocate_call(block), of_.name_block(block), answered(at));
  of_.place_allocation(made, block);
  made.call_sites.push_back({"freed by " + call, at.stack});
  made.remedy = {
      fmt::format("Free it with the call that belongs to {}, and look at the status of each free:",
                  of_.allocate_call(block)),
      fmt::format("    {}(ptr{});", right, right.ends_with("Async") ? ", stream" : ""),
      "With millpond, a buffer frees itself the right way, and guard_resource refuses the wrong "
      "one:",
      "    auto memory = millpond::buffer(resource, bytes, stream);"};
}

void free_check::finish() {
  for (const wrong_free& each : wrong_) {
    finding& of = of_.found.find(flaw::wrong_kind_free, each.place, each.other_place);
    const block_facts& block = of_.book.blocks()[each.block];
    const bool lost = block.freed == no_index || block.freed == each.event;
    if (lost) of.bytes += block.bytes;
    if (each.event != of.events.front()) continue;  // the summary is about the first
    of.summary += lost ? std::string(", and the block stays allocated.")
                       : fmt::format("; event {} frees the block rightly.", block.freed);
  }
}

void free_check::second_time(const trace::event& at, std::uint32_t index,
                             const block_facts& block) {
  const std::string call = of_.free_call(trace::as_free(at).call, at.of);
  auto [made, is_new] = of_.found.add(flaw::double_free, call_site_key(block.stack, block.call),
                                      call_site_key(at.stack, trace::as_free(at).call), index);
  made.refused = made.refused || at.status != 0;
  if (!is_new) return;
  const std::string right = of_.right_free(block);
  made.summary = fmt::format(
      "{} was given {:#x} a second time: event {} had freed the {}. {}; had the address been "
      "handed out again meanwhile, another owner's block would be gone.",
      call, at.address, block.freed, of_.name_block(block), answered(at));
  of_.place_allocation(made, block);
  made.call_sites.push_back({"freed the first time", block.free_stack});
  made.call_sites.push_back({"freed again by " + call, at.stack});
  made.events.insert(made.events.begin(), block.freed);
  made.remedy = {"Give the pointer one owner, or forget it where it is freed:",
                 fmt::format("    {}(ptr{}); ptr = nullptr;", right,
                             right.ends_with("Async") ? ", stream" : ""),
                 "With millpond: `millpond::buffer` owns its block and cannot free it twice."};
}

void free_check::foreign(const trace::event& at, std::uint32_t index,
                         const block_book::free_answer& answer) {
  const std::string call = of_.free_call(trace::as_free(at).call, at.of);
  const bool inside = answer.status == block_book::free_status::inside;
  auto [made, is_new] = of_.found.add(
      flaw::foreign_free, call_site_key(at.stack, trace::as_free(at).call), inside ? 1 : 0, index);
  made.refused = made.refused || at.status != 0;
  if (!is_new) return;
  if (answer.block != no_index) {
    const block_facts& block = of_.book.blocks()[answer.block];
    made.summary = fmt::format("{} was given {:#x}, {} bytes into the {}{}. {}.", call, at.address,
                               at.address - block.address, inside ? "" : "freed ",
                               of_.name_block(block), answered(at));
    of_.place_allocation(made, block);
  } else {
    made.summary = fmt::format("{} was given {:#x}, which no recorded call allocated. {}.", call,
                               at.address, answered(at));
  }
  made.call_sites.push_back({"freed by " + call, at.stack});
  made.seen = "seen: every allocation through the CUDA runtime and driver since the program began";
  made.remedy = {
      inside ? "Free the address that the allocation returned, not one inside the block; keep both:"
             : "Free it with whatever allocated it; memory of malloc or of the stack goes to no "
               "CUDA call:",
      inside ? fmt::format("    {}(base);  // not base + offset", call) : "    free(ptr);"};
}

}  // namespace millpond::advise
