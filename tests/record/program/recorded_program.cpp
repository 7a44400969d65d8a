// A program for `millpond record` that plays the driver's part itself: it loads the recorder as the
// driver would and makes a few calls through the fake CUPTI. Its first argument says how it ends.
#include <cuda.h>
#include <cupti.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

extern "C" void fake_cupti_occupy();
extern "C" void fake_cupti_call(CUpti_CallbackDomain, CUpti_CallbackId, const char*, const char*,
                                void*, void (*)(void*), void*, int);

// As an interpreter of a version that the recorder does not know.
extern "C" {
__attribute__((visibility("default"))) extern const unsigned long Py_Version;
const unsigned long Py_Version = 0x030e00f0;
}

namespace {

// Addresses that no malloc gives: the recorder must not read through them.
CUdeviceptr next_address = 0x7e00'0000'0000;

__attribute__((noinline)) CUdeviceptr allocate(size_t bytes) {
  CUdeviceptr made = next_address;
  next_address += (bytes + 511) / 512 * 512;
  cuMemAlloc_v2_params with{&made, bytes};
  fake_cupti_call(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2,
                  "cuMemAlloc_v2", nullptr, &with, nullptr, nullptr, 0);
  return made;
}
__attribute__((noinline)) void release(CUdeviceptr at, int status) {
  cuMemFree_v2_params with{at};
  fake_cupti_call(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2, "cuMemFree_v2",
                  nullptr, &with, nullptr, nullptr, status);
}

// The recorder's own word to the program, as one would find it with dlsym.
void tell_recorder(const char* what) {
  if (const char* path = std::getenv("CUDA_INJECTION64_PATH")) {
    reinterpret_cast<void (*)()>(dlsym(dlopen(path, RTLD_NOW), what))();
  }
}

void load_recorder() {
  const char* path = std::getenv("CUDA_INJECTION64_PATH");
  if (path == nullptr) return;
  void* library = dlopen(path, RTLD_NOW);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::exit(98);
  }
  reinterpret_cast<int (*)()>(dlsym(library, "InitializeInjection"))();
}

}  // namespace

int main(int count, char** arguments) {
  const std::string how = count > 1 ? arguments[1] : "";
  if (how == "no_cuda") return 0;
  if (how == "occupied") fake_cupti_occupy();
  load_recorder();
  const CUdeviceptr kept = allocate(1 << 20);
  for (int n = 0; n < 10; ++n) release(allocate(4096), 0);
  if (how == "batch") {  // a pageable source that is read at once, and one in stream order
    static char first[64], second[128];
    CUdeviceptr to[] = {kept, kept + 64, kept + 256},
                from[] = {reinterpret_cast<CUdeviceptr>(first),
                          reinterpret_cast<CUdeviceptr>(second), kept};
    size_t sizes[] = {64, 128, 32}, begins[] = {0, 1};
    CUmemcpyAttributes attributes[2] = {};
    attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
    attributes[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    cuMemcpyBatchAsync_v2_params with{
        to, from, sizes, 3, attributes, begins, 2, reinterpret_cast<CUstream>(0x7000)};
    fake_cupti_call(
        CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuMemcpyBatchAsync_v2,
        "cuMemcpyBatchAsync_v2", nullptr, &with, [](void*) { usleep(2000); }, nullptr, 0);
  }
  release(kept, 0);
  release(kept, static_cast<int>(CUDA_ERROR_INVALID_VALUE));
  if (how == "pause") {
    tell_recorder("millpond_record_pause");
    for (int n = 0; n < 100; ++n) release(allocate(64), 0);
    tell_recorder("millpond_record_resume");
    allocate(1 << 21);
  }
  if (how == "leak") allocate(1 << 21);
  if (how == "many") {
    for (int n = 0; n < 200'000; ++n) release(allocate(4096), 0);
  }
  if (how == "endless") {
    for (;;) {
      release(allocate(4096), 0);
      usleep(500);
    }
  }
  if (how == "fork") {
    const pid_t child = fork();
    if (child == 0) {
      release(allocate(64), 0);  // a child has no recorder: nothing is written, nothing hangs
      _exit(0);
    }
    waitpid(child, nullptr, 0);
  }
  if (how == "abort" || how == "kill" || how == "exit")
    usleep(600'000);  // longer than the recorder waits to write
  if (how == "abort") std::abort();
  if (how == "kill") std::raise(SIGKILL);
  if (how == "exit") _exit(7);
  return how == "seven" ? 7 : 0;
}
