// What ONNX Runtime asks of an OrtAllocator, asked of millpond's. In a program it is
// `api->RegisterAllocator(environment, &memory)`, and the session's option
// "session.use_env_allocators" = "1". Built against ONNX Runtime's header where it is
// (MILLPOND_ONNXRUNTIME_DIR), else against a stand-in; the simulated GPU serves where there is no
// card.
#include <millpond/bindings/onnxruntime.hpp>
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
  stream_handle stream = nullptr;  // the one given to the CUDA provider as user_compute_stream
  if (!gpu->bind_thread().ok() || !gpu->stream_create(&stream).ok()) return 4;
  bool right = true;
  {
    const auto pool = pool::create(gpu).value();
    const OrtMemoryInfo* const info =
        nullptr;  // in a program: what api->CreateMemoryInfo("Cuda", ...) made
    onnxruntime_allocator memory(*pool, info, stream);
    OrtAllocator* const session_sees = &memory;
    for (int run = 0; run < 100; ++run) {
      void* const tensor = session_sees->Alloc(session_sees, 3 * MiB);
      right = right && tensor != nullptr;
      session_sees->Free(session_sees, tensor);
    }
    right = right && session_sees->Info(session_sees) == info &&
            session_sees->Alloc(session_sees, 0) == nullptr;
    right = right && session_sees->Alloc(session_sees, std::size_t{1} << 50) == nullptr &&
            !memory.last_error().empty();
    const pool_statistics now = pool->statistics();
    std::printf(
        "%s: %llu allocations by ONNX Runtime's interface, %llu of them without a lock, %llu bytes "
        "left: %s\n",
        gpu->info().name.c_str(), static_cast<unsigned long long>(now.allocations),
        static_cast<unsigned long long>(now.thread_cache_hits),
        static_cast<unsigned long long>(now.live_bytes), right ? "as it should be" : "FAILED");
    right = right && now.live_bytes == 0;
  }
  return gpu->stream_destroy(stream).ok() && right ? 0 : 1;
}
