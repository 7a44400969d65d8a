// What CUPTI counts of managed memory, by when it is asked: a process for each order, the same work
// in each, and when its counts come. managed_watch follows from what this printed on a card.
//   cupti_orders            all orders
//   cupti_orders ORDER      one, in this process
#include <cuda.h>
#include <cupti.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

namespace {

using namespace std::chrono_literals;

constexpr std::size_t kinds = 16;
std::atomic<std::uint64_t> records[kinds], values[kinds];
std::atomic<std::uint64_t> dropped;
decltype(&cuptiActivityGetNextRecord) next_record;
decltype(&cuptiActivityGetNumDroppedRecords) dropped_records;

template <class Function>
Function find(void* library, const char* name) {
  auto found = reinterpret_cast<Function>(dlsym(library, name));
  if (found == nullptr) std::printf("  %s is missing\n", name);
  return found;
}

void* open_first(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_GLOBAL)) return library;
  }
  return nullptr;
}

void CUPTIAPI give(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most) {
  *bytes = std::size_t{1} << 20;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, *bytes));
  *most = 0;
}
void CUPTIAPI take(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t,
                   std::size_t valid) {
  CUpti_Activity* record = nullptr;
  while (next_record(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER) continue;
    const auto& of = *reinterpret_cast<const CUpti_ActivityUnifiedMemoryCounter3*>(record);
    const auto kind = static_cast<std::size_t>(of.counterKind) % kinds;
    records[kind] += 1;
    values[kind] += of.value;
  }
  std::size_t lost = 0;
  if (dropped_records != nullptr && dropped_records(context, stream, &lost) == CUPTI_SUCCESS)
    dropped += lost;
  std::free(buffer);
}

std::string reported() {
  static constexpr const char* names[kinds] = {"?",          "to device",   "to host",
                                               "CPU faults", "GPU faults",  "thrashing",
                                               "throttling", "remote maps", "device to device"};
  std::string made;
  for (std::size_t k = 0; k < kinds; ++k) {
    if (records[k] == 0) continue;
    made += std::string(made.empty() ? "" : ", ") + (names[k] == nullptr ? "other" : names[k]) +
            " " + std::to_string(records[k].load());
    if (k == 1 || k == 2) made += " (" + std::to_string(values[k].load() >> 10) + " KiB)";
  }
  if (dropped != 0) made += ", dropped " + std::to_string(dropped.load());
  return made.empty() ? "nothing" : made;
}

int run(std::string_view order) {
  const auto has = [&](std::string_view word) {
    return order.find(word) != std::string_view::npos;
  };
  void* const driver = open_first({"libcuda.so.1"});
  if (driver == nullptr) {
    std::printf("  no libcuda.so.1\n");
    return 77;
  }
  void* cupti = nullptr;
  const auto load = [&] {
    cupti = open_first({"libcupti.so.13", "libcupti.so.12", "libcupti.so",
                        "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so",
                        "/usr/local/cuda/lib64/libcupti.so"});
    if (cupti == nullptr) return false;
    next_record = find<decltype(next_record)>(cupti, "cuptiActivityGetNextRecord");
    dropped_records = find<decltype(dropped_records)>(cupti, "cuptiActivityGetNumDroppedRecords");
    return next_record != nullptr;
  };
  const auto say = [&](const char* what, CUptiResult answer) {
    const char* text = nullptr;
    find<decltype(&cuptiGetResultString)>(cupti, "cuptiGetResultString")(answer, &text);
    if (answer != CUPTI_SUCCESS)
      std::printf("  %s: %s\n", what, text == nullptr ? "refused" : text);
  };
  const auto register_buffers = [&] {
    say("register", find<decltype(&cuptiActivityRegisterCallbacks)>(
                        cupti, "cuptiActivityRegisterCallbacks")(give, take));
  };
  const auto subscribe = [&] {
    static CUpti_SubscriberHandle handle;
    say("subscribe",
        find<decltype(&cuptiSubscribe)>(cupti, "cuptiSubscribe")(
            &handle, [](void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {}, nullptr));
  };
  const auto enable = [&] {
    say("enable", find<decltype(&cuptiActivityEnable)>(
                      cupti, "cuptiActivityEnable")(CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER));
  };
  const auto configure = [&] {
    CUpti_ActivityUnifiedMemoryCounterConfig wanted[7] = {};
    for (std::uint32_t k = 0; k < 7; ++k) {
      wanted[k].scope = has("all-devices")
                            ? CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_SCOPE_PROCESS_ALL_DEVICES
                            : CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_SCOPE_PROCESS_SINGLE_DEVICE;
      wanted[k].kind = static_cast<CUpti_ActivityUnifiedMemoryCounterKind>(k + 1);
      wanted[k].enable = 1;
    }
    say("configure", find<decltype(&cuptiActivityConfigureUnifiedMemoryCounter)>(
                         cupti, "cuptiActivityConfigureUnifiedMemoryCounter")(wanted, 7));
  };
  const auto ask = [&] {
    if (has("subscribe")) subscribe();
    register_buffers();
    if (has("enable-first")) {
      enable();
      configure();
    } else {
      configure();
      enable();
    }
  };

  const bool early = has("early");  // CUPTI is there before CUDA starts
  if (early && !load()) {
    std::printf("  no libcupti.so\n");
    return 77;
  }
  if (find<decltype(&cuInit)>(driver, "cuInit")(0) != CUDA_SUCCESS) {
    std::printf("  no device\n");
    return 77;
  }
  if (has("before-context")) {
    if (cupti == nullptr && !load()) return 77;
    ask();
  }
  CUdevice device = 0;
  CUcontext context = nullptr;
  if (find<decltype(&cuDeviceGet)>(driver, "cuDeviceGet")(&device, 0) != CUDA_SUCCESS ||
      find<decltype(&cuDevicePrimaryCtxRetain)>(driver, "cuDevicePrimaryCtxRetain")(
          &context, device) != CUDA_SUCCESS ||
      find<decltype(&cuCtxSetCurrent)>(driver, "cuCtxSetCurrent")(context) != CUDA_SUCCESS) {
    std::printf("  no context\n");
    return 77;
  }
  const auto allocate = find<decltype(&cuMemAllocManaged)>(driver, "cuMemAllocManaged");
  const auto prefetch =
      find<CUresult (*)(CUdeviceptr, std::size_t, CUmemLocation, unsigned, CUstream)>(
          driver, "cuMemPrefetchAsync_v2");
  const auto set = find<decltype(&cuMemsetD8Async)>(driver, "cuMemsetD8Async");
  const auto wait = find<decltype(&cuCtxSynchronize)>(driver, "cuCtxSynchronize");
  constexpr std::size_t bytes = std::size_t{16} << 20;
  CUdeviceptr before = 0;
  if (has("memory-first") &&
      (allocate(&before, bytes, CU_MEM_ATTACH_GLOBAL) != CUDA_SUCCESS ||
       set(before, 1, bytes, nullptr) != CUDA_SUCCESS || wait() != CUDA_SUCCESS))
    return 4;
  if (!has("before-context")) {
    if (cupti == nullptr && !load()) return 77;
    ask();
  }

  const auto flush = find<decltype(&cuptiActivityFlushAll)>(cupti, "cuptiActivityFlushAll");
  // Asked until nothing has come for 400 ms, at most 1 s: when the last count came.
  const auto collect = [&](const char* what) {
    const auto begun = std::chrono::steady_clock::now();
    auto last = begun;
    std::string seen = reported();
    const std::string was = seen;
    for (auto now = begun; now - begun < 1s && now - last < 400ms;
         now = std::chrono::steady_clock::now()) {
      say("flush", flush(has("flush-plain") ? 0 : CUPTI_ACTIVITY_FLAG_FLUSH_FORCED));
      if (std::string here = reported(); here != seen) {
        seen = here;
        last = std::chrono::steady_clock::now();
      }
      std::this_thread::sleep_for(2ms);
    }
    const double ms = std::chrono::duration<double, std::milli>(last - begun).count();
    std::printf("  %s: %s, the last after %.0f ms; all so far: %s\n", what,
                seen == was ? "nothing new" : "counted", ms, seen.c_str());
  };
  const auto touch = [](CUdeviceptr at, std::size_t count) {
    auto* const data = reinterpret_cast<volatile unsigned char*>(at);
    for (std::size_t i = 0; i < count; i += 4096) data[i] = static_cast<unsigned char>(data[i] + 1);
  };
  CUdeviceptr at = before;
  if (at == 0 && allocate(&at, bytes, CU_MEM_ATTACH_GLOBAL) != CUDA_SUCCESS) return 4;
  touch(at, bytes);
  collect("the CPU touches 16 MiB");
  CUmemLocation here{};
  here.type = CU_MEM_LOCATION_TYPE_DEVICE;
  here.id = 0;
  if (prefetch(at, bytes, here, 0, nullptr) != CUDA_SUCCESS || wait() != CUDA_SUCCESS) return 4;
  collect("prefetched to the device");
  touch(at, bytes);
  collect("the CPU touches it again");
  if (set(at, 3, bytes, nullptr) != CUDA_SUCCESS || wait() != CUDA_SUCCESS) return 4;
  collect("the device sets it");
  if (before == 0) return 0;
  CUdeviceptr other = 0;
  if (allocate(&other, bytes, CU_MEM_ATTACH_GLOBAL) != CUDA_SUCCESS) return 4;
  touch(other, bytes);
  collect("the CPU touches 16 MiB that were allocated afterwards");
  return 0;
}

}  // namespace

int main(int count, char** words) {
  if (count > 1) return run(words[1]);
  for (const char* order : {"late", "late memory-first", "late subscribe", "late enable-first",
                            "late all-devices", "late flush-plain", "before-context", "early",
                            "early before-context", "early subscribe before-context"}) {
    std::printf("%s\n", order);
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      execl("/proc/self/exe", words[0], order, static_cast<char*>(nullptr));
      _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
      std::printf("  ended with %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    std::fflush(stdout);
  }
  return 0;
}
