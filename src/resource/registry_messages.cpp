#include "resource/registry_messages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "millpond/base/units.hpp"

namespace millpond {
namespace {

std::string bytes_text(std::uint64_t bytes) {
  return bytes < KiB ? fmt::format("{} bytes", bytes)
                     : fmt::format("{} bytes ({})", bytes, format_bytes(bytes));
}

// "0x7f00 (4096 bytes (4.00 KiB)) was allocated by cuMemHostAlloc (pinned_resource) at main.cpp:12,
// main".
std::string allocated_text(const block_facts& block) {
  return fmt::format("{:#x}, {}, was allocated by {} ({}) at {}", block.address,
                     bytes_text(block.bytes), block.owner->allocate_call, block.owner->name,
                     to_string(block.allocated));
}

// "through cuMemFree (device_resource) at main.cpp:30, main".
std::string through_text(const free_attempt& attempt) {
  return fmt::format("through {} ({}) at {}", attempt.through->free_call, attempt.through->name,
                     to_string(attempt.freed));
}

constexpr const char* stays = "; the block stays allocated";

}  // namespace

error wrong_owner(const free_attempt& attempt, const block_facts& block) {
  const bool same_kind = block.owner->kind == attempt.through->kind;
  return {same_kind ? error_code::foreign_pointer : error_code::wrong_kind,
          fmt::format("{} and freed {}, which {}; free it through {}{}", allocated_text(block),
                      through_text(attempt),
                      same_kind ? std::string("did not allocate it")
                                : fmt::format("frees {} memory and not {}",
                                              to_string(attempt.through->kind),
                                              to_string(block.owner->kind)),
                      block.owner->free_call, stays)};
}

error wrong_size(const free_attempt& attempt, const block_facts& block) {
  return {error_code::invalid_argument,
          fmt::format("{} and freed as {} {}{}", allocated_text(block), bytes_text(attempt.bytes),
                      through_text(attempt), stays)};
}

error freed_twice(const free_attempt& attempt, const freed_block& before) {
  return {error_code::double_free,
          fmt::format("{}, freed by {} ({}) at {}, and freed again {}", allocated_text(before.was),
                      before.by->free_call, before.by->name, to_string(before.freed),
                      through_text(attempt))};
}

error interior(const free_attempt& attempt, const block_facts& block) {
  return {error_code::interior_pointer,
          fmt::format("{:#x} freed {} lies {} into a block: {}{}", attempt.address,
                      through_text(attempt), bytes_text(attempt.address - block.address),
                      allocated_text(block), stays)};
}

error foreign(const free_attempt& attempt) {
  return {error_code::foreign_pointer,
          fmt::format("{:#x} freed {} is no block of any resource in this registry",
                      attempt.address, through_text(attempt))};
}

leak_report add_up(const std::vector<block_facts>& blocks) {
  // By what the place says, not by where its text lies: an inline function has a copy in each file.
  std::map<std::tuple<std::string, std::string>, leak_report::line> call_sites;
  leak_report report;
  for (const block_facts& block : blocks) {
    std::string where = to_string(block.allocated);
    auto& line = call_sites[{where, block.owner->name}];
    line.allocated = std::move(where);
    line.owner = block.owner->name;
    line.kind = block.owner->kind;
    ++line.blocks;
    line.bytes += block.bytes;
    ++report.blocks;
    report.bytes += block.bytes;
  }
  for (auto& [key, line] : call_sites) report.lines.push_back(std::move(line));
  std::stable_sort(report.lines.begin(), report.lines.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return report;
}

std::string leak_report::text() const {
  constexpr std::size_t most = 20;
  std::string out = fmt::format("{} block{}, {}, never freed", blocks, blocks == 1 ? "" : "s",
                                format_bytes(bytes));
  for (std::size_t at = 0; at < lines.size() && at < most; ++at) {
    const line& each = lines[at];
    out += fmt::format("\n  {} in {} block{} of {} ({} memory), allocated at {}",
                       format_bytes(each.bytes), each.blocks, each.blocks == 1 ? "" : "s",
                       each.owner, to_string(each.kind), each.allocated);
  }
  if (lines.size() > most) out += fmt::format("\n  and {} more call sites", lines.size() - most);
  return out;
}

}  // namespace millpond
