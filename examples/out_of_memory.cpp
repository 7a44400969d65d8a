// A server that runs out of memory, and the report that it gets. Weights, a captured graph, a
// stream whose work is not done, and long-lived blocks between short-lived ones all keep memory;
// docs/how_to/out_of_memory.md reads the report line by line.
//
//     out_of_memory [sim] [--json]    always on the simulated GPU, so that it is the same
//     everywhere
#include <millpond/millpond.hpp>

#include <cstdio>
#include <string_view>
#include <vector>

namespace mp = millpond;

namespace {

void must(mp::call_result answer) {
  if (!answer.ok()) throw mp::memory_error(mp::to_error(answer, "out_of_memory"));
}

}  // namespace

int main(int count, char** arguments) try {
  bool json = false;
  for (int i = 1; i < count; ++i) json = json || std::string_view(arguments[i]) == "--json";
  auto made = mp::simulated_gpu::create();
  if (!made) throw mp::memory_error(made.error());
  const auto gpu = *made;
  mp::stream_handle serving = nullptr, copying = nullptr, capturing = nullptr;
  for (mp::stream_handle* s : {&serving, &copying, &capturing}) must(gpu->stream_create(s));

  mp::pool_options options;
  options.name = "inference";
  options.limit_bytes = 2 * mp::GiB;
  options.max_wait_ns = 0;  // this server rather refuses a batch than waits for another stream
  auto pool = mp::pool::create(gpu, options);
  if (!pool) throw mp::memory_error(pool.error());
  mp::pool& memory = **pool;

  // The weights, and a captured graph with its own memory.
  void* const weights = memory.allocate(900 * mp::MiB, serving);
  must(gpu->capture_begin(capturing, mp::capture_mode::thread_local_));
  void* const of_graph = memory.allocate(160 * mp::MiB, capturing);
  memory.deallocate(of_graph, 160 * mp::MiB, capturing);
  mp::graph_handle graph = nullptr;
  must(gpu->capture_end(capturing, &graph));
  memory.deallocate(memory.allocate(512, capturing), 512,
                    capturing);  // the pool sees that the capture has ended
  // Requests: a small result that lives on, behind each large one that does not.
  std::vector<void*> large, small;
  for (int i = 0; i < 6; ++i) {
    large.push_back(memory.allocate(90 * mp::MiB, serving));
    small.push_back(memory.allocate(1 * mp::MiB, serving));
  }
  for (void* x : large) memory.deallocate(x, 90 * mp::MiB, serving);
  // A transfer that takes its time on another stream.
  void* const staging = memory.allocate(240 * mp::MiB, copying);
  must(gpu->spin(500'000'000, copying));
  memory.deallocate(staging, 240 * mp::MiB, copying);

  try {
    void* const batch = memory.allocate(900 * mp::MiB, serving);
    memory.deallocate(batch, 900 * mp::MiB, serving);
    std::printf("The batch fitted.\n");
    return 1;
  } catch (const mp::out_of_memory& why) {
    std::printf("%s\n", json ? why.json().c_str() : why.what());
  }

  memory.deallocate(weights, 900 * mp::MiB, serving);
  for (void* x : small) memory.deallocate(x, 1 * mp::MiB, serving);
  must(gpu->graph_destroy(graph));
  pool->reset();
  for (mp::stream_handle s : {serving, copying, capturing}) must(gpu->stream_destroy(s));
  return 0;
} catch (const std::exception& why) {
  std::fprintf(stderr, "out_of_memory: %s\n", why.what());
  return 4;
}
