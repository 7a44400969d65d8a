// Small workloads made by hand or from a seed, for the tests of replay.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/random.hpp"
#include "replay/workload.hpp"

namespace millpond::replay {

class workload_writer {
 public:
  explicit workload_writer(std::uint16_t streams) {
    made_.name = "made";
    for (std::uint16_t i = 0; i < streams; ++i) made_.streams.push_back(i);
  }
  std::uint32_t allocate(std::uint64_t bytes, std::uint16_t stream) {
    const auto id = static_cast<std::uint32_t>(made_.blocks.size());
    made_.blocks.push_back({bytes, made_.ops.size(), stream});
    add(op_kind::allocate, stream, id);
    ++made_.allocations;
    live_ += bytes;
    made_.peak_live_bytes = std::max(made_.peak_live_bytes, live_);
    return id;
  }
  void free(std::uint32_t id) { free(id, made_.blocks[id].stream); }
  void free(std::uint32_t id, std::uint16_t stream) {
    add(op_kind::free, stream, id);
    ++made_.frees;
    live_ -= made_.blocks[id].bytes;
  }
  void use(std::uint32_t id, std::uint16_t stream) { add(op_kind::use, stream, id); }
  void kernel(std::uint32_t id) { add(op_kind::kernel, made_.blocks[id].stream, id); }
  void synchronize(std::uint16_t stream) { add(op_kind::synchronize_stream, stream, no_block); }
  void copy_in(std::uint32_t id) {
    add(op_kind::copy_in, made_.blocks[id].stream, id).amount = made_.blocks[id].bytes;
    made_.copied_bytes += made_.blocks[id].bytes;
    made_.largest_copy_bytes = std::max(made_.largest_copy_bytes, made_.blocks[id].bytes);
  }
  [[nodiscard]] std::uint64_t live() const noexcept { return live_; }
  [[nodiscard]] std::uint64_t bytes_of(std::uint32_t id) const { return made_.blocks[id].bytes; }
  workload finish() {
    made_.events = made_.ops.size();
    made_.never_freed = made_.allocations - made_.frees;
    return made_;
  }

 private:
  op& add(op_kind what, std::uint16_t stream, std::uint32_t block) {
    op& next = made_.ops.emplace_back();
    next.what = what;
    next.stream = stream;
    next.block = block;
    return next;
  }
  workload made_;
  std::uint64_t live_ = 0;
};

// Allocations and frees in random order on several streams, frees on other streams than the
// block's, uses by others, synchronises; some blocks live to the end.
inline workload random_workload(std::uint64_t seed, std::uint16_t streams, int operations) {
  random dice(seed);
  workload_writer to(streams);
  std::vector<std::uint32_t> live;
  for (int i = 0; i < operations; ++i) {
    const auto stream = static_cast<std::uint16_t>(dice.below(streams));
    const std::uint64_t what = dice.below(100);
    if (live.empty() || what < 45) {
      live.push_back(to.allocate(dice.log_uniform(1, 16 << 20), stream));
      if (streams > 1 && dice.chance(0.2))
        to.use(live.back(), static_cast<std::uint16_t>(dice.below(streams)));
    } else if (what < 90) {
      const std::size_t at = dice.below(live.size());
      if (dice.chance(0.1)) {
        to.free(live[at], stream);
      } else {
        to.free(live[at]);
      }
      live[at] = live.back();
      live.pop_back();
    } else if (what < 95) {
      to.kernel(live[dice.below(live.size())]);
    } else {
      to.synchronize(stream);
    }
  }
  return to.finish();
}

}  // namespace millpond::replay
