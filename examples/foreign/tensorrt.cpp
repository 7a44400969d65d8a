// What TensorRT asks of its allocator, asked of millpond's: scratch memory in the order of a
// stream, and an output whose size is known only as it grows. In a program it is
// `runtime->setGpuAllocator(&memory)`. Built against TensorRT's header where it is
// (MILLPOND_TENSORRT_DIR), else against a stand-in; the simulated GPU serves where there is no
// card.
#include <millpond/bindings/tensorrt.hpp>
#include <millpond/millpond.hpp>

#include <cstdio>
#include <string_view>

int main(int count, char** arguments) {
  using namespace millpond;
  std::shared_ptr<driver> gpu;
  if (count < 2 || std::string_view(arguments[1]) != "sim") {
    if (auto card = open_cuda_driver(0)) gpu = *card;
  }
  if (gpu == nullptr) gpu = simulated_gpu::create().value();
  stream_handle stream = nullptr;
  if (!gpu->bind_thread().ok() || !gpu->stream_create(&stream).ok()) return 4;
  const auto on = reinterpret_cast<cudaStream_t>(stream);
  bool right = true;
  std::uint64_t moved_in_place = 0;
  {
    const auto pool = pool::create(gpu).value();
    tensorrt_allocator memory(pool,
                              growable_blocks::create(gpu, {.reserve_bytes = 4 * GiB}).value());
    nvinfer1::IGpuAsyncAllocator& engine_sees = memory;

    for (int layer = 0; layer < 100; ++layer) {
      void* const scratch = engine_sees.allocateAsync(8 * MiB, 256, 0, on);
      right = right && scratch != nullptr && engine_sees.deallocateAsync(scratch, on);
    }
    const auto resizable = nvinfer1::AllocatorFlags{1}
                           << static_cast<int>(nvinfer1::AllocatorFlag::kRESIZABLE);
    void* const output = engine_sees.allocateAsync(1 * MiB, 256, resizable, on);
    for (std::uint64_t bytes = 2 * MiB; bytes <= 256 * MiB; bytes *= 2) {
      if (engine_sees.reallocate(output, 256, bytes) == output) moved_in_place = bytes;
    }
    right = right && moved_in_place == 256 * MiB && engine_sees.deallocateAsync(output, on);
    // What cannot be had is a null pointer, and the reason is kept.
    right = right && engine_sees.allocateAsync(std::uint64_t{1} << 50, 256, 0, on) == nullptr &&
            !memory.last_error().empty();
    right = right && gpu->stream_synchronize(stream).ok();
  }
  std::printf("%s: an output grew to %llu MiB where it lay: %s\n", gpu->info().name.c_str(),
              static_cast<unsigned long long>(moved_in_place / MiB),
              right ? "as it should be" : "FAILED");
  return gpu->stream_destroy(stream).ok() && right ? 0 : 1;
}
