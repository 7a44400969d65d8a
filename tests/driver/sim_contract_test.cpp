// The simulated GPU under the suite that the card answers to.
#include "driver/driver_contract.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace millpond {
namespace {

contract_subject simulated() {
  const auto open = [](std::string& why_not) -> std::shared_ptr<driver> {
    simulated_gpu_options options;
    options.mode = simulated_gpu_options::contents::bytes;
    options.memory_bytes = GiB;
    auto made = simulated_gpu::create(std::move(options));
    if (made) return *made;
    why_not = made.error().message;
    return nullptr;
  };
  const auto finish = [](driver& gpu) {
    auto& simulated = static_cast<simulated_gpu&>(gpu);
    EXPECT_EQ(to_string(simulated.leaks()), "nothing");
  };
  return {"simulated", open, finish};
}

INSTANTIATE_TEST_SUITE_P(drivers, driver_contract, testing::Values(simulated()),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace millpond
