// The contract on a real card: the five kinds, the pool, and the guard, which changes what reaches
// the driver.
#include "millpond/memory/adaptors.hpp"
#include "millpond/memory/kinds.hpp"
#include "millpond/pool/pool.hpp"
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
  std::vector<contract_case> all(8);
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
  for (const memory_kind kind : {memory_kind::device, memory_kind::pinned}) {
    contract_case& pooled = kind == memory_kind::device ? all[6] : all[7];
    pooled.name = kind == memory_kind::device ? "device_pool" : "pinned_pool";
    pooled.make = [kind](shared_driver gpu) {
      pool_options options;
      options.kind = kind;
      auto answer = pool::create(std::move(gpu), options);
      if (!answer) throw memory_error(answer.error());
      contract_subject made;
      made.add(*answer);
      return made;
    };
  }
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
