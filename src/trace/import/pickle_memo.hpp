// A pickle's memo: what the pickler may refer to again, by index. Picklers number every container
// and text, so a snapshot's memo has several indices an event; 4 bytes each, and pages of which all
// is gone cost nothing.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "trace/import/pickle_value.hpp"

namespace millpond::trace {

class pickle_memo {
 public:
  // One more than the highest index that was set.
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  void set(std::uint64_t index, const pickle_value& value);
  // False where the index was never set.
  [[nodiscard]] bool find(std::uint64_t index, pickle_value& value) const;
  // What was put there will never be asked for; asking gives a value of sort `gone`.
  void drop(std::uint64_t index);
  [[nodiscard]] std::uint64_t memory_bytes() const noexcept {
    return held_pages_ * sizeof(page) + pages_.size() * sizeof(slot) + odd_.size() * 64;
  }

 private:
  using sort = pickle_value::sort;
  static constexpr std::uint64_t page_cells = 4096;
  // The top four bits say what it is, the others which.
  enum tag : std::uint32_t { unset, gone, odd, text, bytes, list, tuple, dict, set_of, reduced_0 };
  using page = std::array<std::uint32_t, page_cells>;
  struct slot {
    std::unique_ptr<page> cells;
    std::uint32_t gone = 0;  // of its cells; where all are there is no page
  };
  void put(std::uint64_t index, std::uint32_t cell);

  std::vector<slot> pages_;
  std::unordered_map<std::uint64_t, pickle_value>
      odd_;  // what fits no cell: numbers, ids of 2^28 and more
  std::uint64_t size_ = 0;
  std::uint64_t held_pages_ = 0;
};

}  // namespace millpond::trace
