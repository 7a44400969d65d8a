#include "driver/cuda/library.hpp"

#include <dlfcn.h>
#include <link.h>

#include <fmt/format.h>

#include <vector>

#include "base/fork.hpp"
#include "base/process_barrier.hpp"

namespace millpond::cuda {
namespace {

constexpr const char* use_the_simulator = "without a card the simulated GPU serves (--gpu sim)";

// cuGetProcAddress of CUDA 12.0 and later; the last parameter says why a symbol was not found.
using get_address_function = status_value(const char*, void**, int, std::uint64_t, int*);
using init_function = status_value(unsigned);
using version_function = status_value(int*);

template <class Function>
Function* symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

error no_library(const std::string& name, const std::string& why) {
  return {error_code::not_supported,
          fmt::format(
              "the NVIDIA driver's library {} cannot be loaded ({}): this machine has no NVIDIA "
              "driver, or the container was started without it (docker: --gpus all). Install "
              "driver 555 or newer; {}",
              name, why, use_the_simulator)};
}

error too_old(const std::string& path, const std::string& found) {
  return {error_code::not_supported,
          fmt::format(
              "the NVIDIA driver is too old: {} supports CUDA {}, and {} is needed (driver 555 or "
              "newer). Update the driver; {}",
              path, found, version_text(needed_version), use_the_simulator)};
}

error init_refused(const std::string& path, status_value status) {
  const call_result answer{static_cast<driver_status>(status), "cuInit"};
  const auto say = [&](const char* why) {
    return error{error_code::driver_failure,
                 fmt::format("{}; {} ({})", why, to_string(answer), path)};
  };
  switch (status) {
    case static_cast<int>(driver_status::no_device):
      return say(
          "no CUDA device: no NVIDIA GPU is visible to this process. Check nvidia-smi, the "
          "permissions of /dev/nvidia*, and that CUDA_VISIBLE_DEVICES does not hide it");
    case error_stub_library:
      return say(
          "the library found is the toolkit's stub, not the driver: take the stubs folder out of "
          "LD_LIBRARY_PATH");
    case error_system_not_ready:
      return say(
          "the system is not ready for CUDA: on NVSwitch machines start nvidia-fabricmanager");
    case error_system_driver_mismatch:
      return say(
          "libcuda and the kernel module are of different versions: reboot, or reload the module, "
          "after a driver update");
    case error_compat_not_supported:
      return say(
          "the forward-compatibility library does not serve this GPU: take the cuda-compat folder "
          "out of LD_LIBRARY_PATH");
    case static_cast<int>(driver_status::not_initialized):
      return say(
          "the driver did not start: in a child forked after CUDA was used in the parent, start "
          "the child by exec or before CUDA; otherwise see dmesg for the kernel module");
    case static_cast<int>(driver_status::unknown):
      return say(
          "the driver did not start: /dev/nvidia-uvm is often missing or unreadable; run "
          "nvidia-modprobe -u -c 0, and see dmesg");
    default: return say("the driver did not start");
  }
}

std::string path_of(void* library, const std::string& name) {
  link_map* map = nullptr;
  if (::dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr || map->l_name == nullptr ||
      map->l_name[0] == '\0') {
    return name;
  }
  return map->l_name;
}

// Fills one entry; appends the name to `missing` where the driver lacks it.
template <class Signature>
void find(get_address_function* get_address, int version, bool required, entry<Signature>& into,
          std::vector<std::string>& missing) {
  void* found = nullptr;
  int why = 0;
  const status_value status = get_address(into.name, &found, version, 0, &why);
  if (status == 0 && found != nullptr) {
    into.function = reinterpret_cast<Signature*>(found);
  } else if (required) {
    missing.push_back(fmt::format("{} (signature of CUDA {})", into.name, version_text(version)));
  }
}

std::vector<std::string> find_all(get_address_function* get_address, function_table& table) {
  std::vector<std::string> missing;
#define MILLPOND_CUDA_FIND_REQUIRED(member, name, version, parameters) \
  find(get_address, version, true, table.member, missing);
#define MILLPOND_CUDA_FIND_OPTIONAL(member, name, version, parameters) \
  find(get_address, version, false, table.member, missing);
  MILLPOND_CUDA_FUNCTIONS(MILLPOND_CUDA_FIND_REQUIRED, MILLPOND_CUDA_FIND_OPTIONAL)
#undef MILLPOND_CUDA_FIND_REQUIRED
#undef MILLPOND_CUDA_FIND_OPTIONAL
  return missing;
}

}  // namespace

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

result<library> load_library(const std::string& name) {
  library loaded;
  loaded.forks = fork_count();
  process_barrier_available();  // cheap now, dear once the library has started its threads
  void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = ::dlerror();
    return no_library(name, why != nullptr ? why : "no reason given");
  }
  loaded.path = path_of(handle, name);
  // The version first, and by the old way of finding a function, so that a driver of any age can
  // say it.
  auto* get_version = symbol<version_function>(handle, "cuDriverGetVersion");
  auto* init = symbol<init_function>(handle, "cuInit");
  if (get_version == nullptr || init == nullptr) {
    return error{error_code::not_supported,
                 fmt::format("{} is not the NVIDIA driver's library: it lacks {}", loaded.path,
                             get_version == nullptr ? "cuDriverGetVersion" : "cuInit")};
  }
  // Asking costs nothing and needs no cuInit; the stub library refuses even this.
  if (const status_value status = get_version(&loaded.version); status != 0) {
    return init_refused(loaded.path, status);
  }
  auto* get_address = symbol<get_address_function>(handle, "cuGetProcAddress_v2");
  if (loaded.version < needed_version || get_address == nullptr) {
    return too_old(loaded.path, version_text(loaded.version));
  }
  if (const status_value status = init(0); status != 0) return init_refused(loaded.path, status);
  const std::vector<std::string> missing = find_all(get_address, loaded.functions);
  if (!missing.empty()) {
    return error{
        error_code::not_supported,
        fmt::format("{} says CUDA {} but lacks {}{}: the driver is not whole, or another library "
                    "stands in its place",
                    loaded.path, version_text(loaded.version), missing.front(),
                    missing.size() > 1 ? fmt::format(" and {} more functions", missing.size() - 1)
                                       : std::string())};
  }
  return loaded;
}

}  // namespace millpond::cuda
