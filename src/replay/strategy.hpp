// One way of allocating: how a program would serve a workload's requests. A strategy asks the
// driver that it is given for everything, so that what it costs can be counted.
//
// Stream order is the strategy's as it would be a careful program's: when `free` is called the
// freeing stream is ordered after the block's own stream, but not after the streams in `users`. The
// strategy orders it, or tells its allocator.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millpond/driver/driver.hpp"
#include "replay/workload.hpp"

namespace millpond::replay {

// Host memory that the workload's copies go through.
enum class staging : std::uint8_t { none, pageable, pinned };

// An allocator's own host time, which a simulated clock does not see: count of each path times its
// cost.
struct path_costs {
  std::function<double(std::string_view path)> ns;  // 0 for a path that was never measured
  std::string source;  // the file of the measurement; empty: there is none
};

struct strategy_setting {
  std::shared_ptr<driver> gpu;
  std::span<const stream_handle> streams;  // by the workload's stream index
  const workload* work = nullptr;          // for a strategy that sizes itself from what will come
  path_costs costs;                        // empty on a card: there the clock sees everything
  std::function<std::uint64_t()> clock;
};

class strategy {
 public:
  strategy() = default;
  strategy(const strategy&) = delete;
  strategy& operator=(const strategy&) = delete;
  virtual ~strategy() = default;

  // What the driver pays once in a process for the calls of this strategy is paid here, and not in
  // its account.
  [[nodiscard]] virtual result<void> wake(driver&, stream_handle,
                                          const std::function<std::uint64_t()>&) {
    return {};
  }
  // Before the clock starts.
  [[nodiscard]] virtual result<void> prepare(const strategy_setting& setting) = 0;
  // bytes > 0. Usable by work put on the stream from now on.
  [[nodiscard]] virtual result<device_address> allocate(std::uint64_t bytes,
                                                        std::uint16_t stream) = 0;
  // Work on another stream, ordered after the block's own stream so far, uses the block.
  [[nodiscard]] virtual result<void> use(device_address at, std::uint16_t stream) = 0;
  [[nodiscard]] virtual result<void> free(device_address at, std::uint64_t bytes,
                                          std::uint16_t stream,
                                          std::span<const std::uint16_t> users) = 0;
  // Gives everything back. Waits as it must.
  [[nodiscard]] virtual result<void> finish() = 0;
  // Own host time so far, by the path costs; 0 on a card.
  [[nodiscard]] virtual double own_ns() const { return 0; }
  // What the strategy wants said about itself after a run: "arena of 797 MiB".
  [[nodiscard]] virtual std::vector<std::string> remarks() const { return {}; }
};

// Facts of a strategy and how to make one.
struct strategy_facts {
  const char* name;     // "driver-pool-kept"
  const char* meaning;  // one line
  // Works only where the workload is known beforehand: a yardstick, not a choice for changing
  // requests.
  enum class knowledge : std::uint8_t { none, whole_workload } needs = knowledge::none;
  std::unique_ptr<strategy> (*make)() = nullptr;
};
// cuda-malloc, managed, driver-pool, driver-pool-kept, fixed-arena, millpond-pool.
[[nodiscard]] std::span<const strategy_facts> all_strategies() noexcept;
// nullptr for an unknown name.
[[nodiscard]] const strategy_facts* find_strategy(std::string_view name) noexcept;

// Makes `to` wait for all that `from` has queued now. One event a source stream is enough: a wait
// takes the record that is there when it is called.
class stream_order {
 public:
  [[nodiscard]] result<void> prepare(std::shared_ptr<driver> gpu,
                                     std::span<const stream_handle> streams);
  [[nodiscard]] result<void> order(std::uint16_t from, std::uint16_t to);
  [[nodiscard]] result<void> finish();

 private:
  std::shared_ptr<driver> gpu_;
  std::vector<stream_handle> streams_;
  std::vector<event_handle> events_;  // made when first needed
};

}  // namespace millpond::replay
