// One CUDA graph for each batch size, of which only one runs at a time: each with memory of its own
// they hold the sum of what they need, in one arena about what the largest needs.
//
//     shared_graphs [sim]    on the card where there is one, unless reported otherwise
#include <millpond/millpond.hpp>

#include <cstdio>
#include <string_view>
#include <vector>

namespace mp = millpond;

namespace {

void must(mp::call_result answer) {
  if (!answer.ok()) throw mp::memory_error(mp::to_error(answer, "shared_graphs"));
}

std::shared_ptr<mp::driver> open_gpu(bool only_simulated) {
  if (!only_simulated) {
    if (auto card = mp::open_cuda_driver(0)) return *card;
  }
  auto simulated = mp::simulated_gpu::create();
  if (!simulated) throw mp::memory_error(simulated.error());
  return *simulated;
}

// A network of eight layers at one batch size. A layer reads what the one before wrote, which is
// free then.
mp::graph_exec_handle capture(mp::pool& memory, mp::stream_handle stream, std::uint64_t batch,
                              const mp::graph_arena& arena) {
  mp::driver& gpu = *memory.gpu();
  must(gpu.capture_begin(stream, mp::capture_mode::thread_local_));
  if (arena) {
    if (const auto attached = memory.capture_into(arena, stream); !attached)
      throw mp::memory_error(attached.error());
  }
  {
    auto cache = memory.capture_cache(stream);  // as fast as a cache, inside the capture
    const std::uint64_t bytes = batch * mp::MiB;
    void* input = cache.allocate(bytes);
    must(gpu.set_async(reinterpret_cast<mp::device_address>(input), 1, bytes, stream));
    for (int layer = 0; layer < 8; ++layer) {
      void* const output = cache.allocate(bytes);
      must(gpu.copy_async(reinterpret_cast<mp::device_address>(output),
                          reinterpret_cast<mp::device_address>(input), bytes, stream));
      cache.deallocate(input, bytes);
      input = output;
    }
    cache.deallocate(input, bytes);
  }
  mp::graph_handle graph = nullptr;
  must(gpu.capture_end(stream, &graph));
  mp::graph_exec_handle exec = nullptr;
  must(gpu.graph_instantiate(&exec, graph));
  must(gpu.graph_destroy(graph));
  return exec;
}

// What the pool reserves for graphs of these batch sizes.
std::uint64_t reserved_for(const std::shared_ptr<mp::driver>& gpu, mp::stream_handle stream,
                           const std::vector<std::uint64_t>& batches, bool shared) {
  auto pool = mp::pool::create(gpu, {});
  if (!pool) throw mp::memory_error(pool.error());
  const mp::graph_arena arena = shared ? (*pool)->make_graph_arena() : mp::graph_arena();
  std::vector<mp::graph_exec_handle> graphs;
  for (const std::uint64_t batch : batches) graphs.push_back(capture(**pool, stream, batch, arena));
  // One at a time, in any order: that is what the program promises.
  for (int round = 0; round < 20; ++round)
    must(gpu->graph_launch(graphs[static_cast<std::size_t>(round * 7) % graphs.size()], stream));
  must(gpu->stream_synchronize(stream));
  const std::uint64_t reserved = (*pool)->statistics().reserved_bytes;
  for (const mp::graph_exec_handle g : graphs) must(gpu->graph_exec_destroy(g));
  return reserved;
}

}  // namespace

int main(int count, char** arguments) try {
  const auto gpu = open_gpu(count > 1 && std::string_view(arguments[count - 1]) == "sim");
  must(gpu->bind_thread());
  std::printf("GPU: %s\n", gpu->info().name.c_str());
  mp::stream_handle stream = nullptr;
  must(gpu->stream_create(&stream));
  const std::vector<std::uint64_t> batches{64, 48, 32, 16, 8,
                                           4,  2,  1};  // the largest first: the others find room
  const std::uint64_t apart = reserved_for(gpu, stream, batches, false);
  const std::uint64_t together = reserved_for(gpu, stream, batches, true);
  must(gpu->stream_destroy(stream));
  std::printf("%zu graphs, each with memory of its own: %s\nthe same in one arena: %s\n",
              batches.size(), mp::format_bytes(apart).c_str(), mp::format_bytes(together).c_str());
  return together * 2 <= apart ? 0 : 1;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "shared_graphs: %s\n", failure.what());
  return 1;
}
