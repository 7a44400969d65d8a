#include "bench/support/card_kernels.hpp"

namespace millpond::bench {

bool card_kernels::load(const char* ptx, std::string& why) {
  auto loaded = cuda::load_library(cuda::default_library);
  if (!loaded) {
    why = loaded.error().message;
    return false;
  }
  library_ = std::move(*loaded);
  const auto status = library_.functions.module_load_data.function(&module_, ptx);
  if (status == 0) return true;
  why = "cuModuleLoadData answers " + std::to_string(status);
  return false;
}

cuda::function_handle card_kernels::find(const char* name) {
  cuda::function_handle found = nullptr;
  if (library_.functions.module_get_function.function(&found, module_, name) != 0) return nullptr;
  if (library_.functions.function_load.function != nullptr)
    static_cast<void>(library_.functions.function_load.function(found));
  return found;
}

call_result card_kernels::launch(cuda::function_handle kernel, unsigned blocks, unsigned threads,
                                 void** parameters, stream_handle stream) {
  const auto status = library_.functions.launch_kernel.function(kernel, blocks, 1, 1, threads, 1, 1,
                                                                0, stream, parameters, nullptr);
  return {static_cast<driver_status>(status), "cuLaunchKernel"};
}

}  // namespace millpond::bench
