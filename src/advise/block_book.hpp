// Every block of a trace with what happened to it, built event by event.
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "trace/address_map.hpp"
#include "trace/event.hpp"
#include "trace/live_index.hpp"

namespace millpond::advise {

inline constexpr std::uint32_t no_index = UINT32_MAX;

// One block. Indexes count the trace's events from 0; kernel numbers count its kernels, copies and
// memsets, which is how time is reported for a block's idleness.
struct block_facts {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t extent = 0;            // copies and memsets reached so far into it
  std::uint32_t allocated = no_index;  // event
  std::uint32_t freed = no_index;      // event; no_index: live at the end
  std::uint32_t first_use = no_index;  // event
  std::uint32_t last_use = no_index;   // event
  std::uint32_t allocated_at = 0;      // kernels before it
  std::uint32_t first_used_at = 0;
  std::uint32_t last_used_at = 0;
  std::uint32_t freed_at = 0;
  std::uint32_t longest_gap = 0;       // kernels between two uses
  std::uint32_t gap_begin = no_index;  // event of the use before it
  std::uint32_t gap_end = no_index;    // and of the one after it
  std::uint32_t stack = 0;             // of the allocation
  std::uint32_t free_stack = 0;
  std::uint32_t site = 0;
  std::uint32_t state = no_index;  // of a live block: its slot among the states
  std::uint32_t call = 0;          // string id: what allocated it
  std::uint16_t device = 0;
  trace::kind of{};
  bool by_kernel = false;     // an argument of a kernel was seen to point into it
  bool in_structure = false;  // only an address inside a larger argument
  bool stored = false;        // its address was copied to the device: kernels may find it there
};

// Blocks that one place allocated: a call stack and a call where stacks were recorded, else a call,
// a kind and a size to an eighth of a doubling.
struct site_facts {
  std::uint32_t stack = 0;
  std::uint32_t call = 0;
  std::uint32_t free_call = 0;
  std::uint32_t free_stack = 0;
  std::uint32_t first_event = no_index;
  std::uint32_t first_free_event = no_index;
  trace::kind of{};
  std::uint16_t device = 0;
  std::uint64_t count = 0, bytes = 0, largest_bytes = 0, smallest_bytes = UINT64_MAX;
  std::uint64_t live = 0, live_bytes = 0;
  std::uint64_t freed_since = 0;        // of its blocks, since it last allocated
  std::uint64_t rounds = 0;             // allocations that came after a free of its own blocks
  std::uint64_t busy_frees = 0;         // frees that found the device busy
  double allocate_ns = 0, free_ns = 0;  // recorded time of the calls
  double slowest_ns = 0;  // of one of its allocations: the first of a kind makes contexts and pools
  std::uint64_t timed_calls = 0;
};

class block_book {
 public:
  enum class free_status : std::uint8_t { freed, already_freed, inside, unknown };
  struct free_answer {
    free_status status = free_status::unknown;
    std::uint32_t block = no_index;  // the block that it is about, where one is known
  };

  // The new block; live blocks that it lies over are taken as freed unseen.
  std::uint32_t allocate(const trace::event& of, std::uint32_t index);
  // What a free of this address would end, without ending it.
  [[nodiscard]] free_answer look_up_free(std::uint64_t address) const;
  void free(std::uint32_t block, const trace::event& of, std::uint32_t index);
  // The live block that holds the address, or no_index.
  [[nodiscard]] std::uint32_t holding(std::uint64_t address) const noexcept {
    const auto* found = live_.holding(address);
    return found == nullptr ? no_index : static_cast<std::uint32_t>(found->id);
  }
  // The freed block whose memory holds the address and was not allocated again, or no_index.
  [[nodiscard]] std::uint32_t freed_holding(std::uint64_t address) const noexcept {
    const auto* found = freed_.holding(address);
    return found == nullptr ? no_index : static_cast<std::uint32_t>(found->id);
  }
  void used(std::uint32_t block, std::uint32_t index);
  void kernel() noexcept { ++kernels_; }

  [[nodiscard]] std::deque<block_facts>& blocks() noexcept { return blocks_; }
  [[nodiscard]] const std::deque<block_facts>& blocks() const noexcept { return blocks_; }
  [[nodiscard]] std::vector<site_facts>& sites() noexcept { return sites_; }
  [[nodiscard]] std::uint32_t kernels() const noexcept { return kernels_; }
  [[nodiscard]] std::uint64_t live_bytes() const noexcept { return live_bytes_; }
  [[nodiscard]] std::uint64_t live_blocks() const noexcept { return live_.size(); }
  [[nodiscard]] std::uint64_t peak_bytes() const noexcept { return peak_bytes_; }
  [[nodiscard]] std::uint32_t peak_event() const noexcept { return peak_event_; }

 private:
  std::uint32_t site_of(const trace::event& of);
  void end(std::uint32_t block, std::uint32_t index);
  void forget_freed(std::uint64_t begin, std::uint64_t end);

  std::deque<block_facts> blocks_;  // grows without a copy beside it
  std::vector<site_facts> sites_;
  std::unordered_map<std::uint64_t, std::uint32_t> site_index_;
  trace::live_index live_;
  trace::live_index freed_;
  trace::address_map last_block_;
  std::uint64_t live_bytes_ = 0, peak_bytes_ = 0;
  std::uint32_t peak_event_ = 0;
  std::uint32_t kernels_ = 0;
};

}  // namespace millpond::advise
