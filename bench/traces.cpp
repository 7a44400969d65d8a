// Recorded traces through each allocator: allocations and frees alone, the first round cold, the
// second warm. Host time in the allocator, net of the clock's cost; reserved over the peak of what
// the trace asked for. With --paced the recording's pauses are kept and a kernel writes each block
// on its stream, so that streams are busy as they were.
#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "bench/support/harness.hpp"
#include "trace/source.hpp"

using namespace millpond;

namespace {

struct operation {
  std::uint32_t block;
  std::uint32_t stream;
  std::uint64_t bytes;   // 0: free
  std::uint64_t gap_ns;  // since the operation before
};
struct workload {
  std::vector<operation> operations;
  std::uint32_t blocks = 0;
  std::uint32_t streams = 0;
  std::uint64_t peak = 0;
};

workload load(const std::string& path) {
  auto opened = trace::open_trace(path, {});
  if (!opened) bench::stop_with(3, opened.error().message);
  workload out;
  std::map<std::uint64_t, std::pair<std::uint32_t, std::uint64_t>> live;
  std::map<std::uint64_t, std::uint32_t> streams;
  std::uint64_t now = 0, last_ns = 0;
  const auto visited = opened->for_each([&](const trace::event& e) {
    const auto stream = [&] {
      return streams.emplace(e.stream, static_cast<std::uint32_t>(streams.size())).first->second;
    };
    const auto gap = [&] {
      const std::uint64_t before = std::exchange(last_ns, std::max(last_ns, e.time_ns));
      return out.operations.empty() ? 0 : last_ns - before;
    };
    if (e.what == trace::action::allocate && e.bytes > 0) {
      live[e.address] = {out.blocks, e.bytes};
      out.operations.push_back({out.blocks++, stream(), e.bytes, gap()});
      now += e.bytes;
      out.peak = std::max(out.peak, now);
    } else if (e.what == trace::action::free) {
      if (const auto at = live.find(e.address); at != live.end()) {
        out.operations.push_back({at->second.first, stream(), 0, gap()});
        now -= at->second.second;
        live.erase(at);
      }
    }
  });
  if (!visited) bench::stop_with(3, visited.error().message);
  out.streams = static_cast<std::uint32_t>(streams.size());
  return out;
}

// One round of it: what it took, and how many allocations failed.
struct round_outcome {
  double total_ns = 0;
  std::vector<float> allocate_ns;
  std::uint64_t failures = 0;
};

void wait_for(std::uint64_t ns) {
  const std::uint64_t until = bench::now_ns() + ns;
  while (bench::now_ns() < until) {
  }
}

round_outcome run_round(bench::harness& h, const workload& work, const bench::stream_set& streams,
                        const std::vector<std::unique_ptr<bench::session>>& sessions) {
  round_outcome out;
  const bool paced = h.settings().paced;
  std::vector<void*> at(work.blocks, nullptr);
  std::vector<std::uint64_t> bytes(work.blocks, 0);
  for (const operation& o : work.operations) {
    if (paced && o.gap_ns > 0) wait_for(o.gap_ns);
    const std::uint64_t start = bench::now_ns();
    if (o.bytes > 0) {
      at[o.block] = sessions[o.stream]->allocate(o.bytes);
    } else if (at[o.block] != nullptr) {
      sessions[o.stream]->deallocate(at[o.block], bytes[o.block]);
    }
    const double ns = std::max(0.0, static_cast<double>(bench::now_ns() - start) - h.clock_ns());
    out.total_ns += ns;
    if (o.bytes == 0) {
      at[o.block] = nullptr;
      continue;
    }
    out.allocate_ns.push_back(static_cast<float>(ns));
    bytes[o.block] = o.bytes;
    out.failures += at[o.block] == nullptr;
    if (paced && at[o.block] != nullptr) {
      const identity_block whole{reinterpret_cast<device_address>(at[o.block]), o.bytes, o.block};
      static_cast<void>(h.gpu().identity_write({&whole, 1}, streams[o.stream]));
    }
  }
  for (std::uint32_t b = 0; b < work.blocks; ++b) {
    if (at[b] != nullptr) sessions[0]->deallocate(at[b], bytes[b]);
  }
  return out;
}

void measure(bench::harness& h, const workload& work, bench::subject& of, bench::value row) {
  const bench::stream_set streams(h.gpu(), work.streams);
  const auto sessions = streams.open(of);
  row["name"] = of.name();
  for (const std::string round : {"cold", "warm"}) {
    round_outcome got = run_round(h, work, streams, sessions);
    row[round + "_ms"] = got.total_ns / 1e6;
    row[round + "_allocate_p50_us"] = bench::percentile(got.allocate_ns, 0.5) / 1e3;
    row[round + "_allocate_p99_us"] = bench::percentile(got.allocate_ns, 0.99) / 1e3;
    row[round + "_reserved_ratio"] =
        static_cast<double>(of.reserved()) / static_cast<double>(work.peak);
    row["failures"] = got.failures;
  }
  if (pool* const p = of.millpond_pool()) {
    const pool_statistics s = p->statistics();
    row["growths"] = s.growths;
    row["stitches"] = s.stitches;
    row["metadata_share"] =
        static_cast<double>(s.metadata_bytes) / static_cast<double>(s.peak_reserved_bytes);
  }
  h.add(std::move(row));
}

}  // namespace

int main(int count, char** arguments) {
  bench::harness h("traces", count, arguments);
  for (const std::string& path : h.settings().inputs) {
    const workload work = load(path);
    const bench::value row{{"trace", std::filesystem::path(path).filename().string()}};
    h.each_subject(
        {"cudaMalloc", "CUB caching"}, [&](bench::subject& of) { measure(h, work, of, row); }, row);
  }
}
