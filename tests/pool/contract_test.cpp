// The pool enrolled in the contract suite, over device and pinned memory.
#include "millpond/memory/adaptors.hpp"
#include "millpond/pool/pool.hpp"
#include "support/resource_contract_tests.hpp"

namespace millpond::testing {
namespace {

contract_case pool_case(std::string name, memory_kind kind) {
  contract_case made;
  made.name = std::move(name);
  made.make = [kind](std::shared_ptr<driver> gpu) {
    pool_options options;
    options.kind = kind;
    auto answer = pool::create(std::move(gpu), options);
    if (!answer) throw memory_error(answer.error());
    contract_subject subject;
    subject.add(*answer);
    return subject;
  };
  return made;
}

std::vector<contract_case> pools() {
  std::vector<contract_case> all{pool_case("device_pool", memory_kind::device),
                                 pool_case("pinned_pool", memory_kind::pinned),
                                 pool_case("managed_pool", memory_kind::managed)};
  all[2].bounded = false;
  all.push_back(pool_case("guarded_pool", memory_kind::device));
  all.back().make = [make = all.back().make](std::shared_ptr<driver> gpu) {
    contract_subject subject = make(std::move(gpu));
    subject.add(std::make_shared<guard_resource>(
        *subject.memory, nullptr, guard_options{.name = "pool", .quarantine_bytes = 0}));
    return subject;
  };
  return all;
}
INSTANTIATE_TEST_SUITE_P(pools, resource_contract, ::testing::ValuesIn(pools()), contract_name);

}  // namespace
}  // namespace millpond::testing
