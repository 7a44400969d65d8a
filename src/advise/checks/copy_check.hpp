// Copies and memsets: pageable memory in asynchronous copies, pinned memory that copies do not
// need, writes that the next write makes pointless.
#pragma once
#include <cstdint>
#include <string>
#include <unordered_map>

#include "advise/analysis.hpp"

namespace millpond::advise {

class copy_check {
 public:
  explicit copy_check(analysis& of) : of_(of) {}
  void copied(const trace::event& at, std::uint32_t index, std::uint32_t to, std::uint32_t from);
  void set(const trace::event& at, std::uint32_t index, std::uint32_t block);
  // Something else than a copy or memset touched the block: what was written may have been read.
  void touched(std::uint32_t block) { writes_.erase(block); }
  void allocated(const trace::event& at);
  void freed(std::uint32_t block);
  void synchronised();
  void finish();

 private:
  struct write {
    std::uint64_t begin = 0, end = 0;
    std::uint64_t stream = 0;
    std::uint32_t event = no_index;
    std::uint32_t stack = 0;
    bool copy = false;
  };
  void written(const trace::event& at, std::uint32_t index, std::uint32_t block, bool copy);

  analysis& of_;
  std::unordered_map<std::uint32_t, write> writes_;  // of live blocks: the last one, unread
  std::uint64_t pinned_live_ = 0, pinned_peak_ = 0, largest_pinned_ = 0;
  std::uint32_t pinned_peak_event_ = no_index, largest_pinned_stack_ = 0, largest_pinned_call_ = 0;
  std::uint64_t in_flight_ = 0,
                most_in_flight_ = 0;  // pinned bytes copied since the host last waited
  std::uint64_t pinned_by_kernels_ = 0;
};

}  // namespace millpond::advise
