#include "cli/replay_all.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include "cli/memory_limit.hpp"
#include "millpond/base/units.hpp"
#include "report/table.hpp"

namespace millpond::cli {

namespace {

// A live block's entries in the simulated GPU, the allocator and the check of its contents
// (measured: 0.9 KiB).
constexpr std::uint64_t bytes_a_live_block = KiB, bytes_a_run = 32 * MiB;

std::uint64_t most_live_blocks(const replay::workload& work) {
  std::uint64_t live = 0, most = 0;
  for (const replay::op& each : work.ops) {
    if (each.what == replay::op_kind::allocate) most = std::max(most, ++live);
    if (each.what == replay::op_kind::free && live > 0) --live;
  }
  return most;
}

// As many at a time as there is memory for.
result<unsigned> workers_for(const replay::workload& work) {
  const std::uint64_t blocks = most_live_blocks(work);
  const std::uint64_t each = bytes_a_run + blocks * bytes_a_live_block;
  const std::uint64_t left = memory_left_to_process();
  if (each > left) {
    return error{
        error_code::out_of_memory,
        fmt::format("{}: {} blocks are live at once, so that a replay takes about {} of "
                    "this machine's memory, and {} are left: `millpond explain` takes "
                    "less, and a machine with more memory replays it",
                    work.name, report::grouped(blocks), format_bytes(each), format_bytes(left))};
  }
  const unsigned most = std::clamp(std::thread::hardware_concurrency(), 1u, 4u);
  return static_cast<unsigned>(std::min<std::uint64_t>(most, left / each));
}

}  // namespace

result<std::vector<replay::outcome>> replay_all(const replay::workload& work, const driver& first,
                                                replay::compare_options options, session& here) {
  if (first.simulated()) {
    const auto workers = workers_for(work);
    if (!workers) return workers.error();
    options.workers = *workers;
  }
  std::mutex mutex;  // opening and progress are for one thread at a time
  std::size_t over = 0, of = 0;
  options.progress = [&](std::size_t done, std::size_t all, std::string_view label) {
    const std::lock_guard lock(mutex);
    over = done;
    of = all;
    here.progress(fmt::format("{} of {} strategies replayed ({})", done, all, label));
  };
  options.running = [&](std::string_view label, double share) {
    const std::lock_guard lock(mutex);
    here.progress(of == 0 ? fmt::format("replaying {}: {:.0f}%", label, 100 * share)
                          : fmt::format("replaying {}: {:.0f}%; {} of {} strategies are over",
                                        label, 100 * share, over, of));
  };
  const auto source = [&]() -> result<std::shared_ptr<driver>> {
    const std::lock_guard lock(mutex);
    return here.open_gpu();
  };
  return replay::compare(work, source, options);
}

}  // namespace millpond::cli
