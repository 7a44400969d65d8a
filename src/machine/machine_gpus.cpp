// The facts that the driver knows.
#include "driver/cuda/open.hpp"
#include "machine/machine_facts.hpp"

namespace millpond {
namespace {

gpu_facts look_at(const cuda::device_facts& device) {
  gpu_facts gpu;
  gpu.info = device.info;
  gpu.pci = device.pci;
  gpu.managed_memory = device.managed_memory;
  gpu.pageable_host_tables = device.pageable_host_tables;
  gpu.integrated = device.integrated;
  gpu.ecc = device.ecc;
  gpu.mps = device.mps;
  auto opened = open_cuda_driver(device.info.ordinal);
  if (!opened) {
    gpu.open_failure = opened.error().message;
    return gpu;
  }
  gpu.info = (*opened)->info();
  std::uint64_t free = 0, total = 0;
  call_result answer = (*opened)->bind_thread();
  if (answer) answer = (*opened)->memory_info(&free, &total);
  if (answer) {
    gpu.free_bytes = free;
  } else {
    gpu.open_failure = to_string(answer);
  }
  return gpu;
}

}  // namespace

void read_gpu_facts(machine_facts& facts, int only) {
  const result<cuda::driver_facts> driver = cuda::read_driver_facts({});
  if (!driver) {
    facts.driver_failure = driver.error().message;
    return;
  }
  facts.driver_version = driver->version;
  facts.loaded_library = driver->path;
  for (const cuda::device_facts& device : driver->devices) {
    if (only >= 0 && device.info.ordinal != only) continue;
    facts.gpus.push_back(look_at(device));
  }
}

}  // namespace millpond
