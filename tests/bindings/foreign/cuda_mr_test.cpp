// The cuda::mr resource on the simulated GPU. Compiled against the toolkit's CCCL, and once more
// against a newer one where there is one (cmake option MILLPOND_CCCL_DIR): the same file for both
// generations of the interface.
#include "millpond/bindings/cuda_mr.hpp"

#include <cstdio>

#include "millpond/memory/kinds.hpp"
#include "millpond/pool/pool.hpp"
#include "millpond/sim/simulated_gpu.hpp"

using namespace millpond;

namespace {

int failures = 0;
void expect(bool holds, const char* what, int line) {
  if (holds) return;
  ++failures;
  std::fprintf(stderr, "line %d: not so: %s\n", line, what);
}
#define EXPECT(what) expect((what), #what, __LINE__)

// A library that knows only the type-erased reference.
#if MILLPOND_CUDA_MR_STREAM_FIRST
using any_device_memory = cuda::mr::resource_ref<cuda::mr::device_accessible>;
void* take(any_device_memory memory, std::size_t bytes, cuda::stream_ref on) {
  return memory.allocate(on, bytes, 256);
}
void give(any_device_memory memory, void* ptr, std::size_t bytes, cuda::stream_ref on) {
  memory.deallocate(on, ptr, bytes, 256);
}
#else
using any_device_memory = cuda::mr::async_resource_ref<cuda::mr::device_accessible>;
void* take(any_device_memory memory, std::size_t bytes, cuda::stream_ref on) {
  return memory.allocate_async(bytes, 256, on);
}
void give(any_device_memory memory, void* ptr, std::size_t bytes, cuda::stream_ref on) {
  memory.deallocate_async(ptr, bytes, 256, on);
}
#endif

void wrong_kinds(const std::shared_ptr<driver>& gpu) {
  device_resource device(gpu);
  pageable_resource pageable(gpu);
  try {
    const cuda_host_device_resource refused(device);
    expect(false, "device memory is refused for the CPU", __LINE__);
  } catch (const memory_error& why) {
    EXPECT(why.code() == error_code::wrong_kind);
  }
  EXPECT(cuda_host_resource(pageable).resource().kind() == memory_kind::pageable);
}

}  // namespace

int main() {
  const auto gpu = simulated_gpu::create().value();
  const auto memory = pool::create(gpu).value();
  stream_handle stream = nullptr;
  EXPECT(gpu->stream_create(&stream).ok());
  const cuda::stream_ref on(stream);

  cuda_device_resource resource(*memory);
  void* const a = take(resource, 1000, on);
  EXPECT(a != nullptr && memory->statistics().live_bytes == 1000);
  give(resource, a, 1000, on);
  EXPECT(take(resource, 1000, on) == a);
  give(resource, a, 1000, on);

  void* const b = resource.allocate_sync(4096, 1024);
  EXPECT((reinterpret_cast<std::uintptr_t>(b) & 1023) == 0);
  resource.deallocate_sync(b, 4096, 1024);
  EXPECT(resource.allocate_sync(0) == nullptr);
  EXPECT(memory->statistics().live_bytes == 0);

  const auto other = pool::create(gpu).value();
  EXPECT(resource == cuda_device_resource(*memory));
  EXPECT(resource != cuda_device_resource(*other));
  try {
    static_cast<void>(take(resource, std::size_t{1} << 50, on));
    expect(false, "a PiB is refused", __LINE__);
  } catch (const std::bad_alloc&) {
  }
#if CCCL_MAJOR_VERSION > 3 || (CCCL_MAJOR_VERSION == 3 && CCCL_MINOR_VERSION >= 2)
  cuda::mr::any_resource<cuda::mr::device_accessible> owned(resource);
  void* const c = owned.allocate(on, 512, 256);
  EXPECT(c != nullptr);
  owned.deallocate(on, c, 512, 256);
#endif
  wrong_kinds(gpu);
  EXPECT(gpu->violation_count() == 0);
  std::printf("CCCL %d.%d: %s\n", CCCL_MAJOR_VERSION, CCCL_MINOR_VERSION,
              failures == 0 ? "as it should be" : "FAILED");
  return failures == 0 ? 0 : 1;
}
