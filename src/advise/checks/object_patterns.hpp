// The object-level patterns of the DrGPUM paper, each with the peak that is left without it:
// unused, too large, early, late, idle, redundant.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "advise/analysis.hpp"

namespace millpond::advise {

class object_patterns {
 public:
  explicit object_patterns(analysis& of) : of_(of) {}
  // After the last event. Nothing where the trace does not say what kernels were given. Each device
  // by itself: its peak is its own.
  void finish();

 private:
  // When a block takes memory, in events: at most two stretches.
  struct stretches {
    std::uint32_t begin = 0, end = 0;
    std::uint32_t hole_begin = 0, hole_end = 0;  // empty where equal
    std::uint64_t bytes = 0;
  };
  using change = std::function<stretches(std::uint32_t id, const block_facts& of)>;
  [[nodiscard]] stretches as_it_is(const block_facts& of) const;
  void look_at(std::uint16_t device);
  [[nodiscard]] std::uint64_t peak_with(const std::vector<bool>& changed, const change& how);
  // The most bytes of these blocks that are live at one time, of each only what `wasted` says.
  [[nodiscard]] std::uint64_t most_at_once(
      const std::vector<std::uint32_t>& blocks,
      const std::function<std::uint64_t(const block_facts&)>& wasted);
  // Whether all work on the first block is over before work on the second begins.
  [[nodiscard]] bool one_after_another(const block_facts& first, const block_facts& second) const;
  [[nodiscard]] bool worth(std::uint64_t after) const;
  [[nodiscard]] bool analysed_kind(const block_facts& of) const;
  [[nodiscard]] bool life_is_known(const block_facts& of) const;

  void unused();
  void too_large();
  void redundant();
  // One of early, late and idle: the places whose blocks save most, each with its own peak.
  void timed(flaw which, const std::function<bool(const block_facts&)>& holds, const change& how);
  void report(flaw which, const std::vector<std::uint32_t>& blocks, std::uint64_t after);

  analysis& of_;
  std::uint16_t device_ = 0;  // that is looked at
  std::uint64_t peak_ = 0;    // of it
  std::uint32_t peak_event_ = 0;
  bool ended_ = false;                 // the program ended by itself
  std::vector<bool> shared_;           // blocks that redundant() spoke of
  std::vector<std::int64_t> changes_;  // of live bytes, an event
};

}  // namespace millpond::advise
