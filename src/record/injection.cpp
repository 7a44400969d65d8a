// What the CUDA driver calls when it finds this library in CUDA_INJECTION64_PATH: starts the
// recorder and subscribes to CUPTI. CUPTI is loaded at run time, so that the program's own copy is
// used where it has one.
#include "record/injection.hpp"

#include <dlfcn.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>

#include "record/python_frames.hpp"
#include "record/recorder.hpp"

#if __has_include(<cupti.h>) && __has_include(<cuda.h>)
#define MILLPOND_HAS_CUPTI 1
#include <nvtx3/nvToolsExt.h>

#include <generated_nvtx_meta.h>

#include "record/translate.hpp"
#include "record/unified_memory.hpp"
#endif

namespace millpond::record {
namespace {

// One a process, and never destroyed before the process is: callbacks may come until the very end.
recorder* the_recorder = nullptr;

void complain(const char* text, const char* reason) {
  std::fprintf(stderr, "millpond record: %s%s%s\n", text, *reason ? ": " : "", reason);
}

std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  while (!text.empty() && text.back() == '\0') text.pop_back();
  for (char& each : text) {
    if (each == '\0') each = ' ';
  }
  return text.substr(0, 4096);
}

std::uint64_t unix_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

void in_child() {
  if (the_recorder != nullptr) the_recorder->abandon();
}

}  // namespace

recorder* start_recorder() {
  const char* text = std::getenv(settings_variable);
  if (text == nullptr) {
    complain("loaded without its settings; start the program with `millpond record -- PROGRAM`",
             "");
    return nullptr;
  }
  auto how = parse_settings(text);
  if (!how) {
    complain("the settings in the environment are not understood", settings_variable);
    return nullptr;
  }
  how->path = path_of_process(*how, static_cast<std::uint64_t>(getpid()));
  trace::metadata meta;
  meta.program = command_line();
  meta.recorded_by = how->recorded_by;
  meta.start_unix_ns = unix_ns();
  meta.notes = {{"process", std::to_string(getpid())}, {"root_process", std::to_string(how->root)}};
  auto made = recorder::start(*how, meta);
  if (!made) {
    complain("nothing is recorded", made.error().message.c_str());
    return nullptr;
  }
  the_recorder = made->release();
  pthread_atfork(nullptr, nullptr, in_child);
  return the_recorder;
}

namespace {
// Runs after the program's own exit handlers and static destructors, whose frees are still
// recorded.
__attribute__((destructor)) void at_exit() {
  if (the_recorder != nullptr) the_recorder->finish("exit");
}
}  // namespace

#if !defined(MILLPOND_HAS_CUPTI)
bool subscribe(recorder&) {
  complain("this build has no CUPTI: nothing can be recorded", "");
  return false;
}
enum class callbacks : std::uint32_t { off, on };
void listen(callbacks) {}
void before_exit() {}
#else
namespace {

cupti_entries cupti;
translator* the_translator = nullptr;
unified_memory* the_pages = nullptr;
CUpti_SubscriberHandle subscription = nullptr;

const char* cupti_text(CUptiResult answer) {
  const char* text = nullptr;
  if (cupti.result_text != nullptr) cupti.result_text(answer, &text);
  return text == nullptr ? "unknown" : text;
}

void* open_cupti(const std::string& wanted) {
  // The copy that is there already comes first: two would not know of each other.
  for (const char* name : {"libcupti.so.13", "libcupti.so.12", "libcupti.so"}) {
    if (void* there = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return there;
  }
  std::string folders[] = {"", "/usr/local/cuda/extras/CUPTI/lib64/", "/usr/local/cuda/lib64/",
                           "/usr/local/cuda/lib/"};
  if (!wanted.empty()) {
    if (void* loaded = dlopen(wanted.c_str(), RTLD_NOW | RTLD_GLOBAL)) return loaded;
  }
  for (const std::string& folder : folders) {
    for (const char* name : {"libcupti.so.13", "libcupti.so.12", "libcupti.so"}) {
      if (void* loaded = dlopen((folder + name).c_str(), RTLD_NOW | RTLD_GLOBAL)) return loaded;
    }
  }
  return nullptr;
}

template <class Function>
void find(void* library, const char* name, Function& into) {
  into = reinterpret_cast<Function>(dlsym(library, name));
}

void on_nvtx(CUpti_CallbackId id, const CUpti_NvtxData& data) {
  const char* text = nullptr;
  const auto attribute = [](const nvtxEventAttributes_t* of) {
    return of != nullptr && of->messageType == NVTX_MESSAGE_TYPE_ASCII ? of->message.ascii
                                                                       : nullptr;
  };
  switch (id) {
    case CUPTI_CBID_NVTX_nvtxRangePushA:
      text = static_cast<const nvtxRangePushA_params*>(data.functionParams)->message;
      break;
    case CUPTI_CBID_NVTX_nvtxMarkA:
      text = static_cast<const nvtxMarkA_params*>(data.functionParams)->message;
      break;
    case CUPTI_CBID_NVTX_nvtxRangePushEx:
      text =
          attribute(static_cast<const nvtxRangePushEx_params*>(data.functionParams)->eventAttrib);
      break;
    case CUPTI_CBID_NVTX_nvtxDomainRangePushEx:
      text = attribute(
          static_cast<const nvtxDomainRangePushEx_params*>(data.functionParams)->core.eventAttrib);
      break;
    default: break;
  }
  the_translator->range(text);
}

constexpr std::size_t most_calls = 2048;
std::atomic<std::uint32_t> driver_calls[most_calls], runtime_calls[most_calls];
bool counting = false;  // set before the first callback

void CUPTIAPI on_callback(void*, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                          const void* data) {
  if (domain == CUPTI_CB_DOMAIN_DRIVER_API) {
    const auto& call = *static_cast<const CUpti_CallbackData*>(data);
    if (!counting && the_translator->launch_call(id, call)) return;
    if (the_recorder->how().count_calls && call.callbackSite == CUPTI_API_ENTER &&
        id < most_calls) {
      driver_calls[id].fetch_add(1, std::memory_order_relaxed);
    }
    the_translator->driver_call(id, call);
    // The page counters cost where there is no managed memory, and are switched on with the first.
    if (the_pages != nullptr && the_translator->saw_managed() &&
        call.callbackSite == CUPTI_API_EXIT)
      the_pages->begin();
  } else if (domain == CUPTI_CB_DOMAIN_RUNTIME_API) {
    const auto& call = *static_cast<const CUpti_CallbackData*>(data);
    if (the_recorder->how().count_calls && call.callbackSite == CUPTI_API_ENTER &&
        id < most_calls) {
      runtime_calls[id].fetch_add(1, std::memory_order_relaxed);
    }
    the_translator->runtime_call(call, id);
  } else if (domain == CUPTI_CB_DOMAIN_NVTX) {
    on_nvtx(id, *static_cast<const CUpti_NvtxData*>(data));
  }
}

std::atomic<bool> leaving{false};  // CUPTI may be gone
void go_silent();

void on_tick() {
  if (the_pages != nullptr) the_pages->collect();
  if (!the_recorder->recording() && !leaving.load()) go_silent();
}

std::string counted(CUpti_CallbackDomain domain, const std::atomic<std::uint32_t>* counts) {
  std::string made;
  for (std::uint32_t id = 0; id < most_calls; ++id) {
    const std::uint32_t count = counts[id].load(std::memory_order_relaxed);
    if (count == 0) continue;
    const char* name = nullptr;
    if (cupti.callback_name == nullptr || cupti.callback_name(domain, id, &name) != CUPTI_SUCCESS)
      name = nullptr;
    made += (made.empty() ? "" : ", ") +
            (name == nullptr ? std::to_string(id) : std::string(name)) + ' ' +
            std::to_string(count);
  }
  return made;
}

}  // namespace

enum class callbacks : std::uint32_t { off, on };

namespace {
// How many were refused.
std::uint32_t enable(callbacks state) {
  const auto flag = static_cast<std::uint32_t>(state);
  std::uint32_t refused = 0;
  if (the_recorder->how().count_calls && cupti.enable_domain != nullptr) {
    cupti.enable_domain(flag, subscription, CUPTI_CB_DOMAIN_DRIVER_API);
    cupti.enable_domain(flag, subscription, CUPTI_CB_DOMAIN_RUNTIME_API);
  } else {
    const auto launches = the_recorder->how().kernels ? translator::launch_ids()
                                                      : std::span<const CUpti_CallbackId>{};
    for (const auto ids : {translator::driver_ids(), translator::batch_ids(), launches}) {
      for (const CUpti_CallbackId id : ids) {
        if (cupti.enable_callback(flag, subscription, CUPTI_CB_DOMAIN_DRIVER_API, id) !=
            CUPTI_SUCCESS)
          ++refused;
      }
    }
    for (const CUpti_CallbackId id : translator::runtime_ids()) {
      if (cupti.enable_callback(flag, subscription, CUPTI_CB_DOMAIN_RUNTIME_API, id) !=
          CUPTI_SUCCESS)
        ++refused;
    }
  }
  for (const auto id : {CUPTI_CBID_NVTX_nvtxRangePushA, CUPTI_CBID_NVTX_nvtxMarkA,
                        CUPTI_CBID_NVTX_nvtxRangePushEx, CUPTI_CBID_NVTX_nvtxDomainRangePushEx}) {
    cupti.enable_callback(flag, subscription, CUPTI_CB_DOMAIN_NVTX, id);
  }
  return refused;
}

std::mutex listening;  // pauses and resumes come one after the other

// A limit was reached or the file failed: the program goes on as if it were not recorded.
void go_silent() {
  static bool silent = false;
  if (!silent) enable(callbacks::off);
  silent = true;
}
}  // namespace

// Ends or takes up the callbacks, as the program asks.
void listen(callbacks state) {
  const std::lock_guard lock(listening);
  if (the_recorder == nullptr || subscription == nullptr || !the_recorder->recording()) return;
  if (state == callbacks::off) the_recorder->leave_out();
  enable(state);
}

bool subscribe(recorder& to) {
  void* library = open_cupti(to.how().cupti);
  if (library == nullptr) {
    complain("libcupti was not found, so that nothing can be recorded (--cupti FILE names it)", "");
    to.say("failure", "libcupti was not found");
    return false;
  }
  find(library, "cuptiSubscribe", cupti.subscribe);
  find(library, "cuptiEnableCallback", cupti.enable_callback);
  find(library, "cuptiEnableDomain", cupti.enable_domain);
  find(library, "cuptiGetResultString", cupti.result_text);
  find(library, "cuptiGetVersion", cupti.version);
  find(library, "cuptiGetCallbackName", cupti.callback_name);
  find(library, "cuptiActivityConfigureUnifiedMemoryCounter", cupti.configure_counters);
  find(library, "cuptiActivityRegisterCallbacks", cupti.register_buffers);
  find(library, "cuptiActivityEnable", cupti.enable_activity);
  find(library, "cuptiActivityFlushAll", cupti.flush);
  find(library, "cuptiActivityGetNextRecord", cupti.next_record);
  find(library, "cuptiGetTimestamp", cupti.timestamp);
  if (cupti.subscribe == nullptr || cupti.enable_callback == nullptr) {
    complain("libcupti lacks the functions that a recording needs", "");
    return false;
  }
  driver_entries driver;
  decltype(&cuDeviceGetCount) device_count = nullptr;
  if (void* libcuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)) {
    find(libcuda, "cuFuncGetParamInfo", driver.function_parameter);
    find(libcuda, "cuKernelGetParamInfo", driver.kernel_parameter);
    find(libcuda, "cuDeviceGetMemPool", driver.current_pool);
    find(libcuda, "cuCtxGetDevice", driver.context_device);
    find(libcuda, "cuDeviceGetCount", device_count);
  }
  the_translator = new translator(to, driver);
  counting = to.how().count_calls;
  const CUptiResult answer = cupti.subscribe(&subscription, on_callback, nullptr);
  if (answer != CUPTI_SUCCESS) {
    complain(answer == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
                 ? "another profiler has subscribed to CUPTI in this process, and there can be "
                   "only one; nothing is recorded"
                 : "CUPTI refused the subscription; nothing is recorded",
             cupti_text(answer));
    to.say("failure", std::string("CUPTI: ") + cupti_text(answer));
    return false;
  }
  if (const std::uint32_t refused = enable(callbacks::on); refused > 0)
    to.say("callbacks_refused", std::to_string(refused));
  // Before the driver and CUPTI are taken down, which the program's end does in an order of its
  // own.
  std::atexit(before_exit);
  the_pages = new unified_memory(to, cupti, device_count);
  to.set_tick(on_tick);
  std::uint32_t version = 0;
  if (cupti.version != nullptr && cupti.version(&version) == CUPTI_SUCCESS)
    to.say("cupti", std::to_string(version));
  return true;
}

void before_exit() {
  leaving.store(true);
  if (the_translator == nullptr) return;
  if (the_pages != nullptr) the_pages->collect();
  if (the_translator->unknown_layouts() > 0) {
    the_recorder->say("kernels_without_layout", std::to_string(the_translator->unknown_layouts()));
  }
  if (the_recorder->how().python) {
    if (const std::string unknown = python_frames::unknown_interpreter(); !unknown.empty()) {
      the_recorder->say("python_frames",
                        "none: the structures of " + unknown + " are not known (3.11 to 3.13 are)");
    }
  }
  the_recorder->say("stacks_unwound", std::to_string(the_recorder->stacks().unwound()));
  the_recorder->say("stacks_unwound_by_runtime",
                    std::to_string(the_recorder->stacks().unwound_by_runtime()));
  if (the_recorder->how().count_calls) {
    the_recorder->say("driver_calls", counted(CUPTI_CB_DOMAIN_DRIVER_API, driver_calls));
    the_recorder->say("runtime_calls", counted(CUPTI_CB_DOMAIN_RUNTIME_API, runtime_calls));
  }
}
#endif

}  // namespace millpond::record

// For a program that wants only parts of itself recorded (found by dlsym in this library);
// thread-safe. While paused, calls cost nothing and are not seen: such a recording claims no leaks.
extern "C" __attribute__((visibility("default"))) void millpond_record_pause() {
  millpond::record::listen(millpond::record::callbacks::off);
}
extern "C" __attribute__((visibility("default"))) void millpond_record_resume() {
  millpond::record::listen(millpond::record::callbacks::on);
}

// The driver calls it once, inside cuInit. 1 is success; anything else it ignores too.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  try {
    millpond::record::recorder* to = millpond::record::start_recorder();
    if (to == nullptr) return 0;
    if (!millpond::record::subscribe(*to)) {
      to->finish("");
      return 0;
    }
    return 1;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "millpond record: %s\n", failure.what());
    return 0;
  }
}
