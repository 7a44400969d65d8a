// millpond's own pool over device memory.
#include <algorithm>
#include <array>
#include <cstddef>

#include "driver/sim/allocator_paths.hpp"
#include "millpond/pool/pool.hpp"
#include "replay/strategies/makers.hpp"

namespace millpond::replay {
namespace {

// The pool's paths, by the names under which a profile has their measured cost.
struct path {
  const char* name;
  std::uint64_t pool_statistics::* count;
};
constexpr std::array paths{
    path{sim::allocator_path::thread_cache_hit, &pool_statistics::thread_cache_hits},
    path{sim::allocator_path::stream_cache_hit, &pool_statistics::stream_cache_hits},
    path{sim::allocator_path::heap_hit, &pool_statistics::heap_hits},
    path{sim::allocator_path::growth, &pool_statistics::growths},
    path{sim::allocator_path::move, &pool_statistics::stitches},
    path{sim::allocator_path::seal, &pool_statistics::seals},
    path{sim::allocator_path::fence_query, &pool_statistics::fence_queries},
    path{sim::allocator_path::deallocation, &pool_statistics::deallocations},
};

class millpond_pool final : public strategy {
 public:
  result<void> prepare(const strategy_setting& setting) override {
    streams_.assign(setting.streams.begin(), setting.streams.end());
    if (setting.costs.ns) {
      for (std::size_t i = 0; i < paths.size(); ++i) cost_ns_[i] = setting.costs.ns(paths[i].name);
      counts_cost_ = true;
    }
    pool_options options;
    options.clock = setting.clock;
    auto made = pool::create(setting.gpu, options);
    if (!made) return made.error();
    pool_ = std::move(*made);
    return {};
  }
  result<device_address> allocate(std::uint64_t bytes, std::uint16_t stream) override {
    auto answer = pool_->try_allocate(bytes, default_alignment, streams_[stream]);
    if (!answer) return answer.error();
    return reinterpret_cast<device_address>(*answer);
  }
  result<void> use(device_address at, std::uint16_t stream) override {
    return pool_->record_use(reinterpret_cast<void*>(at), streams_[stream]);
  }
  result<void> free(device_address at, std::uint64_t bytes, std::uint16_t stream,
                    std::span<const std::uint16_t>) override {
    return pool_->try_deallocate(reinterpret_cast<void*>(at), bytes, streams_[stream]);
  }
  result<void> finish() override {
    pool_.reset();
    return {};
  }
  // The pool's statistics go over all of its streams: asked for at each of as many operations, that
  // would be quadratic. Where there are many, they are asked for now and then, and what the
  // operations in between cost is what those before them did, set right at the next look.
  double own_ns() const override {
    if (!counts_cost_) return 0;
    const std::size_t every = streams_.size() / exact_up_to_streams;
    if (every <= 1) return counted_ns();
    if (asked_++ % every == 0) {
      const double now = counted_ns();
      const double ahead = now + (now - counted_) - shown_;
      step_ = std::max(0.0, ahead) / static_cast<double>(every);
      counted_ = now;
    }
    return shown_ += step_;
  }

 private:
  static constexpr std::size_t exact_up_to_streams = 64;

  [[nodiscard]] double counted_ns() const {
    const pool_statistics now = pool_->statistics();
    double sum = 0;
    for (std::size_t i = 0; i < paths.size(); ++i) {
      sum += static_cast<double>(now.*paths[i].count) * cost_ns_[i];
    }
    return sum;
  }

  std::shared_ptr<pool> pool_;
  std::vector<stream_handle> streams_;
  std::array<double, paths.size()> cost_ns_{};
  bool counts_cost_ = false;
  mutable std::size_t asked_ = 0;
  // By the last look at the statistics; what was answered since; and how much more at each answer.
  mutable double counted_ = 0, shown_ = 0, step_ = 0;
};

}  // namespace

std::unique_ptr<strategy> make_millpond_pool() {
  return std::make_unique<millpond_pool>();
}

}  // namespace millpond::replay
