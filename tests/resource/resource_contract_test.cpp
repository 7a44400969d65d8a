// The contract suite, and the five kinds and the adaptors enrolled in it.
#include "millpond/memory/adaptors.hpp"
#include "millpond/memory/kinds.hpp"
#include "support/resource_contract_tests.hpp"

namespace millpond::testing {
namespace {

using shared_driver = std::shared_ptr<driver>;

contract_case kind_case(std::string name, std::function<contract_subject(shared_driver)> make) {
  contract_case made;
  made.name = std::move(name);
  made.make = std::move(make);
  return made;
}

std::vector<contract_case> kinds() {
  std::vector<contract_case> all{
      kind_case("device_resource",
                [](shared_driver gpu) { return make_subject<device_resource>(gpu); }),
      kind_case("pinned_resource",
                [](shared_driver gpu) { return make_subject<pinned_resource>(gpu); }),
      kind_case("write_combined_resource",
                [](shared_driver gpu) {
                  return make_subject<pinned_resource>(gpu, nullptr,
                                                       pinned_resource::caching::write_combined);
                }),
      kind_case("managed_resource",
                [](shared_driver gpu) { return make_subject<managed_resource>(gpu); }),
      kind_case("pageable_resource",
                [](shared_driver gpu) { return make_subject<pageable_resource>(gpu); }),
      kind_case("driver_pool_resource",
                [](shared_driver gpu) { return make_subject<driver_pool_resource>(gpu); }),
      kind_case("host_driver_pool_resource", [](shared_driver gpu) {
        return make_subject<driver_pool_resource>(
            gpu, driver_pool_options{.location = memory_location::host});
      })};
  for (contract_case& each : all) {
    // Managed memory may be larger than the device, and pageable memory is the host's.
    if (each.name == "managed_resource" || each.name == "pageable_resource") each.bounded = false;
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(kinds, resource_contract, ::testing::ValuesIn(kinds()), contract_name);

std::vector<contract_case> adaptors() {
  return {
      kind_case("limit_resource",
                [](shared_driver gpu) {
                  contract_subject made;
                  auto& below = made.add(std::make_shared<device_resource>(gpu));
                  made.add(std::make_shared<limit_resource>(below, 8 * GiB));
                  return made;
                }),
      kind_case("statistics_resource",
                [](shared_driver gpu) {
                  contract_subject made;
                  auto& below = made.add(std::make_shared<pinned_resource>(gpu));
                  made.add(std::make_shared<statistics_resource>(below));
                  return made;
                }),
      kind_case("trace_resource",
                [](shared_driver gpu) {
                  contract_subject made;
                  auto& below = made.add(std::make_shared<driver_pool_resource>(gpu));
                  made.add(std::make_shared<trace_resource>(below, [](const trace::event&) {}));
                  return made;
                }),
      kind_case("guard_resource",
                [](shared_driver gpu) {
                  contract_subject made;
                  const auto registry = std::make_shared<pointer_registry>();
                  auto& below = made.add(std::make_shared<device_resource>(gpu, registry));
                  made.add(std::make_shared<guard_resource>(below, registry));
                  return made;
                }),
      kind_case("guard_resource_with_quarantine",
                [](shared_driver gpu) {
                  contract_subject made;
                  auto& below = made.add(std::make_shared<driver_pool_resource>(gpu));
                  made.add(std::make_shared<guard_resource>(
                      below, nullptr, guard_options{.name = "pool", .quarantine_bytes = 64 * MiB}));
                  return made;
                }),
      kind_case("a_stack_of_all_adaptors", [](shared_driver gpu) {
        contract_subject made;
        const auto registry = std::make_shared<pointer_registry>();
        auto& kind = made.add(std::make_shared<device_resource>(gpu, registry));
        auto& guard = made.add(std::make_shared<guard_resource>(kind, registry));
        auto& counted = made.add(std::make_shared<statistics_resource>(guard));
        auto& traced =
            made.add(std::make_shared<trace_resource>(counted, [](const trace::event&) {}));
        made.add(std::make_shared<limit_resource>(traced, 8 * GiB));
        return made;
      })};
}
INSTANTIATE_TEST_SUITE_P(adaptors, resource_contract, ::testing::ValuesIn(adaptors()),
                         contract_name);

// The rule on streams has teeth: an allocator that breaks it is found by what the suite looks at.
TEST(resource_contract_itself, an_allocator_that_reuses_blocks_at_once_is_found) {
  const auto gpu = small_gpu(GiB);
  device_resource device(gpu);
  stream_handle slow = nullptr, other = nullptr;
  ASSERT_TRUE(gpu->stream_create(&slow).ok());
  ASSERT_TRUE(gpu->stream_create(&other).ok());
  void* const block = device.allocate(MiB, slow);
  const auto at = reinterpret_cast<device_address>(block);
  const auto use = [&](std::uint64_t duration_ns, stream_handle stream) {
    kernel_description kernel;
    kernel.name = "uses a block";
    kernel.duration_ns = duration_ns;
    kernel.accesses.push_back({at, MiB, access_kind::write});
    EXPECT_TRUE(gpu->launch(kernel, stream).ok());
  };
  gpu->note_allocate(at, MiB, slow, "first");
  use(10'000'000, slow);
  gpu->note_free(at, MiB, slow, "first");
  gpu->note_allocate(at, MiB, other, "second");
  use(1000, other);
  EXPECT_GT(gpu->violation_count(), 0u);
  device.deallocate(block, MiB, slow);
  EXPECT_TRUE(gpu->stream_destroy(slow).ok());
  EXPECT_TRUE(gpu->stream_destroy(other).ok());
}

}  // namespace
}  // namespace millpond::testing
