// Opening the real driver, with what tests and the command choose: millpond/driver/driver.hpp has
// the two functions that others call.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "driver/cuda/library.hpp"

namespace millpond::cuda {

struct open_options {
  std::string library = default_library;
};

[[nodiscard]] result<std::shared_ptr<driver>> open_driver(int ordinal, const open_options& options);
[[nodiscard]] result<int> count_devices(const open_options& options);

// What can be said of a device without making a context on it, which takes a third of a second and
// hundreds of MiB.
struct device_facts {
  device_info info;  // granularities are 0 here where the driver wants a context
  std::string pci;   // "0000:17:00.0"
  bool managed_memory = false;
  bool pageable_host_tables = false;  // the device walks the host's own page tables (ATS)
  bool integrated = false;
  bool ecc = false;
  bool mps = false;  // contexts are shared through an MPS server
};
struct driver_facts {
  int version = 0;
  std::string path;
  std::vector<device_facts> devices;
};
[[nodiscard]] result<driver_facts> read_driver_facts(const open_options& options);

}  // namespace millpond::cuda
