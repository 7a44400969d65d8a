#include "cli/replay_all.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <thread>

namespace millpond::cli {

result<std::vector<replay::outcome>> replay_all(const replay::workload& work, const driver& first,
                                                replay::compare_options options, session& here) {
  if (first.simulated()) options.workers = std::clamp(std::thread::hardware_concurrency(), 1u, 4u);
  std::mutex mutex;  // opening and progress are for one thread at a time
  options.progress = [&](std::size_t done, std::size_t all, std::string_view label) {
    const std::lock_guard lock(mutex);
    here.progress(fmt::format("{} of {} strategies replayed ({})", done, all, label));
  };
  const auto source = [&]() -> result<std::shared_ptr<driver>> {
    const std::lock_guard lock(mutex);
    return here.open_gpu();
  };
  return replay::compare(work, source, options);
}

}  // namespace millpond::cli
