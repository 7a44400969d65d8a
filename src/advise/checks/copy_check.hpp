// Copies and memsets: pageable memory in asynchronous copies, pinned memory that copies do not
// need, writes that the next write makes pointless.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>

#include "advise/analysis.hpp"

namespace millpond::advise {

class copy_check {
 public:
  explicit copy_check(analysis& of) : of_(of) {}
  // `by_graph`: a node of a graph, which holds no caller.
  void copied(const trace::event& at, std::uint32_t index, std::uint32_t to, std::uint32_t from,
              bool by_graph);
  void set(const trace::event& at, std::uint32_t index, std::uint32_t block);
  // Something else than a copy or memset touched the block: what was written may have been read.
  void touched(std::uint32_t block) { writes_.erase(block); }
  // So may work of which nobody knows what it does.
  void all_touched() { writes_.clear(); }
  void freed(std::uint32_t block) { writes_.erase(block); }
  void finish();

 private:
  struct write {
    std::uint64_t begin = 0, end = 0;
    std::uint64_t stream = 0;
    std::uint32_t event = no_index;
    std::uint32_t stack = 0;
    bool copy = false;
    double cost_ns = 0;
    bool estimated = true;
  };
  // Bytes of a pinned block that copies went over, as stretches that neither meet nor overlap.
  class stretches {
   public:
    void add(std::uint64_t begin, std::uint64_t end);
    [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

   private:
    std::map<std::uint64_t, std::uint64_t> ends_;  // begin -> end
    std::uint64_t bytes_ = 0;
  };
  void blocking(const trace::event& at, std::uint32_t index);
  void written(const trace::event& at, std::uint32_t index, std::uint32_t block, write now);
  void dead(const write& last, const write& now, std::uint32_t block);
  void judge_blocking(finding& of) const;
  void pinned();

  analysis& of_;
  std::unordered_map<std::uint32_t, write> writes_;      // of live blocks: the last one, unread
  std::unordered_map<std::uint32_t, stretches> copied_;  // of pinned blocks
};

}  // namespace millpond::advise
