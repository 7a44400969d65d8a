#include "advise/page_alternatives.hpp"

#include <algorithm>

namespace millpond::advise {
namespace {

using namespace sim::pages;

double transfer_ns(double bytes, double bytes_per_s) {
  return bytes_per_s > 0 ? bytes / bytes_per_s * 1e9 : 0;
}

bool oversubscribed(const run_options& o) {
  return o.device_bytes != 0 && o.bytes > o.device_bytes;
}

// The same kernels on memory that does not move: bytes that one kernel touches, at a rate.
double kernel_ns(const run_options& o, const page_costs& costs, bool over_link) {
  const pattern touches({o.pattern, o.bytes, o.stride, o.touches, o.seed}, costs);
  const double bytes = static_cast<double>(touches.count() * touches.bytes_a_touch());
  if (over_link)
    return costs.launch_ns + costs.remote_round_trip_ns +
           transfer_ns(bytes, costs.remote_bytes_per_s);
  const bool both = o.access == access_kind::read_write;
  return costs.launch_ns +
         transfer_ns(bytes, both ? costs.read_write_pass_bytes_per_s : costs.read_pass_bytes_per_s);
}

}  // namespace

std::vector<page_alternative> page_alternatives(const run_options& asked, const page_costs& costs) {
  std::vector<page_alternative> found;
  const auto rounds = static_cast<double>(asked.rounds);
  const bool ping_pong = asked.pattern == pattern_kind::ping_pong;
  const bool writes = asked.access != access_kind::read;
  const auto as_driver = [&](auto change, std::string what, std::string why) {
    run_options other = asked;
    other.ideal_page_bytes = 0;
    change(other);
    found.push_back({std::move(what), run(other, costs).total_ns(), std::move(why)});
  };
  if (asked.ideal_page_bytes == 0 && !asked.advice.empty()) {
    as_driver([](run_options& o) { o.advice.clear(); }, "no advice",
              "pages move to the kernel that touches them");
  }
  if (asked.each_kernel != run_options::before::prefetch || !asked.advice.empty()) {
    as_driver(
        [](run_options& o) {
          o.advice.clear();
          o.each_kernel = run_options::before::prefetch;
        },
        "prefetch to the device before each kernel",
        "the link works at its rate and nothing faults");
  }
  if (!writes && asked.rounds > 1) {
    as_driver(
        [](run_options& o) {
          o.advice = {{managed_advice::set_read_mostly, memory_location::device}};
          o.each_kernel = run_options::before::prefetch;
        },
        "read-mostly and a prefetch", "both sides keep a copy, and reading never moves it back");
  }
  const auto bytes = static_cast<double>(asked.bytes);
  found.push_back({"mapped pinned memory", rounds * kernel_ns(asked, costs, true),
                   "no page moves: what the kernel touches crosses the link each time"});
  if (!oversubscribed(asked)) {
    // The data crosses once where only the device changes it, or each round in ping-pong.
    const double in =
        asked.start == start_location::host || ping_pong
            ? transfer_ns(bytes, costs.to_device_bytes_per_s) * (ping_pong ? rounds : 1)
            : 0;
    const double out = ping_pong ? rounds * transfer_ns(bytes, costs.to_device_bytes_per_s) : 0;
    const double issued = costs.launch_ns * (ping_pong ? 2 * rounds : in > 0 ? 1 : 0);
    found.push_back({"device memory and copies from pinned memory",
                     in + out + issued + rounds * kernel_ns(asked, costs, false),
                     ping_pong ? "two copies a round at the link's rate"
                               : "one copy at the link's rate, then the memory's own"});
  }
  std::ranges::stable_sort(found, {}, &page_alternative::ns);
  return found;
}

}  // namespace millpond::advise
