#include "bindings/context_guard.hpp"

#include <dlfcn.h>

namespace millpond {
namespace {

struct context_calls {
  int (*get)(void**) = nullptr;
  int (*set)(void*) = nullptr;
};

const context_calls& calls() noexcept {
  // The driver is loaded by then; a second handle to the same library.
  static const context_calls found = [] {
    context_calls out;
    if (void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
      out.get = reinterpret_cast<int (*)(void**)>(::dlsym(library, "cuCtxGetCurrent"));
      out.set = reinterpret_cast<int (*)(void*)>(::dlsym(library, "cuCtxSetCurrent"));
    }
    return out;
  }();
  return found;
}

}  // namespace

void context_guard::enter(driver& gpu) noexcept {
  const context_calls& c = calls();
  if (c.get == nullptr || c.set == nullptr || c.get(&before_) != 0) return;
  changed_ = gpu.bind_thread().ok();
}
void context_guard::leave() noexcept {
  calls().set(before_);
}

}  // namespace millpond
