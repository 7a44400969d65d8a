// The five kinds of memory behind one interface: allocates a block of each, lets the GPU (and,
// where it can, the CPU) use it, and shows what happens when a block is freed through the wrong
// kind.
//
//     five_kinds          the first CUDA device, or the simulated GPU where there is none
//     five_kinds sim      the simulated GPU
#include <millpond/millpond.hpp>

#include <cstdio>
#include <memory>
#include <string_view>
#include <vector>

namespace mp = millpond;

namespace {

std::shared_ptr<mp::driver> open_gpu(bool want_simulated) {
  if (!want_simulated) {
    auto card = mp::open_cuda_driver(0);
    if (card) {
      std::printf("GPU: %s\n\n", (*card)->info().name.c_str());
      return *card;
    }
    std::printf("No card is used: %s\n", card.error().message.c_str());
  }
  mp::simulated_gpu_options options;
  options.mode =
      mp::simulated_gpu_options::contents::bytes;  // what its kernels write, the CPU sees
  auto simulated = mp::simulated_gpu::create(options);
  if (!simulated) throw mp::memory_error(simulated.error());
  std::printf("GPU: %s\n\n", (*simulated)->info().name.c_str());
  return *simulated;
}

void must(mp::call_result answer) {
  if (!answer.ok()) throw mp::memory_error(mp::to_error(answer, "five_kinds"));
}

// The GPU writes a pattern into the memory and checks it there; the CPU checks it too where it can.
void use(mp::driver& gpu, mp::memory_resource& memory, mp::buffer<mp::identity_report>& report,
         mp::stream_handle stream) {
  constexpr std::uint64_t identity = 42;
  mp::buffer<std::uint64_t> words(mp::MiB / sizeof(std::uint64_t), memory, stream);
  const mp::identity_block block{words.address(), words.size_bytes(), identity};

  const char* by_gpu = "no";
  if (memory.device_accessible()) {
    report.host_span()[0] = {};
    must(gpu.identity_write({&block, 1}, stream));
    must(gpu.identity_check({&block, 1}, report.data(), stream));
    must(gpu.stream_synchronize(stream));
    by_gpu = report.host_span()[0].mismatches == 0 ? "yes" : "WRONG";
  }
  const char* by_cpu = "no";
  if (memory.host_accessible()) {
    const auto span = words.host_span();
    if (!memory.device_accessible()) {
      for (std::size_t at = 0; at < span.size(); ++at) span[at] = mp::identity_word(identity, at);
    }
    by_cpu = "yes";
    for (std::size_t at = 0; at < span.size(); ++at) {
      if (span[at] != mp::identity_word(identity, at)) by_cpu = "WRONG";
    }
  }
  std::printf("%-12s %-4s %-4s %#llx\n", mp::to_string(memory.kind()), by_gpu, by_cpu,
              static_cast<unsigned long long>(words.address()));
}

}  // namespace

int main(int count, char** arguments) try {
  const auto gpu = open_gpu(count > 1 && std::string_view(arguments[1]) == "sim");
  must(gpu->bind_thread());
  mp::stream_handle stream = nullptr;
  must(gpu->stream_create(&stream));

  // One registry for all: each knows the others' pointers.
  const auto registry = std::make_shared<mp::pointer_registry>();
  {
    mp::device_resource device(gpu, registry);
    mp::driver_pool_resource driver_pool(gpu, {}, registry);
    mp::pinned_resource pinned(gpu, registry);
    mp::managed_resource managed(gpu, registry);
    mp::pageable_resource pageable(gpu, registry);

    std::printf("%-12s %-4s %-4s 1 MiB at\n", "kind", "GPU", "CPU");
    mp::buffer<mp::identity_report> report(1, pinned, stream);
    for (mp::memory_resource* memory :
         std::vector<mp::memory_resource*>{&device, &driver_pool, &pinned, &managed, &pageable}) {
      use(*gpu, *memory, report, stream);
    }

    void* const block = pinned.allocate(4096, stream);
    const auto refused = device.try_deallocate(block, 4096, stream);
    std::printf("\nA pinned block freed as device memory:\n  %s: %s\n",
                mp::to_string(refused.error().code), refused.error().message.c_str());
    pinned.deallocate(block, 4096, stream);
  }
  must(gpu->stream_destroy(stream));
  return 0;
} catch (const std::exception& why) {
  std::fprintf(stderr, "five_kinds: %s\n", why.what());
  return 4;
}
