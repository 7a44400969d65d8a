// The driver's own stream-ordered pool, with the default release threshold (memory goes back at
// every synchronise) or keeping all that it ever took.
#include <fmt/format.h>

#include <limits>

#include "millpond/base/units.hpp"
#include "replay/strategies/makers.hpp"

namespace millpond::replay {
namespace {

class driver_pool final : public strategy {
 public:
  explicit driver_pool(std::uint64_t threshold) : threshold_(threshold) {}

  // The first allocation from any driver pool takes the driver some 7 ms once in a process: which
  // strategy comes first must not decide who pays. A pool of its own is asked.
  result<void> wake(driver& gpu, stream_handle stream,
                    const std::function<std::uint64_t()>& clock) override {
    pool_handle scratch = nullptr;
    device_address at = 0;
    const std::uint64_t before = clock();
    call_result answer = gpu.pool_create(&scratch, memory_location::device, 0);
    if (answer) {
      answer = gpu.pool_allocate(&at, 1, scratch, stream);
      if (answer) answer = gpu.pool_free(at, stream);
      const call_result done = gpu.stream_synchronize(stream);
      if (answer) answer = done;
      const call_result gone = gpu.pool_destroy(scratch);
      if (answer) answer = gone;
    }
    if (!answer) return to_error(answer, "waking the driver's pools");
    waking_ns_ = static_cast<double>(clock() - before);
    return {};
  }
  result<void> prepare(const strategy_setting& setting) override {
    gpu_ = setting.gpu;
    streams_.assign(setting.streams.begin(), setting.streams.end());
    if (auto done = order_.prepare(gpu_, setting.streams); !done) return done;
    if (const auto made = gpu_->pool_create(&pool_, memory_location::device, 0); !made) {
      return to_error(made, "making a driver pool");
    }
    if (const auto set = gpu_->pool_set_release_threshold(pool_, threshold_); !set) {
      return to_error(set, "setting the driver pool's release threshold");
    }
    return {};
  }
  result<device_address> allocate(std::uint64_t bytes, std::uint16_t stream) override {
    device_address at = 0;
    const call_result answer = gpu_->pool_allocate(&at, bytes, pool_, streams_[stream]);
    if (!answer) return to_error(answer, "allocating " + std::to_string(bytes) + " bytes");
    return at;
  }
  result<void> use(device_address, std::uint16_t) override { return {}; }
  // The driver orders a free after its stream alone: the other users are for us to order.
  result<void> free(device_address at, std::uint64_t, std::uint16_t stream,
                    std::span<const std::uint16_t> users) override {
    for (const std::uint16_t user : users) {
      if (auto done = order_.order(user, stream); !done) return done;
    }
    const call_result answer = gpu_->pool_free(at, streams_[stream]);
    if (!answer) return to_error(answer, "freeing a block");
    return {};
  }
  std::vector<std::string> remarks() const override {
    if (waking_ns_ < 1e6) return {};
    return {fmt::format(
        "driver pools: the process's first allocation from one took {} before the measured time",
        format_duration(waking_ns_))};
  }
  result<void> finish() override {
    auto answer = order_.finish();
    if (pool_ != nullptr) {
      if (const auto done = gpu_->pool_destroy(pool_); !done)
        answer = to_error(done, "destroying a driver pool");
      pool_ = nullptr;
    }
    return answer;
  }

 private:
  std::uint64_t threshold_;
  double waking_ns_ = 0;
  std::shared_ptr<driver> gpu_;
  std::vector<stream_handle> streams_;
  stream_order order_;
  pool_handle pool_ = nullptr;
};

}  // namespace

std::unique_ptr<strategy> make_driver_pool() {
  return std::make_unique<driver_pool>(0);
}
std::unique_ptr<strategy> make_driver_pool_kept() {
  return std::make_unique<driver_pool>(std::numeric_limits<std::uint64_t>::max());
}

}  // namespace millpond::replay
