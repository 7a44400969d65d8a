// A library that takes its memory from cuda::mr, and knows nothing of millpond, works in millpond's
// pool. Built where the CUDA toolkit's headers are; the simulated GPU serves where there is no
// card.
#include <millpond/bindings/cuda_mr.hpp>
#include <millpond/millpond.hpp>

#include <cstdio>
#include <string_view>

namespace the_library {
#if MILLPOND_CUDA_MR_STREAM_FIRST
using memory_ref = cuda::mr::resource_ref<cuda::mr::device_accessible>;
#else
using memory_ref = cuda::mr::async_resource_ref<cuda::mr::device_accessible>;
#endif

// Scratch memory for the length of one call.
void transform(memory_ref memory, cuda::stream_ref stream) {
#if MILLPOND_CUDA_MR_STREAM_FIRST
  void* const scratch = memory.allocate(stream, 1 << 20, 256);
  memory.deallocate(stream, scratch, 1 << 20, 256);
#else
  void* const scratch = memory.allocate_async(1 << 20, 256, stream);
  memory.deallocate_async(scratch, 1 << 20, 256, stream);
#endif
}
}  // namespace the_library

int main(int count, char** arguments) {
  std::shared_ptr<millpond::driver> gpu;
  if (count < 2 || std::string_view(arguments[1]) != "sim") {
    if (auto card = millpond::open_cuda_driver(0)) gpu = *card;
  }
  if (gpu == nullptr) gpu = millpond::simulated_gpu::create().value();
  const auto pool = millpond::pool::create(gpu).value();
  millpond::stream_handle stream = nullptr;
  if (!gpu->bind_thread().ok() || !gpu->stream_create(&stream).ok()) return 4;

  millpond::cuda_device_resource memory(*pool);
  for (int n = 0; n < 1000; ++n) the_library::transform(memory, cuda::stream_ref(stream));

  const millpond::pool_statistics now = pool->statistics();
  std::printf("%s: %llu allocations by cuda::mr, %llu of them without a lock\n",
              gpu->info().name.c_str(), static_cast<unsigned long long>(now.allocations),
              static_cast<unsigned long long>(now.thread_cache_hits));
  return gpu->stream_destroy(stream).ok() ? 0 : 4;
}
