#include "replay/compare.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "base/threads.hpp"

namespace millpond::replay {
namespace {

struct job {
  const strategy_facts* which = nullptr;
  staging copies = staging::none;
};

std::vector<job> list_jobs(const workload& work, const compare_options& options) {
  std::vector<const strategy_facts*> strategies = options.strategies;
  if (strategies.empty()) {
    for (const strategy_facts& each : all_strategies()) strategies.push_back(&each);
  }
  std::vector<job> jobs;
  for (const strategy_facts* each : strategies) {
    if (work.copied_bytes == 0) {
      jobs.push_back({each, staging::none});
      continue;
    }
    jobs.push_back({each, staging::pinned});
    jobs.push_back({each, staging::pageable});
  }
  return jobs;
}

// Nothing may be thrown out of a thread: it would end the process.
result<outcome> run_in_thread(const workload& work, const strategy_facts& which,
                              const gpu_source& gpus, const run_options& options) {
  try {
    auto gpu = gpus();
    if (!gpu) return gpu.error();
    return run(work, which, std::move(*gpu), options);
  } catch (const std::bad_alloc&) {
    return error{error_code::out_of_memory, "not enough memory for this workload"};
  }
}

}  // namespace

result<std::vector<outcome>> compare(const workload& work, const gpu_source& gpus,
                                     const compare_options& options) {
  const std::vector<job> jobs = list_jobs(work, options);
  std::vector<std::optional<outcome>> made(jobs.size());
  std::optional<error> failure;
  std::mutex mutex;  // guards failure; a leaf
  std::atomic<std::size_t> next{0}, done{0};

  const auto work_on = [&] {
    for (std::size_t at = next++; at < jobs.size(); at = next++) {
      {
        const std::lock_guard lock(mutex);
        if (failure) return;
      }
      run_options each = options.each;
      each.copies = jobs[at].copies;
      if (options.running) {
        each.progress = [&options, label = jobs[at].which->name](double share) {
          options.running(label, share);
        };
      }
      result<outcome> answer = run_in_thread(work, *jobs[at].which, gpus, each);
      if (!answer) {
        const std::lock_guard lock(mutex);
        if (!failure) {
          failure = error{answer.error().code,
                          std::string(jobs[at].which->name) + ": " + answer.error().message};
        }
        return;
      }
      made[at] = std::move(*answer);
      const std::size_t over = ++done;
      if (options.progress) options.progress(over, jobs.size(), jobs[at].which->name);
    }
  };
  const std::size_t workers =
      std::clamp<std::size_t>(options.workers, 1, std::max<std::size_t>(1, jobs.size()));
  {
    joined_threads others;  // where there are none, this one does it all
    for (std::size_t i = 1; i < workers && others.start(work_on); ++i) {
    }
    work_on();
  }
  if (failure) return *failure;
  std::vector<outcome> answer;
  answer.reserve(made.size());
  for (auto& each : made) answer.push_back(std::move(*each));
  return answer;
}

}  // namespace millpond::replay
