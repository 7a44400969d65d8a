#include "bench/support/thread_run.hpp"

#include <algorithm>
#include <atomic>
#include <numeric>

namespace millpond::bench {
namespace {

thread_outcome run(harness& h, subject& of, const thread_plan& plan, unsigned threads,
                   const thread_rounds& work) {
  thread_outcome out;
  out.own = of.millpond_pool();
  const std::uint64_t full = share_of(of, plan.rounds, plan.slower);
  out.rounds_a_thread = h.operations(full / (out.own == nullptr ? threads : 1));
  out.pairs = out.rounds_a_thread * plan.pairs_a_round * threads;
  std::vector<double> ns(threads);
  std::atomic<std::uint64_t> failures{0}, waits_before{0};
  start_line line(threads);
  on_threads(h.gpu(), threads, [&](unsigned t) {
    const stream_set stream(h.gpu(), 1);
    const auto mine = of.open(stream[0]);
    failures.fetch_add(work(*mine, std::min(out.rounds_a_thread, plan.warm_rounds)));
    if (out.own != nullptr && t == 0) waits_before = out.own->statistics().lock_waits;
    line.wait();
    const std::uint64_t start = now_ns();
    failures.fetch_add(work(*mine, out.rounds_a_thread));
    ns[t] = static_cast<double>(now_ns() - start) /
            static_cast<double>(out.rounds_a_thread * plan.pairs_a_round);
  });
  if (out.own != nullptr) out.lock_waits = out.own->statistics().lock_waits - waits_before;
  out.worst_thread_ns = *std::ranges::max_element(ns);
  out.row = {{"name", of.name()},
             {"threads", threads},
             {"ns_a_pair", std::accumulate(ns.begin(), ns.end(), 0.0) / threads},
             {"failures", failures.load()}};
  return out;
}

}  // namespace

void over_threads(harness& h, const thread_plan& plan, const thread_rounds& work,
                  const std::function<void(thread_outcome&)>& report) {
  for (const auto& of : h.subjects()) {
    if (of->name() == "cudaMalloc") continue;
    for (const unsigned threads : {1u, 2u, 4u, 8u, 16u}) {
      if (!h.start(*of)) break;
      thread_outcome outcome = run(h, *of, plan, threads, work);
      report(outcome);
      h.add(std::move(outcome.row));
      of->stop();
    }
  }
}

}  // namespace millpond::bench
