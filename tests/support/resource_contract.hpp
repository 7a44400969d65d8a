// The contract of memory_resource, as a suite that every resource is enrolled in by a few lines:
//
//     contract_case mine;
//     mine.name = "device_resource";
//     mine.make = [](std::shared_ptr<driver> gpu) { return make_subject<device_resource>(gpu); };
//     INSTANTIATE_TEST_SUITE_P(kinds, resource_contract, ::testing::Values(mine), contract_name);
//
// The tests themselves are in resource_contract_tests.hpp, which one file of each test program
// includes.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "millpond/base/units.hpp"
#include "millpond/memory/memory_resource.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace millpond::testing {

// A resource and all that it stands on, ended in the reverse order of `parts`.
struct contract_subject {
  std::vector<std::shared_ptr<void>> parts;
  memory_resource* memory = nullptr;

  contract_subject() = default;
  contract_subject(contract_subject&&) = default;
  contract_subject& operator=(contract_subject&&) = delete;
  ~contract_subject() {
    while (!parts.empty()) parts.pop_back();
  }

  // The last one added is the one under test.
  template <class Resource>
  Resource& add(std::shared_ptr<Resource> part) {
    memory = part.get();
    parts.push_back(part);
    return *part;
  }
};

template <class Resource, class... Arguments>
contract_subject make_subject(Arguments&&... arguments) {
  contract_subject made;
  made.add(std::make_shared<Resource>(std::forward<Arguments>(arguments)...));
  return made;
}

struct contract_case {
  std::string name;  // letters, digits and underscores
  // May throw out_of_memory or memory_error, as when a driver call fails.
  std::function<contract_subject(std::shared_ptr<driver>)> make;
  // The device that it is tested on. Default: a simulated GPU with 2 GiB.
  std::function<std::shared_ptr<driver>()> open;
  // Whether its memory ends where the simulated device's does (false for pageable memory).
  bool bounded = true;
  // The largest block of the sweep of sizes.
  std::uint64_t largest_bytes = GiB;
  // Codes that are right for a free that is not; the default is what every resource here answers.
  std::vector<error_code> double_free{error_code::double_free};
  std::vector<error_code> interior{error_code::interior_pointer};
  std::vector<error_code> foreign{error_code::foreign_pointer};
  // A block of another kind, pageable or pinned, that this resource has never seen.
  std::vector<error_code> other_kind{error_code::wrong_kind, error_code::foreign_pointer};
};

inline void PrintTo(const contract_case& of, std::ostream* out) {
  *out << of.name;
}
inline std::string contract_name(const ::testing::TestParamInfo<contract_case>& info) {
  return info.param.name;
}

// A simulated GPU with so much device memory and as much host memory to pin.
[[nodiscard]] std::shared_ptr<simulated_gpu> small_gpu(std::uint64_t bytes);

class resource_contract : public ::testing::TestWithParam<contract_case> {
 protected:
  void SetUp() override;
  void TearDown()
      override;  // ends the subject; on a simulated GPU nothing may be left and no rule broken

  [[nodiscard]] memory_resource& memory() { return *subject_->memory; }
  [[nodiscard]] driver& gpu() { return *gpu_; }
  [[nodiscard]] simulated_gpu* simulator() { return dynamic_cast<simulated_gpu*>(gpu_.get()); }
  // A stream that lives until the end of the test.
  [[nodiscard]] stream_handle new_stream();
  void make_on(std::shared_ptr<driver> gpu);

  // Writes the identity into the block and checks it, by kernels where they reach the memory and by
  // the CPU where that does; answers the words that were wrong.
  void write_identity(void* block, std::uint64_t bytes, std::uint64_t identity,
                      stream_handle stream);
  [[nodiscard]] std::uint64_t wrong_words(void* block, std::uint64_t bytes, std::uint64_t identity,
                                          stream_handle stream);
  // The failed free has one of the codes, says something, and changed nothing.
  void expect_refused(const result<void>& answer, const std::vector<error_code>& codes);

 private:
  std::shared_ptr<driver> gpu_;
  std::unique_ptr<contract_subject> subject_;
  std::vector<stream_handle> streams_;
};

}  // namespace millpond::testing
