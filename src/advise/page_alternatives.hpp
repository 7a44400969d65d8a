// What else could be done instead of one way of using managed memory, and what each would cost.
#pragma once
#include <string>
#include <vector>

#include "driver/sim/pages/machine.hpp"

namespace millpond::advise {

struct page_alternative {
  std::string what;  // "prefetch to the device before each kernel"
  double ns = 0;     // all rounds together
  std::string why;   // one sentence
};

// Alternatives that serve the same program, the fastest first; those that change nothing are left
// out. The first is worth taking where its time is well below the run's own.
[[nodiscard]] std::vector<page_alternative> page_alternatives(const sim::pages::run_options& asked,
                                                              const sim::pages::page_costs& costs);

}  // namespace millpond::advise
