// Kernels of a benchmark's own on the card: PTX text, loaded into the context that the driver has
// bound.
#pragma once
#include <cstdint>
#include <string>

#include "driver/cuda/library.hpp"

namespace millpond::bench {

class card_kernels {
 public:
  // False with a reason where the text cannot be loaded.
  bool load(const char* ptx, std::string& why);
  // The kernel of a name; null where the text has none.
  [[nodiscard]] cuda::function_handle find(const char* name);
  // One launch; the parameters are pointers to the kernel's arguments.
  call_result launch(cuda::function_handle kernel, unsigned blocks, unsigned threads,
                     void** parameters, stream_handle stream);

 private:
  cuda::library library_;
  cuda::module_handle module_ = nullptr;
};

}  // namespace millpond::bench
