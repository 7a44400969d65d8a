// A CUDA graph whose memory is planned: fixed addresses in one arena, that nothing else is given
// while the graph lives.
//
//     planned_graph          the first CUDA device, or the simulated GPU where there is none
//     planned_graph sim      the simulated GPU
//
// A layered network is run once as it is, which records it, and is then captured for two batch
// sizes. The graphs are launched again and again, in between other requests on the same stream that
// are served by the same planned_on. Every block is written and checked by the GPU inside the
// graph, so a byte that somebody else was given would be seen.
#include <millpond/millpond.hpp>
#include <millpond/planned/planned_resource.hpp>

#include <cstdio>
#include <memory>
#include <string_view>
#include <vector>

namespace mp = millpond;

namespace {

constexpr std::uint64_t layers = 12;

std::shared_ptr<mp::driver> open_gpu(bool want_simulated) {
  if (!want_simulated) {
    auto card = mp::open_cuda_driver(0);
    if (card) return *card;
    std::printf("No card is used: %s\n", card.error().message.c_str());
  }
  auto simulated = mp::simulated_gpu::create();
  if (!simulated) throw mp::memory_error(simulated.error());
  return *simulated;
}

void must(mp::call_result answer) {
  if (!answer.ok()) throw mp::memory_error(mp::to_error(answer, "planned_graph"));
}

// A forward pass on the planned_on: each layer's output lives until the next layer has read it.
void run(mp::driver& gpu, mp::planned_stream planned_on, std::uint64_t batch,
         mp::identity_report* report, mp::stream_handle stream) {
  struct block {
    mp::identity_block of;
  };
  std::uint64_t identity = batch * 1000;
  const auto take = [&](std::uint64_t bytes) {
    const block made{
        {reinterpret_cast<mp::device_address>(planned_on.allocate(bytes)), bytes, ++identity}};
    must(gpu.identity_write({&made.of, 1}, stream));
    return made;
  };
  const auto check_and_give = [&](const block& done) {
    must(gpu.identity_check({&done.of, 1}, report, stream));
    planned_on.deallocate(reinterpret_cast<void*>(done.of.address), done.of.bytes);
  };
  planned_on.begin(batch);
  block input = take(batch * mp::MiB);
  for (std::uint64_t layer = 0; layer < layers; ++layer) {
    const block scratch = take(batch * 512 * mp::KiB * (1 + layer % 3));
    const block output = take(batch * mp::MiB * (1 + layer % 2));
    check_and_give(scratch);
    check_and_give(input);
    input = output;
  }
  check_and_give(input);
  planned_on.end();
}

}  // namespace

int main(int count, char** arguments) try {
  const auto gpu = open_gpu(count > 1 && std::string_view(arguments[count - 1]) == "sim");
  must(gpu->bind_thread());
  std::printf("GPU: %s\n", gpu->info().name.c_str());
  mp::stream_handle stream = nullptr;
  must(gpu->stream_create(&stream));
  std::uint64_t wrong = 0;
  bool planned_all = false;
  {
    auto pool = mp::pool::create(gpu, {});
    if (!pool) throw mp::memory_error(pool.error());
    mp::pinned_resource pinned(gpu);
    mp::buffer<mp::identity_report> report(1, pinned, stream);
    report.host_span()[0] = {};
    mp::planned_resource planned(**pool);
    mp::planned_stream planned_on = planned.on_stream(stream);

    const std::vector<std::uint64_t> batches{8, 4};
    for (const std::uint64_t batch : batches)
      run(*gpu, planned_on, batch, report.data(), stream);  // recorded, and planned
    must(gpu->stream_synchronize(stream));                  // a graph takes idle memory only

    std::vector<mp::graph_exec_handle> graphs;
    for (const std::uint64_t batch : batches) {
      must(gpu->capture_begin(stream, mp::capture_mode::thread_local_));
      run(*gpu, planned_on, batch, report.data(), stream);
      mp::graph_handle graph = nullptr;
      must(gpu->capture_end(stream, &graph));
      mp::graph_exec_handle exec = nullptr;
      must(gpu->graph_instantiate(&exec, graph));
      must(gpu->graph_destroy(graph));
      graphs.push_back(exec);
    }
    const mp::planned_counters captured = planned_on.counters();
    planned_all = captured.served == batches.size() * (2 * layers + 1);
    std::printf("two graphs of %llu blocks each, batch 8 and 4, %s\n",
                static_cast<unsigned long long>(2 * layers + 1),
                planned_all ? "all at planned addresses" : "NOT all at planned addresses");
    std::printf("one arena of %s for both; the larger one's lower bound is %s\n",
                mp::format_bytes(captured.arena_bytes).c_str(),
                mp::format_bytes(captured.lower_bound_bytes).c_str());

    constexpr int rounds = 50;
    for (int round = 0; round < rounds; ++round) {
      for (const mp::graph_exec_handle each : graphs) must(gpu->graph_launch(each, stream));
      run(*gpu, planned_on, 2, report.data(),
          stream);  // not captured: another arena, so the graphs' stays as it was
    }
    must(gpu->stream_synchronize(stream));
    wrong = report.host_span()[0].mismatches;
    std::printf(
        "%d launches of each, with other requests in between: %llu words that another block had "
        "overwritten\n",
        rounds, static_cast<unsigned long long>(wrong));
    for (const mp::graph_exec_handle each : graphs) must(gpu->graph_exec_destroy(each));
  }
  must(gpu->stream_destroy(stream));
  return wrong == 0 && planned_all ? 0 : 1;
} catch (const std::exception& why) {
  std::fprintf(stderr, "planned_graph: %s\n", why.what());
  return 4;
}
