// The scripted libcuda as a test sees it: one script, fresh for each test that asks.
#pragma once
#include <dlfcn.h>

#include <cstring>
#include <string>

#include "base/check.hpp"
#include "driver/cuda/open.hpp"
#include "driver/fake_libcuda/fake_libcuda.hpp"

namespace millpond::cuda {

inline open_options scripted_options() {
  return {.library = MILLPOND_FAKE_LIBCUDA};
}

// The script, reset.
inline fake_libcuda_script& scripted_libcuda() {
  void* library = ::dlopen(MILLPOND_FAKE_LIBCUDA, RTLD_NOW | RTLD_LOCAL);
  MILLPOND_CHECK(library != nullptr, MILLPOND_FAKE_LIBCUDA);
  auto* ask = reinterpret_cast<fake_libcuda_script_function*>(::dlsym(library, "fake_libcuda"));
  MILLPOND_CHECK(ask != nullptr);
  *ask() = fake_libcuda_script{};
  return *ask();
}

}  // namespace millpond::cuda
