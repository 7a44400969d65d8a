// Standard containers in pinned memory, copied to the GPU at the link's full speed, and a device
// block owned by a unique_ptr.
//
//     standard_containers          the first CUDA device, or the simulated GPU where there is none
//     standard_containers sim      the simulated GPU
#include <millpond/bindings/std_memory.hpp>
#include <millpond/millpond.hpp>

#include <cstdio>
#include <memory_resource>
#include <numeric>
#include <string_view>
#include <vector>

namespace mp = millpond;

int main(int count, char** arguments) try {
  std::shared_ptr<mp::driver> gpu;
  if (count < 2 || std::string_view(arguments[1]) != "sim") {
    if (auto card = mp::open_cuda_driver(0)) gpu = *card;
  }
  if (gpu == nullptr) gpu = mp::simulated_gpu::create().value();
  mp::stream_handle stream = nullptr;
  if (!gpu->bind_thread().ok() || !gpu->stream_create(&stream).ok()) return 4;

  mp::pool_options pinned;
  pinned.kind = mp::memory_kind::pinned;
  const auto host_pool = mp::pool::create(gpu, pinned).value();
  const auto device_pool = mp::pool::create(gpu).value();
  {
    mp::pmr_resource memory(*host_pool, stream);
    std::pmr::vector<int> numbers(100'000, &memory);
    std::iota(numbers.begin(), numbers.end(), 0);

    const auto on_device = mp::make_unique_block<int>(*device_pool, numbers.size(), stream);
    using back_memory = mp::std_allocator<int>;
    std::vector<int, back_memory> back(numbers.size(), back_memory(*host_pool, stream));
    const std::uint64_t bytes = numbers.size() * sizeof(int);
    const auto address = [](const void* p) { return reinterpret_cast<mp::device_address>(p); };
    if (!gpu->copy_async(address(on_device.get()), address(numbers.data()), bytes, stream).ok() ||
        !gpu->copy_async(address(back.data()), address(on_device.get()), bytes, stream).ok() ||
        !gpu->stream_synchronize(stream).ok()) {
      return 4;
    }
    // The simulated GPU remembers copies as tags, not bytes, unless it is asked to.
    const bool same = gpu->simulated() || std::equal(back.begin(), back.end(), numbers.begin());
    std::printf("%s: %zu numbers to the device and back, %s\n", gpu->info().name.c_str(),
                numbers.size(), same ? "the same" : "WRONG");
    if (!same) return 1;
  }
  return gpu->stream_destroy(stream).ok() ? 0 : 4;
} catch (const std::exception& why) {
  std::fprintf(stderr, "standard_containers: %s\n", why.what());
  return 4;
}
