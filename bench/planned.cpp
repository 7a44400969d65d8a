// The planned resource's own time: allocations and frees of a recorded iteration, served from its plan. One thread.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "millpond/planned_resource.hpp"

namespace {

// Host memory, asked only while the shape is recorded.
class host_memory final : public millpond::memory_resource {
 public:
  [[nodiscard]] millpond::memory_kind kind() const noexcept override { return millpond::memory_kind::pageable; }

 private:
  millpond::result<void*> do_allocate(std::uint64_t bytes, std::uint64_t alignment, millpond::stream_handle) override {
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  }
  millpond::result<void> do_deallocate(void* ptr, std::uint64_t, millpond::stream_handle) noexcept override {
    std::free(ptr);
    return {};
  }
};

double now_ns() { return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

int main() {
  constexpr std::size_t layers = 200;  // an output, kept for one layer, and a temporary each
  constexpr int iterations = 2000;
  host_memory upstream;
  millpond::planned_resource memory(upstream);
  millpond::planned_lane lane = memory.lane(nullptr);
  const auto run = [&] {
    lane.begin(1);
    void* before = lane.allocate(4096);
    std::uint64_t before_bytes = 4096;
    for (std::size_t k = 0; k < layers; ++k) {
      const std::uint64_t bytes = 4096 + 512 * (k % 7);
      void* temporary = lane.allocate(65536);
      void* output = lane.allocate(bytes);
      lane.deallocate(temporary, 65536);
      lane.deallocate(before, before_bytes);
      before = output;
      before_bytes = bytes;
    }
    lane.deallocate(before, before_bytes);
    lane.end();
  };
  run();
  std::vector<double> pair_ns;
  for (int k = 0; k < iterations; ++k) {
    const double start = now_ns();
    run();
    pair_ns.push_back((now_ns() - start) / (2.0 * layers + 1));
  }
  std::sort(pair_ns.begin(), pair_ns.end());
  const millpond::planned_counters counted = lane.counters();
  std::cout << nlohmann::ordered_json{{"name", "planned_resource: an allocation and its free, begin and end of the iteration included"},
                                      {"iterations", iterations},
                                      {"blocks_an_iteration", 2 * layers + 1},
                                      {"pair_ns_p50", pair_ns[pair_ns.size() / 2]},
                                      {"pair_ns_p99", pair_ns[pair_ns.size() * 99 / 100]},
                                      {"served", counted.served},
                                      {"deviations", counted.deviations + counted.late_frees + counted.skipped}}
                   .dump(1)
            << '\n';
}
