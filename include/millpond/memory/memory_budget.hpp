// A budget of GPU memory that several pools and buffers of one device share.
//
// Physical memory is taken from the budget before the driver is asked for it. Past the hard limit
// nothing is handed out; past the soft limit whoever grows first takes back what it and the others
// keep unused, and grows only where that does not help. A member that lacks memory has the others
// give back what they do not use (pool::trim), so that one pool's idle memory never starves
// another.
#pragma once
#include "millpond/detail/language.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace millpond {

struct budget_limits {
  std::uint64_t hard_bytes = 0;  // 0: none but the device's
  std::uint64_t soft_bytes = 0;  // 0: none
};

class memory_budget : public std::enable_shared_from_this<memory_budget> {
 public:
  class member;
  // Gives back up to about so many bytes that are not in use, and answers how many it did. Called
  // on the thread that lacks memory, with no lock of the library held; never waits for the GPU.
  using reclaimer = std::function<std::uint64_t(std::uint64_t bytes)>;

  [[nodiscard]] static std::shared_ptr<memory_budget> create(budget_limits limits);

  // All members of the class are thread-safe.
  [[nodiscard]] budget_limits limits() const noexcept;
  // A hard limit below what is in use takes nothing away: nothing more is handed out until the sum
  // is below it.
  void set_limits(budget_limits limits) noexcept;
  [[nodiscard]] std::uint64_t used_bytes() const noexcept {
    return used_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t peak_bytes() const noexcept {
    return peak_.load(std::memory_order_relaxed);
  }
  // Of used_bytes(), what members that are gone have left to the driver: it refused to take that
  // memory back, and has it until its context ends.
  [[nodiscard]] std::uint64_t left_bytes() const noexcept {
    return left_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t refusals() const noexcept {
    return refusals_.load(std::memory_order_relaxed);
  }
  // Bytes that the hard limit still allows; the largest number where there is none.
  [[nodiscard]] std::uint64_t headroom() const noexcept;
  // Whether so many bytes more would pass the soft limit.
  [[nodiscard]] bool passes_soft(std::uint64_t more) const noexcept;

  // For who takes physical memory: pools and growable buffers join by themselves. `name` appears in
  // reports. `give_back` may be empty. The member leaves when the answer is destroyed; its bytes
  // are given back then, but for those that it left to the driver.
  [[nodiscard]] std::shared_ptr<member> join(std::string name, reclaimer give_back);
  // Asks the members but `except` until so many bytes are given back; answers how many were.
  std::uint64_t reclaim(std::uint64_t bytes, const member* except);

  struct share {
    std::string name = {};
    std::uint64_t bytes = 0;
  };
  [[nodiscard]] std::vector<share> shares() const;

 private:
  explicit memory_budget(budget_limits limits) noexcept;
  bool take(std::uint64_t bytes) noexcept;
  void give(std::uint64_t bytes) noexcept;

  std::atomic<std::uint64_t> hard_, soft_;  // bytes; the largest number where there is no limit
  // Sums alone: they publish nothing.
  std::atomic<std::uint64_t> used_{0}, peak_{0}, refusals_{0}, left_{0};
  mutable std::mutex mutex_;  // a leaf: the list of members
  std::vector<std::weak_ptr<member>> members_;
};

// One taker's part of a budget.
class memory_budget::member {
 public:
  member(std::shared_ptr<memory_budget> of, std::string name, reclaimer give_back);
  ~member();
  member(const member&) = delete;
  member& operator=(const member&) = delete;

  // False, and nothing taken, where the hard limit would be passed.
  [[nodiscard]] bool try_take(std::uint64_t bytes) noexcept;
  void give(std::uint64_t bytes) noexcept;
  // try_take, and where the hard limit refuses, or the soft limit would be passed, the others are
  // asked to give back first. For members that hold no lock of the library's.
  [[nodiscard]] bool take_from_all(std::uint64_t bytes);
  // For the end: the driver has refused to take so many of its bytes back. They are the member's no
  // more and stay counted, since nobody else can have them.
  void leave_to_driver(std::uint64_t bytes) noexcept;
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    return bytes_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] memory_budget& budget() const noexcept { return *of_; }

 private:
  friend class memory_budget;
  const std::shared_ptr<memory_budget> of_;
  const std::string name_;
  const reclaimer give_back_;
  std::atomic<std::uint64_t> bytes_{0};
};

}  // namespace millpond
