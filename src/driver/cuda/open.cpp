#include "driver/cuda/open.hpp"

#include <fmt/format.h>

#include "driver/cuda/cuda_driver.hpp"

namespace millpond::cuda {
namespace {

constexpr std::size_t name_bytes = 256;

// 0 where the driver does not know the attribute: then the device lacks what it asks for.
int attribute(const function_table& functions, device_ordinal device, int which,
              int otherwise = 0) {
  int value = otherwise;
  if (functions.device_get_attribute.function(&value, which, device) != 0) return otherwise;
  return value;
}

std::uint64_t granularity(const function_table& functions, mem_location location) {
  const allocation_properties properties = physical_properties(location, handle_none);
  std::size_t bytes = 0;
  if (functions.granularity.function(&bytes, &properties, granularity_minimum) != 0) return 0;
  return bytes;
}

call_result read_info(const library& loaded, device_ordinal device, device_info& info) {
  const function_table& functions = loaded.functions;
  const auto has = [&](int which) { return attribute(functions, device, which) != 0; };
  char name[name_bytes] = {};
  if (const status_value status =
          functions.device_get_name.function(name, static_cast<int>(name_bytes) - 1, device);
      status != 0) {
    return {static_cast<driver_status>(status), functions.device_get_name.name};
  }
  std::size_t total = 0;
  if (const status_value status = functions.device_total_memory.function(&total, device);
      status != 0) {
    return {static_cast<driver_status>(status), functions.device_total_memory.name};
  }
  info.name = name;
  info.ordinal = device;
  info.driver_version = loaded.version;
  info.compute_major = attribute(functions, device, attribute_compute_major);
  info.compute_minor = attribute(functions, device, attribute_compute_minor);
  info.multiprocessors = attribute(functions, device, attribute_multiprocessors);
  info.total_bytes = total;
  info.virtual_memory = has(attribute_virtual_memory);
  info.memory_pools = has(attribute_memory_pools);
  info.concurrent_managed_access = has(attribute_concurrent_managed);
  info.pageable_memory_access = has(attribute_pageable_access);
  info.posix_fd_export = has(attribute_posix_fd);
  info.unified_addressing = has(attribute_unified_addressing);
  info.host_numa_id = attribute(functions, device, attribute_host_numa_id, -1);
  info.l2_bytes = static_cast<std::uint64_t>(attribute(functions, device, attribute_l2_bytes));
  if (info.virtual_memory) {
    info.granularity = granularity(functions, {location_device, device});
    info.host_granularity = granularity(functions, host_location_of(info.host_numa_id));
  }
  return {};
}

result<int> count(const library& loaded) {
  int devices = 0;
  const function_table& functions = loaded.functions;
  if (const status_value status = functions.device_get_count.function(&devices); status != 0) {
    return to_error({static_cast<driver_status>(status), functions.device_get_count.name},
                    "counting the GPUs");
  }
  return devices;
}

error no_such_device(int ordinal, int devices) {
  if (devices == 0) {
    return {error_code::driver_failure,
            "no CUDA device: the NVIDIA driver is there and no GPU is visible to this process; "
            "without a "
            "card the simulated GPU serves (--gpu sim)"};
  }
  return {error_code::invalid_argument,
          devices == 1 ? fmt::format("there is no GPU {}: this process sees one, GPU 0", ordinal)
                       : fmt::format("there is no GPU {}: this process sees {}, GPU 0 to {}",
                                     ordinal, devices, devices - 1)};
}

error no_context(call_result answer, int ordinal) {
  error failure = to_error(answer, fmt::format("making a context on GPU {}", ordinal));
  if (answer.status == driver_status::device_unavailable) {
    failure.message +=
        "; another process holds the GPU in exclusive mode (nvidia-smi -q -d COMPUTE)";
  } else if (answer.status == driver_status::out_of_memory) {
    failure.message += "; its memory is full: nvidia-smi shows who holds it";
  }
  return failure;
}

// Loads the kernels with the context current and the caller's capture mode and context put back
// after: another thread may be capturing, and loading a module would break that.
kernel_set load_kernels_in(const function_table& functions, context_handle context) {
  context_handle before = nullptr;
  functions.context_get_current.function(&before);
  int mode = static_cast<int>(capture_mode::relaxed);
  const bool relaxed = functions.exchange_capture_mode.function(&mode) == 0;
  kernel_set kernels;
  if (const status_value status = functions.context_set_current.function(context); status != 0) {
    kernels.failure = {static_cast<driver_status>(status), functions.context_set_current.name};
  } else {
    kernels = load_kernels(functions);
    functions.context_set_current.function(before);
  }
  if (relaxed) functions.exchange_capture_mode.function(&mode);
  return kernels;
}

}  // namespace

result<std::shared_ptr<driver>> open_driver(int ordinal, const open_options& options) {
  result<library> loaded = load_library(options.library);
  if (!loaded) return loaded.error();
  const function_table& functions = loaded->functions;
  const result<int> devices = count(*loaded);
  if (!devices) return devices.error();
  if (ordinal < 0 || ordinal >= *devices) return no_such_device(ordinal, *devices);
  device_ordinal device = 0;
  if (const status_value status = functions.device_get.function(&device, ordinal); status != 0) {
    return to_error({static_cast<driver_status>(status), functions.device_get.name},
                    fmt::format("opening GPU {}", ordinal));
  }
  device_info info;
  context_handle context = nullptr;
  if (const status_value status = functions.primary_context_retain.function(&context, device);
      status != 0) {
    return no_context({static_cast<driver_status>(status), functions.primary_context_retain.name},
                      ordinal);
  }
  if (const call_result answer = read_info(*loaded, device, info); !answer) {
    functions.primary_context_release.function(device);
    return to_error(answer, fmt::format("reading what GPU {} can do", ordinal));
  }
  info.ordinal = ordinal;
  const kernel_set kernels = load_kernels_in(functions, context);
  return std::shared_ptr<driver>(
      std::make_shared<cuda_driver>(*loaded, device, context, std::move(info), kernels));
}

result<int> count_devices(const open_options& options) {
  const result<library> loaded = load_library(options.library);
  if (!loaded) return loaded.error();
  return count(*loaded);
}

result<driver_facts> read_driver_facts(const open_options& options) {
  const result<library> loaded = load_library(options.library);
  if (!loaded) return loaded.error();
  const function_table& functions = loaded->functions;
  const result<int> devices = count(*loaded);
  if (!devices) return devices.error();
  driver_facts facts;
  facts.version = loaded->version;
  facts.path = loaded->path;
  for (int ordinal = 0; ordinal < *devices; ++ordinal) {
    device_ordinal device = 0;
    if (const status_value status = functions.device_get.function(&device, ordinal); status != 0) {
      return to_error({static_cast<driver_status>(status), functions.device_get.name},
                      fmt::format("asking about GPU {}", ordinal));
    }
    device_facts each;
    if (const call_result answer = read_info(*loaded, device, each.info); !answer) {
      return to_error(answer, fmt::format("asking about GPU {}", ordinal));
    }
    each.info.ordinal = ordinal;
    each.pci =
        fmt::format("{:04x}:{:02x}:{:02x}.0", attribute(functions, device, attribute_pci_domain),
                    attribute(functions, device, attribute_pci_bus),
                    attribute(functions, device, attribute_pci_device));
    each.managed_memory = attribute(functions, device, attribute_managed_memory) != 0;
    each.pageable_host_tables = attribute(functions, device, attribute_pageable_host_tables) != 0;
    each.integrated = attribute(functions, device, attribute_integrated) != 0;
    each.ecc = attribute(functions, device, attribute_ecc_enabled) != 0;
    each.mps = attribute(functions, device, attribute_mps) != 0;
    facts.devices.push_back(std::move(each));
  }
  return facts;
}

}  // namespace millpond::cuda

namespace millpond {

result<std::shared_ptr<driver>> open_cuda_driver(int ordinal) {
  return cuda::open_driver(ordinal, cuda::open_options{});
}

result<int> count_cuda_devices() {
  return cuda::count_devices(cuda::open_options{});
}

}  // namespace millpond
