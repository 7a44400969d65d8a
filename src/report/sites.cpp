#include "report/sites.hpp"

#include <fmt/format.h>

#include "base/bits.hpp"
#include "millpond/base/units.hpp"
#include "trace/event_views.hpp"

namespace millpond::report {

std::uint64_t key_of_site(const trace::event& allocation) {
  const std::uint64_t call = trace::as_allocation(allocation).call;
  if (allocation.stack != 0)
    return (std::uint64_t{1} << 63) | (std::uint64_t{allocation.stack} << 24) | (call & 0xffffff);
  return (std::uint64_t{static_cast<std::uint8_t>(allocation.of)} << 40) |
         (std::uint64_t{floor_log2(allocation.bytes)} << 32) | call;
}

std::string label_without_stack(const trace::event& allocation, const trace::trace_info& info) {
  const std::string_view call = info.strings.at(trace::as_allocation(allocation).call);
  const std::uint64_t low = std::uint64_t{1} << floor_log2(allocation.bytes);
  return fmt::format("{}{} to {}", call.empty() ? "" : std::string(call) + ", ", format_bytes(low),
                     format_bytes(low > UINT64_MAX / 2 ? low : low * 2));
}

std::string name_of_call(const trace::event& of, const trace::trace_info& info) {
  const std::string_view name = info.strings.at(trace::name_of(of));
  return name.empty() ? fmt::format("{} ({})", trace::to_string(of.what), trace::to_string(of.of))
                      : std::string(name);
}

}  // namespace millpond::report
