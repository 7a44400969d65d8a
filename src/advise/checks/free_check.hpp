// Frees that are wrong: through another kind's call, a second time, of what is no block.
#pragma once
#include <vector>

#include "advise/analysis.hpp"

namespace millpond::advise {

class free_check {
 public:
  explicit free_check(analysis& of) : of_(of) {}
  // The block that this free ends, or no_index where it ends none.
  std::uint32_t freed(const trace::event& at, std::uint32_t index);
  // After the last event: what was refused and freed rightly later is no memory lost.
  void finish();
  [[nodiscard]] std::uint64_t unknown_frees() const noexcept { return unknown_; }

 private:
  void wrong_kind(const trace::event& at, std::uint32_t index, std::uint32_t id);
  void second_time(const trace::event& at, std::uint32_t index, const block_facts& block);
  void foreign(const trace::event& at, std::uint32_t index, const block_book::free_answer& answer);

  analysis& of_;
  struct wrong_free {
    std::uint64_t place, other_place;
    std::uint32_t event, block;
  };
  std::vector<wrong_free> wrong_;  // through another kind's call
  std::uint64_t unknown_ = 0;      // of blocks that may be older than the recording
};

}  // namespace millpond::advise
