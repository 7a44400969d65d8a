// The contract on a real card: the five kinds and the adaptors that change what reaches the driver.
#include "millpond/guard_resource.hpp"
#include "millpond/kinds.hpp"
#include "support/resource_contract_tests.hpp"

namespace millpond::testing {
namespace {

using shared_driver = std::shared_ptr<driver>;

// nullptr where there is no card: the suite has no cases then, and says so.
shared_driver card() {
  static const shared_driver opened = [] {
    auto answer = open_cuda_driver(0);
    return answer ? *answer : shared_driver();
  }();
  return opened;
}

std::vector<contract_case> cases() {
  if (card() == nullptr) return {};
  std::vector<contract_case> all(6);
  all[0].name = "device_resource";
  all[0].make = [](shared_driver gpu) { return make_subject<device_resource>(gpu); };
  all[1].name = "pinned_resource";
  all[1].make = [](shared_driver gpu) { return make_subject<pinned_resource>(gpu); };
  all[2].name = "managed_resource";
  all[2].make = [](shared_driver gpu) { return make_subject<managed_resource>(gpu); };
  all[3].name = "pageable_resource";
  all[3].make = [](shared_driver gpu) { return make_subject<pageable_resource>(gpu); };
  all[4].name = "driver_pool_resource";
  all[4].make = [](shared_driver gpu) { return make_subject<driver_pool_resource>(gpu); };
  all[5].name = "guard_resource";
  all[5].make = [](shared_driver gpu) {
    contract_subject made;
    auto& below = made.add(std::make_shared<driver_pool_resource>(gpu));
    made.add(std::make_shared<guard_resource>(below, nullptr));
    return made;
  };
  for (contract_case& each : all) each.open = card;
  return all;
}
INSTANTIATE_TEST_SUITE_P(card, resource_contract, ::testing::ValuesIn(cases()), contract_name);

TEST(card, is_there) {
  if (card() == nullptr) GTEST_SKIP() << open_cuda_driver(0).error().message;
  EXPECT_FALSE(card()->simulated());
}

}  // namespace
}  // namespace millpond::testing
