// The process's devices behind PyTorch's entry points. Made when first used, and never destroyed:
// tensors may outlive the interpreter, and the driver gives everything back when the process ends.
#include "bindings/torch/torch_abi.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/fork.hpp"
#include "bindings/c_abi_objects.hpp"
#include "bindings/context_guard.hpp"
#include "bindings/torch/device_memory.hpp"
#include "millpond/sim/simulated_gpu.hpp"

using namespace millpond;
using namespace millpond::c_abi;
using millpond::torch::device_memory;

namespace {

constexpr int most_devices = 128;

struct world {
  std::mutex mutex;  // over making a device; its lock comes before all of the pool's
  std::array<std::atomic<device_memory*>, most_devices>
      devices{};              // published with what they point to
  std::atomic<int> known{1};  // devices of the process, as PyTorch reported
  std::atomic<bool> history{false};
  std::uint64_t history_entries = 0;
  pool_options options;
  bool simulate = false;
  bool used = false;
  std::uint32_t forks = fork_count();
};

world& here() {
  static world* const made = new world;  // see above: left at the end of the process
  return *made;
}

error no_device(int device) {
  return {error_code::invalid_argument,
          "there is no device " + std::to_string(device) + " for millpond"};
}

result<device_memory*> make_device(int device) {
  world& w = here();
  const std::lock_guard lock(w.mutex);
  if (auto* const made =
          w.devices[static_cast<std::size_t>(device)].load(std::memory_order_acquire))
    return made;
  std::shared_ptr<driver> gpu;
  pool_options options = w.options;
  if (w.simulate) {
    simulated_gpu_options how;
    how.mode = simulated_gpu_options::contents::bytes;
    how.memory_bytes = std::uint64_t{1} << 30;
    auto made = simulated_gpu::create(std::move(how));
    if (!made) return made.error();
    gpu = std::move(*made);
  } else {
    auto opened = open_cuda_driver(device);
    if (!opened) return opened.error();
    gpu = std::move(*opened);
    options.clock = host_now_ns;
  }
  auto made = device_memory::create(std::move(gpu), std::move(options));
  if (!made) return made.error();
  device_memory* const out = made->release();
  if (w.history.load(std::memory_order_relaxed)) out->record().start(w.history_entries);
  w.devices[static_cast<std::size_t>(device)].store(out, std::memory_order_release);
  w.used = true;
  return out;
}

result<device_memory*> device_of(int device) {
  if (device < 0 || device >= most_devices) return no_device(device);
  if (auto* const made =
          here().devices[static_cast<std::size_t>(device)].load(std::memory_order_acquire))
    return made;
  if (here().forks != fork_count()) {
    return error{
        error_code::not_permitted,
        "this process was forked from the one that loaded millpond: use the spawn start method"};
  }
  return make_device(device);
}

// Answers on each device that was used; MILLPOND_OK at the first that takes it, else the last
// refusal.
template <class Call>
millpond_status first_that_takes(Call&& call) {
  error last{error_code::foreign_pointer, "no device of millpond has this block"};
  for (auto& each : here().devices) {
    device_memory* const device = each.load(std::memory_order_acquire);
    if (device == nullptr) continue;
    const context_guard current(device->gpu(), here().known.load(std::memory_order_relaxed));
    const auto answer = call(*device);
    if (answer) return MILLPOND_OK;
    last = answer.error();
  }
  return fail(last);
}

template <class Call>
void each_device(Call&& call) {
  for (auto& each : here().devices) {
    if (device_memory* const device = each.load(std::memory_order_acquire)) {
      const context_guard current(device->gpu(), here().known.load(std::memory_order_relaxed));
      call(*device);
    }
  }
}

template <class Call>
millpond_status on_device(int which, Call&& call) {
  return guarded([&] {
    const auto device = device_of(which);
    if (!device) return fail(device.error());
    const context_guard current((*device)->gpu(), here().known.load(std::memory_order_relaxed));
    return call(**device);
  });
}

}  // namespace

millpond_status millpond_torch_configure(const millpond_pool_options* options, int simulate) {
  return guarded([&] {
    world& w = here();
    const std::lock_guard lock(w.mutex);
    if (w.used)
      return fail(
          MILLPOND_NOT_PERMITTED,
          "millpond already serves PyTorch: its options are set before the first allocation");
    auto read = read_pool_options(options);
    if (!read) return fail(read.error());
    w.options = std::move(*read);
    w.options.kind = memory_kind::device;
    w.options.clock = nullptr;
    w.simulate = simulate != 0;
    return MILLPOND_OK;
  });
}

millpond_status millpond_torch_start(int device_count) {
  if (device_count > most_devices) return fail(no_device(device_count - 1));
  here().known.store(std::max(device_count, 1), std::memory_order_relaxed);
  return MILLPOND_OK;
}

millpond_status millpond_torch_malloc(size_t bytes, int device, millpond_stream stream,
                                      void** ptr) {
  *ptr = nullptr;
  return on_device(device, [&](device_memory& on) {
    const auto got = on.allocate(bytes, stream);
    if (!got) return fail(got.error());
    *ptr = *got;
    return MILLPOND_OK;
  });
}

millpond_status millpond_torch_free(void* ptr, size_t bytes, int device, millpond_stream stream) {
  return on_device(device, [&](device_memory& on) {
    const auto freed = on.deallocate(ptr, bytes, stream);
    if (freed) return MILLPOND_OK;
    static const error_sink tell = default_error_sink();
    tell(freed.error());
    return fail(freed.error());
  });
}

millpond_status millpond_torch_record_stream(void* ptr, millpond_stream stream) {
  return guarded([&] {
    return first_that_takes([&](device_memory& on) { return on.record_use(ptr, stream); });
  });
}

millpond_status millpond_torch_find(void* ptr, void** start, size_t* bytes) {
  return guarded([&] {
    return first_that_takes([&](device_memory& on) {
      auto found = on.find(ptr);
      if (found) {
        *start = found->start;
        *bytes = found->bytes;
      }
      return found;
    });
  });
}

millpond_status millpond_torch_empty_cache(void) {
  return guarded([] {
    each_device([](device_memory& on) { on.empty_cache(); });
    return MILLPOND_OK;
  });
}

millpond_status millpond_torch_memory_fraction(double fraction, int device) {
  if (!(fraction >= 0) || fraction > 1) {
    return fail(MILLPOND_INVALID_ARGUMENT,
                "the memory fraction must be from 0 to 1, not " + std::to_string(fraction));
  }
  return on_device(device, [&](device_memory& on) {
    on.set_fraction(fraction);
    return MILLPOND_OK;
  });
}

millpond_status millpond_torch_begin_pool(int device, uint64_t id_high, uint64_t id_low,
                                          int (*filter)(millpond_stream stream, void* user),
                                          void (*drop)(void* user), void* user) {
  return on_device(device, [&](device_memory& on) {
    const std::shared_ptr<void> held(user, drop);
    on.begin_graph_pool({id_high, id_low}, [held, filter](stream_handle stream) {
      return filter(stream, held.get()) != 0;
    });
    return MILLPOND_OK;
  });
}

millpond_status millpond_torch_end_pool(int device, uint64_t id_high, uint64_t id_low) {
  return on_device(device, [&](device_memory& on) {
    on.end_graph_pool({id_high, id_low});
    return MILLPOND_OK;
  });
}

millpond_status millpond_torch_release_pool(int device, uint64_t id_high, uint64_t id_low) {
  return on_device(device, [&](device_memory& on) {
    on.release_graph_pool({id_high, id_low});
    return MILLPOND_OK;
  });
}

millpond_status millpond_torch_statistics(int device, millpond_torch_numbers* out) {
  return guarded([&] {
    if (device < 0 || device >= most_devices) return fail(no_device(device));
    millpond_torch_numbers all{};
    all.struct_bytes = out->struct_bytes;
    if (const auto* const on =
            here().devices[static_cast<std::size_t>(device)].load(std::memory_order_acquire)) {
      const device_memory::numbers now = on->statistics();
      all = {out->struct_bytes,
             now.requested,
             now.peak_requested,
             now.allocated,
             now.freed,
             now.allocations,
             now.deallocations,
             now.live_blocks,
             now.peak_live_blocks,
             now.reserved,
             now.peak_reserved,
             now.graph_bytes,
             now.out_of_memory,
             now.pool.growths,
             now.pool.stitches,
             now.pool.stitch_reuses,
             now.pool.host_waits,
             now.pool.stream_waits,
             now.pool.fence_queries,
             now.pool.thread_cache_hits,
             now.pool.heap_hits,
             now.pool.given_back_bytes,
             now.pool.cached_bytes,
             now.pool.pending_bytes,
             now.pool.idle_bytes,
             now.pool.peak_out_bytes,
             now.peak_needed,
             now.pool.seals,
             now.pool.stream_cache_hits,
             now.pool.thread_caches_flushed,
             now.pool.lock_waits};
    }
    std::memcpy(out, &all, std::min(out->struct_bytes, sizeof all));
    return MILLPOND_OK;
  });
}

millpond_status millpond_torch_reset_peaks(int device) {
  return guarded([&] {
    if (device < 0 || device >= most_devices) return fail(no_device(device));
    if (auto* const on =
            here().devices[static_cast<std::size_t>(device)].load(std::memory_order_acquire))
      on->reset_peaks();
    return MILLPOND_OK;
  });
}

millpond_status millpond_torch_history(uint64_t most_entries) {
  return guarded([&] {
    world& w = here();
    const std::lock_guard lock(w.mutex);
    w.history.store(most_entries != 0, std::memory_order_relaxed);
    w.history_entries = most_entries;
    each_device([&](device_memory& on) {
      most_entries != 0 ? on.record().start(most_entries) : on.record().stop();
    });
    return MILLPOND_OK;
  });
}

const char* millpond_torch_history_json(int device) {
  thread_local std::string text;
  text.clear();
  if (device >= 0 && device < most_devices) {
    if (auto* const on =
            here().devices[static_cast<std::size_t>(device)].load(std::memory_order_acquire))
      text = on->record().json();
  }
  return text.c_str();
}

void millpond_torch_frame_source(uint64_t (*source)(char* text, uint64_t most_bytes)) {
  torch::history::set_frame_source(source);
}
