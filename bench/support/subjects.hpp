// The allocators that a benchmark compares: millpond's own two ways, and the peers of plug-ins.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "bench/support/harness.hpp"

namespace millpond::bench {

// By cache handle, and by the plain call.
void add_millpond(std::vector<std::unique_ptr<subject>>& to, const std::shared_ptr<driver>& gpu);
// A plug-in that cannot be loaded is left out, and the reason printed.
void add_peers(std::vector<std::unique_ptr<subject>>& to, const std::string& file);

}  // namespace millpond::bench
