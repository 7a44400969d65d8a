#include "advise/finding.hpp"

#include <array>

namespace millpond::advise {
namespace {

constexpr std::array<flaw_facts, flaw_count> table{{
    {"wrong_kind_free", "freed through another kind's call", "", severity::error},
    {"double_free", "freed a second time", "", severity::error},
    {"foreign_free", "freed what was never allocated", "", severity::error},
    {"use_after_free", "used after its free", "", severity::error},
    {"free_while_in_use", "freed while another stream may still use it", "", severity::error},
    {"use_before_allocation", "used on a stream that does not wait for its allocation", "",
     severity::error},
    {"managed_touched_unsynchronised", "managed memory touched by the CPU while the GPU may use it",
     "", severity::error},
    {"leak", "never freed", "memory leak", severity::waste},
    {"growth_without_end", "memory that only grows", "memory leak", severity::waste},
    {"device_wide_stall", "calls that wait for the whole device", "", severity::waste},
    {"allocation_churn", "allocated again for each request", "", severity::waste},
    {"pool_gives_back", "a driver pool that gives its memory back at each synchronise", "",
     severity::waste},
    {"pageable_async_copy", "asynchronous copies of pageable memory, which block", "",
     severity::waste},
    {"pinned_overuse", "more pinned memory than copies need", "", severity::waste},
    {"managed_thrash", "managed pages that go back and forth", "", severity::waste},
    {"wrong_advice", "managed memory with advice against its use", "", severity::waste},
    {"fragmentation", "reserved memory that nothing fits into", "", severity::waste},
    {"unused_allocation", "never used", "unused allocation", severity::waste},
    {"overallocation", "larger than what is used of it", "overallocation", severity::waste},
    {"early_allocation", "allocated long before its first use", "early allocation",
     severity::waste},
    {"late_deallocation", "freed long after its last use", "late deallocation", severity::waste},
    {"temporary_idleness", "idle for long between two uses", "temporary idleness", severity::waste},
    {"redundant_allocation", "could use another block's memory", "redundant allocation",
     severity::waste},
    {"dead_write", "written twice with no read between", "dead write", severity::waste},
    {"allocator_time", "the share of time that goes into allocating", "", severity::waste},
    {"failed_allocation", "allocations that failed", "", severity::note},
}};

}  // namespace

const char* to_string(severity of) noexcept {
  switch (of) {
    case severity::error: return "error";
    case severity::waste: return "waste";
    case severity::note: return "note";
  }
  return "unknown";
}

const flaw_facts& facts_of(flaw which) noexcept {
  return table[static_cast<std::size_t>(which)];
}

std::optional<flaw> find_flaw(std::string_view name) noexcept {
  for (std::size_t at = 0; at < table.size(); ++at) {
    if (name == table[at].name) return static_cast<flaw>(at);
  }
  return std::nullopt;
}

}  // namespace millpond::advise
