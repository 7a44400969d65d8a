// Every block of a trace with what happened to it, built event by event.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "advise/finding.hpp"
#include "trace/address_map.hpp"
#include "trace/event.hpp"
#include "trace/live_index.hpp"

namespace millpond::advise {

inline constexpr std::uint32_t no_index = UINT32_MAX;

// One block. Indexes count the trace's events from 0; kernel numbers count its device's kernels,
// copies and memsets, which is how time is reported for a block's idleness.
struct block_facts {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t extent = 0;            // copies and memsets reached so far into it
  std::uint64_t use_stream = 0;        // that its uses are on
  std::uint64_t last_use_ns = 0;       // host times
  std::uint64_t gap_ns = 0;            // that its longest gap between two uses lasts
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
  float allocate_ns = 0;           // what its allocation cost: recorded, or by its size
  std::uint16_t device = 0;
  trace::kind of{};
  bool on_several_streams = false;  // its uses are
  bool of_graph = false;            // a capture allocated it: each launch makes its own
  bool by_kernel = false;           // an argument of a kernel was seen to point into it
  bool in_structure = false;        // only an address inside a larger argument
  bool stored = false;  // its address was copied to the device: kernels may find it there
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
  std::uint64_t count = 0, bytes = 0, largest_bytes = 0, smallest_bytes = UINT64_MAX;
  std::uint64_t live = 0, live_bytes = 0, most_live = 0;
  std::uint64_t freed_since = 0;    // of its blocks, since it last allocated
  std::uint64_t rounds = 0;         // allocations that came after a free of its own blocks
  std::uint64_t pairs = 0;          // of its blocks, freed by calls
  double pair_ns = 0;               // what these blocks' calls cost: recorded, or by kind and size
  std::uint64_t busy_frees = 0;     // frees that waited for the device's work
  std::uint64_t while_running = 0;  // allocations with kernels or frees since its last one
  std::uint64_t last_activity = 0;
  double recorded_ns = 0;  // of all its calls
  std::uint64_t timed_calls = 0;
  std::uint64_t on_devices = 0;  // a bit a device; of those over 63 the last
  // What a finding says that this place loses, for whoever advises on it.
  double loss_ns = 0, loss_after_ns = 0;
  bool loss_estimated = false;
  flaw loses_by = flaw::allocator_time;  // meaningless where it loses nothing
  void loses(flaw by, double ns, double after_ns, bool estimated);
  // Allocations that a block kept from the place's own frees could have served.
  [[nodiscard]] std::uint64_t again() const noexcept { return count - most_live; }
};

// Memory that kernels are given, on one device.
struct device_sums {
  std::uint64_t live_bytes = 0, live_blocks = 0, peak_bytes = 0;
  std::uint32_t peak_event = 0;
  std::uint32_t kernels = 0;  // and copies and memsets
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
  void used(std::uint32_t block, std::uint32_t index, const trace::event& by);
  // A kernel, copy or memset runs.
  void work(std::uint16_t device) { ++on(device).kernels; }
  // Something other than allocating happens: the program is at work.
  void active() noexcept { ++activity_; }

  [[nodiscard]] std::deque<block_facts>& blocks() noexcept { return blocks_; }
  [[nodiscard]] const std::deque<block_facts>& blocks() const noexcept { return blocks_; }
  [[nodiscard]] std::vector<site_facts>& sites() noexcept { return sites_; }
  // Each device that a block of GPU memory or work was on. Sums over devices mean nothing: what one
  // has free serves no other.
  [[nodiscard]] const std::map<std::uint16_t, device_sums>& devices() const noexcept {
    return devices_;
  }
  [[nodiscard]] const device_sums& on_device(std::uint16_t device) const {
    static const device_sums none;
    const auto found = devices_.find(device);
    return found == devices_.end() ? none : found->second;
  }
  [[nodiscard]] std::uint64_t live_blocks() const noexcept { return live_.size(); }

 private:
  device_sums& on(std::uint16_t device) {
    if (last_ == nullptr || device != last_device_) {
      last_ = &devices_[device];  // a map's values stay where they are
      last_device_ = device;
    }
    return *last_;
  }
  std::uint32_t site_of(const trace::event& of);
  float allocation_cost(const trace::event& of);
  void end(std::uint32_t block, std::uint32_t index);
  void forget_freed(std::uint64_t begin, std::uint64_t end);

  std::deque<block_facts> blocks_;  // grows without a copy beside it
  std::vector<site_facts> sites_;
  std::unordered_map<std::uint64_t, std::uint32_t> site_index_;
  trace::live_index live_;
  trace::live_index freed_;
  trace::address_map last_block_;
  std::map<std::uint16_t, device_sums> devices_;
  device_sums* last_ = nullptr;
  std::uint16_t last_device_ = 0;
  std::uint64_t activity_ = 0;
  bool known_kinds_[5] = {};  // that something was allocated of
};

}  // namespace millpond::advise
