// A libcupti that delivers the callbacks that a program asks it to: the recorder's own path from
// subscription to file, with no driver and no card.
#include <cuda.h>
#include <cupti.h>

#include <mutex>
#include <set>
#include <utility>

#define SHOWN extern "C" __attribute__((visibility("default")))

namespace {
CUpti_CallbackFunc callback = nullptr;
void* argument = nullptr;
bool occupied = false;
std::mutex enabled_mutex;  // the program's threads and the recorder's call
std::set<std::pair<int, unsigned>> enabled;
}  // namespace

SHOWN CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* made, CUpti_CallbackFunc function,
                                 void* data) {
  if (occupied || callback != nullptr) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  *made = reinterpret_cast<CUpti_SubscriberHandle>(&callback);
  callback = function;
  argument = data;
  return CUPTI_SUCCESS;
}
SHOWN CUptiResult cuptiEnableCallback(uint32_t on, CUpti_SubscriberHandle,
                                      CUpti_CallbackDomain domain, CUpti_CallbackId id) {
  const std::lock_guard lock(enabled_mutex);
  if (on != 0) enabled.emplace(domain, id);
  if (on == 0) enabled.erase({domain, id});
  return CUPTI_SUCCESS;
}
SHOWN CUptiResult cuptiGetResultString(CUptiResult, const char** text) {
  *text = "a fake's answer";
  return CUPTI_SUCCESS;
}
SHOWN CUptiResult cuptiGetVersion(uint32_t* version) {
  *version = 1300;
  return CUPTI_SUCCESS;
}

// As if another profiler had come first.
SHOWN void fake_cupti_occupy() {
  occupied = true;
}
// Both callbacks of one call; what the driver would do is done between, by `act`.
SHOWN void fake_cupti_call(CUpti_CallbackDomain domain, CUpti_CallbackId id, const char* name,
                           const char* symbol, void* parameters, void (*act)(void*), void* data,
                           int status) {
  CUresult answer = static_cast<CUresult>(status);
  CUpti_CallbackData of{};
  of.functionName = name;
  of.symbolName = symbol;
  of.functionParams = parameters;
  of.functionReturnValue = &answer;
  const bool heard = [&] {
    const std::lock_guard lock(enabled_mutex);
    return callback != nullptr && enabled.contains({domain, id});
  }();
  of.callbackSite = CUPTI_API_ENTER;
  if (heard) callback(argument, domain, id, &of);
  if (act != nullptr) act(data);
  of.callbackSite = CUPTI_API_EXIT;
  if (heard) callback(argument, domain, id, &of);
}
