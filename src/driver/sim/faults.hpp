// The fault plan at work: asked once a call, it answers what goes wrong with it.
#pragma once
#include <cstdint>
#include <vector>

#include "driver/sim/calls.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace millpond::sim {

class faults {
 public:
  struct verdict {
    bool fails = false;
    bool loses_device = false;
    driver_status status = driver_status::success;
    std::uint64_t slow_ns = 0;
  };
  void set(std::vector<fault> plan) {
    plan_.clear();
    for (fault& each : plan) plan_.push_back({std::move(each), 0});
  }
  verdict ask(call which) noexcept {
    verdict out;
    for (counted& each : plan_) {
      const call_facts& facts = call_table[static_cast<std::size_t>(which)];
      const bool matches = each.what.call.empty() || each.what.call == facts.name ||
                           (each.what.call == "allocation" && facts.takes_memory);
      if (!matches) continue;
      const std::uint64_t number = ++each.calls;
      if (number < each.what.at || number - each.what.at >= each.what.count) continue;
      switch (each.what.effect) {
        case fault::what::fail:
          out.fails = true;
          out.status = each.what.status;
          break;
        case fault::what::slow: out.slow_ns += each.what.slow_ns; break;
        case fault::what::lose_device:
          out.loses_device = true;
          out.status = each.what.status == driver_status::out_of_memory
                           ? driver_status::launch_failed
                           : each.what.status;
          break;
      }
    }
    return out;
  }

 private:
  struct counted {
    fault what;
    std::uint64_t calls = 0;
  };
  std::vector<counted> plan_;
};

}  // namespace millpond::sim
