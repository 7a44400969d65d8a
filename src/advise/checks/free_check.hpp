// Frees that are wrong: through another kind's call, a second time, of what is no block.
#pragma once
#include "advise/analysis.hpp"

namespace millpond::advise {

class free_check {
 public:
  explicit free_check(analysis& of) : of_(of) {}
  // The block that this free ends, or no_index where it ends none.
  std::uint32_t freed(const trace::event& at, std::uint32_t index);
  [[nodiscard]] std::uint64_t unknown_frees() const noexcept { return unknown_; }

 private:
  void wrong_kind(const trace::event& at, std::uint32_t index, const block_facts& block);
  void second_time(const trace::event& at, std::uint32_t index, const block_facts& block);
  void foreign(const trace::event& at, std::uint32_t index, const block_book::free_answer& answer);

  analysis& of_;
  std::uint64_t unknown_ = 0;  // of blocks that may be older than the recording
};

}  // namespace millpond::advise
