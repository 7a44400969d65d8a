// Recorded traces through each allocator: allocations and frees alone, the first round cold, the
// second warm. Host time in the allocator, net of the clock's cost; reserved over the peak of what
// the trace asked for. With --paced the recording's pauses are kept and a kernel writes each block
// on its stream, so that streams are busy as they were.
#include <algorithm>
#include <cstdio>
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
  if (!opened) {
    std::fprintf(stderr, "%s\n", opened.error().message.c_str());
    std::exit(3);
  }
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
  if (!visited) {
    std::fprintf(stderr, "%s\n", visited.error().message.c_str());
    std::exit(3);
  }
  out.streams = static_cast<std::uint32_t>(streams.size());
  return out;
}

}  // namespace

int main(int count, char** arguments) {
  bench::harness h("traces", count, arguments);
  for (const std::string& path : h.settings().inputs) {
    const workload work = load(path);
    for (const auto& subject : h.subjects()) {
      if (subject->name() == "cudaMalloc" || subject->name() == "CUB caching") continue;
      std::string why;
      if (!subject->start(why)) {
        h.add({{"trace", std::filesystem::path(path).filename().string()},
               {"name", subject->name()},
               {"failed", why}});
        continue;
      }
      std::vector<stream_handle> streams(work.streams);
      for (auto& s : streams) static_cast<void>(h.gpu().stream_create(&s));
      nlohmann::json row{{"trace", std::filesystem::path(path).filename().string()},
                         {"name", subject->name()}};
      {
        std::vector<std::unique_ptr<bench::session>> sessions;
        for (auto& s : streams) sessions.push_back(subject->open(s));
        for (const char* round : {"cold", "warm"}) {
          std::vector<void*> at(work.blocks, nullptr);
          std::vector<std::uint64_t> bytes(work.blocks, 0);
          std::vector<float> allocate;
          double total = 0;
          std::uint64_t failures = 0;
          for (const operation& o : work.operations) {
            if (h.settings().paced && o.gap_ns > 0) {
              for (const std::uint64_t until = bench::now_ns() + o.gap_ns;
                   bench::now_ns() < until;) {
              }
            }
            const std::uint64_t start = bench::now_ns();
            if (o.bytes > 0) {
              at[o.block] = sessions[o.stream]->allocate(o.bytes);
            } else if (at[o.block] != nullptr) {
              sessions[o.stream]->deallocate(at[o.block], bytes[o.block]);
            }
            const double ns =
                std::max(0.0, static_cast<double>(bench::now_ns() - start) - h.clock_ns());
            total += ns;
            if (o.bytes > 0) {
              allocate.push_back(static_cast<float>(ns));
              bytes[o.block] = o.bytes;
              failures += at[o.block] == nullptr;
              if (h.settings().paced && at[o.block] != nullptr) {
                const identity_block whole{reinterpret_cast<device_address>(at[o.block]), o.bytes,
                                           o.block};
                static_cast<void>(h.gpu().identity_write({&whole, 1}, streams[o.stream]));
              }
            } else {
              at[o.block] = nullptr;
            }
          }
          for (std::uint32_t b = 0; b < work.blocks; ++b) {
            if (at[b] != nullptr) sessions[0]->deallocate(at[b], bytes[b]);
          }
          row[std::string(round) + "_ms"] = total / 1e6;
          row[std::string(round) + "_allocate_p50_us"] = bench::percentile(allocate, 0.5) / 1e3;
          row[std::string(round) + "_allocate_p99_us"] = bench::percentile(allocate, 0.99) / 1e3;
          row[std::string(round) + "_reserved_ratio"] =
              static_cast<double>(subject->reserved()) / static_cast<double>(work.peak);
          row["failures"] = failures;
        }
        if (pool* const p = subject->millpond_pool()) {
          const pool_statistics s = p->statistics();
          row["growths"] = s.growths;
          row["stitches"] = s.stitches;
          row["metadata_share"] =
              static_cast<double>(s.metadata_bytes) / static_cast<double>(s.peak_reserved_bytes);
        }
      }
      h.add(std::move(row));
      for (auto& s : streams) {
        static_cast<void>(h.gpu().stream_synchronize(s));
        static_cast<void>(h.gpu().stream_destroy(s));
      }
      subject->stop();
    }
  }
}
