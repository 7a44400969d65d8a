// The numbers of a pool in the text format of Prometheus, on standard output: what a server would
// answer to GET /metrics.
//
//     metrics          the first CUDA device, or the simulated GPU where there is none
//     metrics sim      the simulated GPU
#include <millpond/millpond.hpp>

#include <cstdio>
#include <exception>
#include <memory>
#include <string_view>

namespace mp = millpond;

int main(int count, char** arguments) try {
  std::shared_ptr<mp::driver> gpu;
  if (count < 2 || std::string_view(arguments[1]) != "sim") {
    if (auto card = mp::open_cuda_driver(0)) gpu = *card;
  }
  if (gpu == nullptr) gpu = mp::simulated_gpu::create().value();
  mp::stream_handle stream = nullptr;
  if (!gpu->bind_thread().ok() || !gpu->stream_create(&stream).ok()) return 4;

  const auto pool = mp::pool::create(gpu).value();
  mp::statistics_resource requests(*pool);  // what one part of the program asks for
  void* const weights = pool->allocate(48 * mp::MiB, stream);
  for (int request = 0; request < 100; ++request) {
    void* const scratch = requests.allocate(2 * mp::MiB, stream);
    requests.deallocate(scratch, 2 * mp::MiB, stream);
  }
  const mp::metric_source sources[] = {{"all", pool.get()}, {"requests", &requests}};
  std::fputs(mp::metrics_text(sources).c_str(), stdout);
  pool->deallocate(weights, 48 * mp::MiB, stream);
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "%s\n", failure.what());
  return 4;
}
