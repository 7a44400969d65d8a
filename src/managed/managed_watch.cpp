#include "millpond/managed/managed_watch.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#include "base/bits.hpp"
#include "driver/own_calls.hpp"
#include "millpond/base/units.hpp"
#include "millpond/sim/simulated_gpu.hpp"

#if __has_include(<cupti.h>) && __has_include(<cuda.h>)
#define MILLPOND_HAS_CUPTI 1
#include <cuda.h>
#include <cupti.h>
#endif

namespace millpond {
namespace {

constexpr std::uint64_t block_bytes = 2 * MiB;  // the driver's books are by it
constexpr std::uint64_t few_faults = 8;  // "seldom": less than two blocks brought over by faults
                                         // (docs/how_to/managed_memory.md: six a block)

class simulated_watch final : public managed_watch {
 public:
  explicit simulated_watch(std::shared_ptr<simulated_gpu> gpu)
      : gpu_(std::move(gpu)), start_(read()) {}
  result<managed_page_counts> counts(device_address, std::uint64_t) override {
    const managed_page_counts now = read();
    return managed_page_counts{now.device_faults - start_.device_faults,
                               now.device_write_faults - start_.device_write_faults,
                               now.host_faults - start_.host_faults,
                               now.bytes_to_device - start_.bytes_to_device,
                               now.bytes_to_host - start_.bytes_to_host,
                               now.throttles - start_.throttles};
  }

  bool counts_earlier_memory() const noexcept override { return true; }

 private:
  [[nodiscard]] managed_page_counts read() const {
    const managed_counters c = gpu_->managed_counts();
    return {c.device_faults,   c.collapses,     c.host_faults,
            c.bytes_to_device, c.bytes_to_host, c.throttles};
  }
  std::shared_ptr<simulated_gpu> gpu_;
  managed_page_counts start_;
};

#if defined(MILLPOND_HAS_CUPTI)

struct cupti_functions {
  decltype(&cuptiGetResultString) result_text = nullptr;
  decltype(&cuptiActivityConfigureUnifiedMemoryCounter) configure = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) register_buffers = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;

  [[nodiscard]] bool load(void* from) {
    const auto find = [from](auto& into, const char* name) {
      into = reinterpret_cast<std::remove_reference_t<decltype(into)>>(::dlsym(from, name));
      return into != nullptr;
    };
    return find(result_text, "cuptiGetResultString") &&
           find(configure, "cuptiActivityConfigureUnifiedMemoryCounter") &&
           find(register_buffers, "cuptiActivityRegisterCallbacks") &&
           find(enable, "cuptiActivityEnable") && find(disable, "cuptiActivityDisable") &&
           find(flush, "cuptiActivityFlushAll") && find(next_record, "cuptiActivityGetNextRecord");
  }
};

// The copy that is there already comes first: two would not know of each other.
void* open_cupti(const std::string& wanted) {
  constexpr const char* names[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
  for (const char* name : names) {
    if (void* there = ::dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return there;
  }
  if (!wanted.empty()) return ::dlopen(wanted.c_str(), RTLD_NOW | RTLD_GLOBAL);
  for (const char* folder : {"", "/usr/local/cuda/extras/CUPTI/lib64/", "/usr/local/cuda/lib64/",
                             "/usr/local/cuda/lib/"}) {
    for (const char* name : names) {
      if (void* loaded = ::dlopen((std::string(folder) + name).c_str(), RTLD_NOW | RTLD_GLOBAL))
        return loaded;
    }
  }
  return nullptr;
}

class cupti_watch;
// CUPTI's buffer callbacks carry no argument and come on its threads. A leaf lock: the watch that
// is alive, and its counts.
std::mutex& watch_mutex() {
  static std::mutex mutex;
  return mutex;
}
cupti_watch* the_watch = nullptr;
bool registered = false;  // for the whole process: CUPTI takes callbacks once

class cupti_watch final : public managed_watch {
 public:
  cupti_watch(std::shared_ptr<driver> gpu, const cupti_functions& cupti)
      : gpu_(std::move(gpu)), cupti_(cupti) {}
  ~cupti_watch() override {
    {
      const std::lock_guard lock(watch_mutex());
      if (the_watch != this) return;  // it was refused since another watches: that one goes on
    }
    static_cast<void>(cupti_.disable(CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER));
    static_cast<void>(cupti_.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED));
    if (gpu_->alive()) {
      const own_calls_scope own_calls(*gpu_);
      if (stream_ != nullptr) static_cast<void>(gpu_->stream_destroy(stream_));
      if (mark_ != 0) static_cast<void>(gpu_->memory_free(mark_));
    }
    const std::lock_guard lock(watch_mutex());
    the_watch = nullptr;
  }

  // Empty, or what CUPTI said.
  [[nodiscard]] std::string begin(int ordinal) {
    constexpr CUpti_ActivityUnifiedMemoryCounterKind kinds[] = {
        CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD,
        CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH,
        CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_CPU_PAGE_FAULT_COUNT,
        CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_GPU_PAGE_FAULT,
        CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_THRASHING,
        CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_THROTTLING};
    CUpti_ActivityUnifiedMemoryCounterConfig wanted[std::size(kinds)] = {};
    for (std::size_t n = 0; n < std::size(kinds); ++n) {
      wanted[n].scope = CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_SCOPE_PROCESS_SINGLE_DEVICE;
      wanted[n].kind = kinds[n];
      wanted[n].deviceId = static_cast<std::uint32_t>(ordinal);
      wanted[n].enable = 1;
    }
    const auto said = [this](CUptiResult answer) {
      const char* text = nullptr;
      cupti_.result_text(answer, &text);
      return std::string(text == nullptr ? "refused" : text);
    };
    if (!registered) {
      if (const CUptiResult answer = cupti_.register_buffers(give_buffer, take_buffer);
          answer != CUPTI_SUCCESS)
        return said(answer);
      registered = true;
    }
    if (const CUptiResult answer = cupti_.configure(wanted, std::size(kinds));
        answer != CUPTI_SUCCESS)
      return said(answer);
    if (const CUptiResult answer = cupti_.enable(CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER);
        answer != CUPTI_SUCCESS)
      return said(answer);
    return {};
  }

  // The driver hands its counts to CUPTI by a queue that a thread of CUPTI's reads, and they come
  // 14 to 21 ms late (H200, driver 580.159). So something is done last that must be counted, a
  // fault of the CPU on a block of the watch's own, and what comes before it is there when it is.
  result<managed_page_counts> counts(device_address at, std::uint64_t bytes) override {
    const std::lock_guard turn(turn_);
    const std::uint64_t before = sum(block_of_mark(), block_bytes).host_faults;
    if (auto marked = mark(); !marked) return marked.error();
    bool seen = false;
    managed_page_counts last;
    // Once more after it: bytes are known when the copy engine's own record is read.
    for (int round = 0, more = 0; round < most_rounds && more < 2; ++round) {
      if (const CUptiResult answer = cupti_.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
          answer != CUPTI_SUCCESS) {
        const char* text = nullptr;
        cupti_.result_text(answer, &text);
        return error{error_code::driver_failure,
                     fmt::format("cuptiActivityFlushAll: {}", text == nullptr ? "refused" : text)};
      }
      seen = seen || sum(block_of_mark(), block_bytes).host_faults > before;
      const managed_page_counts now = sum(at, bytes);
      more = seen && now == last ? more + 1 : 0;
      last = now;
      std::this_thread::sleep_for(std::chrono::milliseconds(4));
    }
    if (!seen) {
      return error{error_code::driver_failure,
                   "managed_watch: CUPTI has not reported a fault that was made two seconds ago"};
    }
    return last;
  }

  // Whether anything is counted at all. A CUPTI that another user has may say yes to everything and
  // count nothing.
  [[nodiscard]] bool counts_something() {
    const own_calls_scope own_calls(*gpu_);
    if (!gpu_->managed_allocate(&mark_, 2 * block_bytes).ok()) return false;
    return gpu_->stream_create(&stream_).ok() && counts(block_of_mark(), block_bytes).has_value();
  }

 private:
  static constexpr int most_rounds = 500;  // of 4 ms

  [[nodiscard]] device_address block_of_mark() const noexcept {
    return align_up(mark_, block_bytes);
  }
  // The block goes to the device and the CPU faults on it.
  [[nodiscard]] result<void> mark() {
    const own_calls_scope own_calls(*gpu_);
    auto answer = own_calls.entered();
    if (answer.ok())
      answer = gpu_->prefetch_async(block_of_mark(), block_bytes, memory_location::device, stream_);
    if (answer.ok()) answer = gpu_->stream_synchronize(stream_);
    if (!answer.ok()) return to_error(answer, "managed_watch: moving its mark");
    auto* const byte = reinterpret_cast<volatile unsigned char*>(block_of_mark());
    *byte = static_cast<unsigned char>(*byte + 1);
    return {};
  }
  [[nodiscard]] managed_page_counts sum(device_address at, std::uint64_t bytes) const {
    managed_page_counts sum;
    const std::lock_guard lock(watch_mutex());
    for (auto it = blocks_.lower_bound(at / block_bytes);
         it != blocks_.end() && it->first * block_bytes < at + bytes; ++it) {
      const managed_page_counts& b = it->second;
      sum.device_faults += b.device_faults;
      sum.device_write_faults += b.device_write_faults;
      sum.host_faults += b.host_faults;
      sum.bytes_to_device += b.bytes_to_device;
      sum.bytes_to_host += b.bytes_to_host;
      sum.throttles += b.throttles;
    }
    return sum;
  }
  static void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* bytes,
                                   std::size_t* most_records) {
    constexpr std::size_t size = std::size_t{1} << 20;
    *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, size));
    *bytes = *buffer == nullptr ? 0 : size;
    *most_records = 0;
  }
  static void CUPTIAPI take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t,
                                   std::size_t valid) {
    {
      const std::lock_guard lock(watch_mutex());
      CUpti_Activity* record = nullptr;
      while (the_watch != nullptr &&
             the_watch->cupti_.next_record(buffer, valid, &record) == CUPTI_SUCCESS) {
        if (record->kind != CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER) continue;
        the_watch->note(*reinterpret_cast<const CUpti_ActivityUnifiedMemoryCounter3*>(record));
      }
    }
    std::free(buffer);
  }
  void note(const CUpti_ActivityUnifiedMemoryCounter3& of) {
    managed_page_counts& b = blocks_[of.address / block_bytes];
    switch (of.counterKind) {
      case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD:
        b.bytes_to_device += of.value;
        break;
      case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH:
        b.bytes_to_host += of.value;
        break;
      case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_CPU_PAGE_FAULT_COUNT: ++b.host_faults; break;
      case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_GPU_PAGE_FAULT:
        // One record for the faults of a group of pages; value is how many.
        b.device_faults += of.value;
        if (of.flags == CUPTI_ACTIVITY_UNIFIED_MEMORY_ACCESS_TYPE_WRITE ||
            of.flags == CUPTI_ACTIVITY_UNIFIED_MEMORY_ACCESS_TYPE_ATOMIC) {
          b.device_write_faults += of.value;
        }
        break;
      case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_THRASHING:
      case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_THROTTLING: ++b.throttles; break;
      default: break;
    }
  }

  std::shared_ptr<driver> gpu_;
  cupti_functions cupti_;
  std::mutex turn_;          // one thread asks at a time; outermost
  device_address mark_ = 0;  // holds one whole block
  stream_handle stream_ = nullptr;
  std::map<std::uint64_t, managed_page_counts> blocks_;  // by block number; under watch_mutex()
};

result<std::shared_ptr<managed_watch>> watch_card(std::shared_ptr<driver> gpu,
                                                  const std::string& file) {
  void* const library = open_cupti(file);
  if (library == nullptr) {
    return error{error_code::not_supported,
                 "managed_watch: libcupti.so is not found (it is in the CUDA toolkit, "
                 "extras/CUPTI); name its file, or "
                 "use `millpond record`"};
  }
  cupti_functions functions;
  if (!functions.load(library))
    return error{error_code::not_supported,
                 "managed_watch: this libcupti.so lacks the activity functions"};
  const int ordinal = gpu->info().ordinal;
  const auto made = std::make_shared<cupti_watch>(std::move(gpu), functions);
  {
    const std::lock_guard lock(watch_mutex());
    if (the_watch != nullptr)
      return error{error_code::not_permitted,
                   "managed_watch: one watches already; CUPTI counts for one user a process"};
    the_watch = made.get();
  }
  if (const std::string said = made->begin(ordinal); !said.empty()) {
    return error{error_code::not_supported,
                 fmt::format("managed_watch: CUPTI counts no managed memory here: {}", said)};
  }
  if (!made->counts_something()) {
    return error{error_code::not_supported,
                 "managed_watch: CUPTI says yes and counts nothing; run the program by `millpond "
                 "record`, whose recorder is "
                 "there before CUDA starts, and read its trace with `millpond explain`"};
  }
  return std::shared_ptr<managed_watch>(made);
}

#else

result<std::shared_ptr<managed_watch>> watch_card(std::shared_ptr<driver>, const std::string&) {
  return error{error_code::not_supported,
               "managed_watch: this build has no CUPTI: the CUDA toolkit's headers were not there"};
}

#endif

}  // namespace

result<std::shared_ptr<managed_watch>> managed_watch::start(std::shared_ptr<driver> gpu,
                                                            const std::string& cupti) {
  if (gpu == nullptr) return error{error_code::invalid_argument, "managed_watch: no driver"};
  if (auto simulated = std::dynamic_pointer_cast<simulated_gpu>(gpu)) {
    return std::shared_ptr<managed_watch>(std::make_shared<simulated_watch>(std::move(simulated)));
  }
  return watch_card(std::move(gpu), cupti);
}

std::uint64_t managed_watch::next_beginning() noexcept {
  static std::atomic<std::uint64_t> last{0};  // publishes nothing but the order
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

std::vector<std::string> contradictions(const managed_use& use, const managed_page_counts& counts,
                                        std::uint64_t bytes) {
  std::vector<std::string> found;
  if (use.intent == managed_intent::unstated) return found;
  const char* const stated = to_string(use.intent);
  const bool prefetched = use.intent != managed_intent::cpu_resident;
  if (counts.throttles > 0) {
    found.push_back(
        fmt::format("memory stated as {} goes to and fro so fast that the driver delays it, {} "
                    "times: use a control_block of a pinned "
                    "pool where it is small, and views that take turns where it is not",
                    stated, counts.throttles));
  }
  if (use.intent == managed_intent::read_mostly && counts.device_write_faults > few_faults) {
    found.push_back(
        fmt::format("kernels write memory stated as read-mostly: {} faults that take copies away, "
                    "17 to 130 us each; state streaming "
                    "or gpu-resident",
                    counts.device_write_faults));
  }
  if (prefetched && counts.device_faults > few_faults) {
    found.push_back(
        fmt::format("kernels touch memory stated as {} that is not on the device: {} faults over "
                    "{}; take a device view before each "
                    "kernel, which prefetches",
                    stated, counts.device_faults, format_bytes(bytes)));
  }
  if (use.intent == managed_intent::gpu_resident && counts.host_faults > few_faults) {
    found.push_back(
        fmt::format("the CPU touches memory stated as gpu-resident: {} faults, {} came back; state "
                    "ping-pong, or copy what it wants to see",
                    counts.host_faults, format_bytes(counts.bytes_to_host)));
  }
  if (use.intent == managed_intent::cpu_resident && counts.bytes_to_device > bytes / 2) {
    found.push_back(
        fmt::format("memory stated as cpu-resident moves: {} went to the device; state streaming "
                    "where kernels use it whole",
                    format_bytes(counts.bytes_to_device)));
  }
  const bool back_by_prefetch =
      use.intent == managed_intent::ping_pong ||
      (use.intent == managed_intent::streaming && includes(use.readers, memory_side::host) &&
       includes(use.writers, memory_side::device));
  if (back_by_prefetch && bytes >= block_bytes && counts.host_faults > few_faults) {
    found.push_back(
        fmt::format("the CPU touches memory stated as {} while it is on the device: {} faults; "
                    "take a host view, which prefetches",
                    stated, counts.host_faults));
  }
  return found;
}

}  // namespace millpond
