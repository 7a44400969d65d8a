#include "advise/analysis.hpp"

#include <fmt/format.h>

#include "millpond/base/units.hpp"

namespace millpond::advise {
namespace {

const char* usual_allocation(trace::kind of) {
  switch (of) {
    case trace::kind::device: return "cudaMalloc";
    case trace::kind::driver_pool: return "cudaMallocAsync";
    case trace::kind::pinned: return "cudaHostAlloc";
    case trace::kind::managed: return "cudaMallocManaged";
    case trace::kind::pageable: return "malloc";
  }
  return "an allocation";
}

const char* usual_free(trace::kind of) {
  switch (of) {
    case trace::kind::device:
    case trace::kind::managed: return "cudaFree";
    case trace::kind::driver_pool: return "cudaFreeAsync";
    case trace::kind::pinned: return "cudaFreeHost";
    case trace::kind::pageable: return "free";
  }
  return "a free";
}

}  // namespace

std::string analysis::allocate_call(const block_facts& of) const {
  const std::string_view named = text(of.call);
  return named.empty() ? fmt::format("an allocation of {} memory", to_string(of.of))
                       : std::string(named);
}

std::string analysis::allocate_code(const block_facts& of) const {
  const std::string_view named = text(of.call);
  return named.empty() ? usual_allocation(of.of) : std::string(named);
}

std::string analysis::free_call(std::uint64_t call, trace::kind of) const {
  const std::string_view named = text(call);
  return named.empty() ? fmt::format("a free of {} memory", to_string(of)) : std::string(named);
}

std::string analysis::right_free(const block_facts& of) const {
  const std::string_view by = text(of.call);
  if (by.find("Register") != std::string_view::npos)
    return by.starts_with("cu") && by[2] == 'd' ? "cudaHostUnregister" : "cuMemHostUnregister";
  if (by.starts_with("cuMemMap")) return "cuMemUnmap";
  if (by.starts_with("cuMem")) {
    switch (of.of) {
      case trace::kind::driver_pool: return "cuMemFreeAsync";
      case trace::kind::pinned: return "cuMemFreeHost";
      default: return "cuMemFree";
    }
  }
  return usual_free(of.of);
}

std::string analysis::name_block(const block_facts& of) {
  return fmt::format("block of {} at {:#x} (event {})", format_bytes(of.bytes), of.address,
                     of.allocated);
}

void analysis::place_allocation(finding& of, const block_facts& block) const {
  of.call_sites.push_back(
      {block.call == 0 ? "allocated" : "allocated by " + allocate_call(block), block.stack});
}

void analysis::place_free(finding& of, const block_facts& block, std::string_view call) const {
  of.call_sites.push_back({fmt::format("freed by {}", call), block.free_stack});
}

std::string plural(std::uint64_t count, std::string_view one) {
  return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

}  // namespace millpond::advise
