#include "bindings/preload/process.hpp"

#include <link.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>

#include "base/fork.hpp"
#include "millpond/base/units.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace millpond::preload {
namespace {

constexpr int most_devices = 64;

// Left as it is at the end of the process: threads and destructors of the program go on calling,
// and the driver gives everything back.
struct process_state {
  const settings chosen = read_settings(std::getenv("MILLPOND_RUN"));
  const std::uint32_t forks = fork_count();
  std::mutex making;
  std::array<std::atomic<served_device*>, most_devices>
      devices{};  // published with what they point to
  std::array<std::atomic<bool>, most_devices> refused{};
  std::atomic<int> count{0};  // of devices; 0: not asked yet
  std::atomic<std::uint64_t> served{0}, left{0};
};
process_state& here() noexcept {
  // A program with no host memory left for this at its first call has none to go on with either.
  // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new)
  static process_state* const made = new process_state;
  return *made;
}

// Our own calls, and whatever the driver calls back meanwhile, are not the program's.
thread_local int inside = 0;
struct scope {
  scope() noexcept { ++inside; }
  ~scope() { --inside; }
};

real_function<status(int*)> cuda_get_device(origin::runtime, "cudaGetDevice");
real_function<status(int*)> cuda_get_device_count(origin::runtime, "cudaGetDeviceCount");
real_function<status(void*)> cuda_free(origin::runtime, "cudaFree");
real_function<status(int*)> cu_context_device(origin::driver, "cuCtxGetDevice");
real_function<status(void**)> cu_context_current(origin::driver, "cuCtxGetCurrent");
real_function<status(void**, int)> cu_primary_retain(origin::driver, "cuDevicePrimaryCtxRetain");
real_function<status(int)> cu_primary_release(origin::driver, "cuDevicePrimaryCtxRelease_v2");
real_function<status(int*)> cu_device_count(origin::driver, "cuDeviceGetCount");

served_device* make_device(int ordinal) noexcept {
  process_state& p = here();
  const std::lock_guard lock(p.making);
  const auto at = static_cast<std::size_t>(ordinal);
  if (auto* const made = p.devices[at].load(std::memory_order_acquire)) return made;
  if (p.refused[at].load(std::memory_order_relaxed)) return nullptr;
  const scope ours;
  std::string why;
  try {
    result<std::shared_ptr<driver>> gpu = error{};
    if (p.chosen.simulated) {
      simulated_gpu_options options;
      options.mode = simulated_gpu_options::contents::bytes;
      options.memory_bytes = GiB;
      auto made = simulated_gpu::create(std::move(options));
      gpu = made ? result<std::shared_ptr<driver>>(std::move(*made))
                 : result<std::shared_ptr<driver>>(made.error());
    } else {
      gpu = open_cuda_driver(ordinal);
    }
    auto made = gpu ? served_device::create(std::move(*gpu), p.chosen)
                    : result<std::unique_ptr<served_device>>(gpu.error());
    if (made) {
      served_device* const out = made->release();
      p.devices[at].store(out, std::memory_order_release);
      return out;
    }
    why = made.error().message;
  } catch (const std::exception& failure) {
    why = failure.what();
  }
  p.refused[at].store(true, std::memory_order_relaxed);
  std::fprintf(
      stderr,
      "millpond: GPU %d is not served, and the program goes on with CUDA's own memory: %s\n",
      ordinal, why.c_str());
  return nullptr;
}

served_device* device_of(int ordinal) noexcept {
  if (ordinal < 0 || ordinal >= most_devices) return nullptr;
  if (auto* const made =
          here().devices[static_cast<std::size_t>(ordinal)].load(std::memory_order_acquire))
    return made;
  return make_device(ordinal);
}

bool out_of_reach() noexcept {
  return inside != 0 || here().forks != fork_count();
}

int look_for_cuda(dl_phdr_info* info, std::size_t, void* data) {
  const std::string_view path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  if (path.substr(path.rfind('/') + 1).starts_with("libcuda.so")) *static_cast<bool*>(data) = true;
  return 0;
}

// At the end: the report, where it was asked for; and where CUDA was used past us, that.
struct last_word {
  ~last_word() {
    process_state& p = here();
    if (p.forks != fork_count()) return;
    const std::uint64_t served = p.served.load(std::memory_order_relaxed);
    const std::uint64_t left = p.left.load(std::memory_order_relaxed);
    // A shell's thirty children ask for nothing, and say nothing.
    const bool has_word = served + left > 0 || p.chosen.root == 0 || p.chosen.root == ::getpid();
    if (p.chosen.report && has_word) {
      std::fprintf(stderr, "millpond: %llu allocations served, %llu left to CUDA\n",
                   static_cast<unsigned long long>(served), static_cast<unsigned long long>(left));
      for (std::size_t at = 0; at < most_devices; ++at) {
        const auto* const device = p.devices[at].load(std::memory_order_acquire);
        if (device == nullptr) continue;
        const served_device::numbers now = device->count();
        std::fprintf(stderr, "millpond: GPU %zu: live at the end %s, reserved at most %s\n", at,
                     format_bytes(now.live_bytes).c_str(),
                     format_bytes(now.peak_reserved_bytes).c_str());
      }
    }
    bool used_cuda = false;
    ::dl_iterate_phdr(look_for_cuda, &used_cuda);
    if (used_cuda && served + left == 0 && !p.chosen.simulated) {
      std::fprintf(stderr,
                   "millpond: this program used CUDA, and none of its allocations came through: it "
                   "has the CUDA runtime linked "
                   "statically, or finds it by dlsym. Link it with -cudart shared (CMake: "
                   "CUDA_RUNTIME_LIBRARY Shared)\n");
    }
  }
};
const last_word at_the_end;

}  // namespace

int devices_of_process() noexcept {
  process_state& p = here();
  int known = p.count.load(std::memory_order_relaxed);
  if (known == 0) {
    if (cuda_get_device_count(&known) != success && cu_device_count(&known) != success) known = 1;
    p.count.store(known, std::memory_order_relaxed);
  }
  return known;
}

served_device* device_by_runtime() noexcept {
  if (out_of_reach()) return nullptr;
  int ordinal = 0;
  if (cuda_get_device(&ordinal) != success) return nullptr;
  if (ordinal >= 0 && ordinal < most_devices &&
      here().devices[static_cast<std::size_t>(ordinal)].load(std::memory_order_acquire) ==
          nullptr &&
      !here().chosen.simulated) {
    const scope ours;
    if (cuda_free(nullptr) != success)
      return nullptr;  // the runtime makes its context first, as it would have
  }
  return device_of(ordinal);
}

served_device* device_by_context() noexcept {
  if (out_of_reach()) return nullptr;
  void* current = nullptr;
  int ordinal = 0;
  if (cu_context_current(&current) != success || current == nullptr ||
      cu_context_device(&ordinal) != success)
    return nullptr;
  // Memory belongs to a context: only what lives in the primary one is ours to give. Asked once a
  // thread and context.
  thread_local void* last_seen = nullptr;
  thread_local bool last_primary = false;
  if (current != last_seen) {
    void* primary = nullptr;
    last_primary = cu_primary_retain(&primary, ordinal) == success && primary == current;
    if (primary != nullptr) static_cast<void>(cu_primary_release(ordinal));
    last_seen = current;
  }
  return last_primary ? device_of(ordinal) : nullptr;
}

found_block find_block(const void* ptr) noexcept {
  found_block out;
  if (ptr == nullptr || out_of_reach()) return out;
  for (auto& each : here().devices) {
    served_device* const device = each.load(std::memory_order_acquire);
    if (device == nullptr) continue;
    out.who = device->find(ptr, &out.range);
    if (out.who != served_device::owner::nobody) {
      out.device = device;
      return out;
    }
  }
  return out;
}

void forget_device_by_runtime() noexcept {
  if (out_of_reach()) return;
  int ordinal = 0;
  if (cuda_get_device(&ordinal) != success || ordinal < 0 || ordinal >= most_devices) return;
  const scope ours;
  delete here().devices[static_cast<std::size_t>(ordinal)].exchange(nullptr,
                                                                    std::memory_order_acq_rel);
}

void say_once(std::atomic<bool>& said, const char* sentence) noexcept {
  if (!said.exchange(true, std::memory_order_relaxed))
    std::fprintf(stderr, "millpond: %s\n", sentence);
}

void count(bool served) noexcept {
  (served ? here().served : here().left).fetch_add(1, std::memory_order_relaxed);
}

bool serve(served_device* device, memory_kind kind, std::uint64_t bytes, void** out) noexcept {
  if (inside != 0) return false;
  void* ptr = nullptr;
  if (device != nullptr && out != nullptr && bytes != 0 && device->serves(kind)) {
    const scope ours;
    const context_guard current(device->gpu(), devices_of_process());
    try {
      ptr = device->allocate(kind, bytes);
    } catch (const std::exception&) {
      ptr = nullptr;
    }
  }
  count(ptr != nullptr);
  if (ptr != nullptr) *out = ptr;
  return ptr != nullptr;
}

bool serve_async(served_device* device, std::uint64_t bytes, stream_handle stream,
                 void** out) noexcept {
  if (inside != 0) return false;
  void* ptr = nullptr;
  if (device != nullptr && out != nullptr && bytes != 0 &&
      device->serves(memory_kind::driver_pool)) {
    const scope ours;
    const context_guard current(device->gpu(), devices_of_process());
    capture_info capture;
    // In a capture the allocation is a node of the graph, which CUDA alone can make.
    if (device->gpu().stream_capture(stream, &capture).ok() &&
        capture.status == capture_status::none) {
      try {
        ptr = device->allocate_async(bytes, stream);
      } catch (const std::exception&) {
        ptr = nullptr;
      }
    }
  }
  count(ptr != nullptr);
  if (ptr != nullptr) *out = ptr;
  return ptr != nullptr;
}

namespace {
template <class Call>
taken on_owner(void* ptr, Call&& call) noexcept {
  if (ptr == nullptr || out_of_reach()) return taken::no;
  for (auto& each : here().devices) {
    served_device* const device = each.load(std::memory_order_acquire);
    if (device == nullptr) continue;
    pool::block_range range;
    const served_device::owner who = device->find(ptr, &range);
    if (who == served_device::owner::nobody) {
      if (device->keeps(ptr)) return taken::before;
      continue;
    }
    const scope ours;
    const context_guard current(device->gpu(), devices_of_process());
    try {
      return call(*device, who) ? taken::yes : taken::no;
    } catch (const std::exception&) {
      return taken::no;
    }
  }
  return taken::no;
}
}  // namespace

taken take_back(void* ptr, freed_as how) noexcept {
  return on_owner(ptr, [ptr, how](served_device& d, served_device::owner who) {
    return (who == served_device::owner::pinned) == (how == freed_as::host_memory) &&
           d.deallocate(ptr);
  });
}
taken take_back_async(void* ptr, stream_handle stream) noexcept {
  return on_owner(ptr, [ptr, stream](served_device& d, served_device::owner who) {
    return who != served_device::owner::pinned && d.deallocate_async(ptr, stream);
  });
}

void* nobodys_memory() noexcept {
  alignas(64) static char never_allocated[64];
  return never_allocated;
}

bool refuses_ipc(const void* ptr) noexcept {
  const found_block found = find_block(ptr);
  if (found.device == nullptr || found.who == served_device::owner::segment) return false;
  static std::atomic<bool> said{false};
  say_once(said,
           "this program shares GPU memory with other processes (IPC handles), which pooled blocks "
           "cannot: run it with "
           "`millpond run --pool --ipc -- PROGRAM`");
  return true;
}

}  // namespace millpond::preload
