// The driver's side of managed memory: ranges, their blocks, and what is done to serve a fault, a
// prefetch or an advice. It keeps no clock: each call is given the time and answers what the
// work costs.
#pragma once
#include <cstdint>
#include <map>
#include <queue>
#include <vector>

#include "driver/sim/pages/block.hpp"

namespace millpond::sim::pages {

[[nodiscard]] constexpr bool reads(access_kind kind) noexcept {
  return kind != access_kind::write;
}
[[nodiscard]] constexpr bool writes(access_kind kind) noexcept {
  return kind != access_kind::read;
}

// Everything that has been done, added up.
struct page_counts {
  std::uint64_t faults = 0;         // of the GPU, after duplicates are merged
  std::uint64_t merged_faults = 0;  // duplicates
  std::uint64_t batches = 0;
  std::uint64_t block_services = 0;
  std::uint64_t host_faults = 0;  // of the CPU, each served alone
  std::uint64_t bytes_to_device = 0, bytes_to_host = 0;
  std::uint64_t populated_bytes = 0;   // first touched on the device
  std::uint64_t remote_bytes = 0;      // touched by the GPU over the link
  std::uint64_t remote_mappings = 0;   // pages mapped where they are
  std::uint64_t duplicated_bytes = 0;  // copied for reading, the original stays
  std::uint64_t collapses = 0;         // duplicated pages written
  std::uint64_t evictions = 0, evicted_bytes = 0;
  std::uint64_t throttles = 0, thrash_pins = 0;
  std::uint64_t counter_moves = 0;  // blocks moved by their access counter
};

// How the device sees a page.
enum class page_state : std::uint8_t { fault, remote, local };

class space {
 public:
  struct options {
    std::uint64_t device_bytes = 0;  // for managed pages; 0: no limit
    enum class counters : std::uint8_t { only_count, move };
    counters access_counters = counters::only_count;
  };
  explicit space(const page_costs& costs) noexcept : space(costs, options{}) {}
  space(const page_costs& costs, options chosen) noexcept : costs_(costs), options_(chosen) {}

  void add(std::uint64_t address, std::uint64_t bytes);
  void remove(std::uint64_t address);
  [[nodiscard]] bool empty() const noexcept { return ranges_.empty(); }
  // The blocks that [address, address + bytes) touches: visit(block&, first page, last page, all
  // blocks of the range).
  template <class Visitor>
  void visit(std::uint64_t address, std::uint64_t bytes, Visitor&& visitor);
  [[nodiscard]] block* find(std::uint64_t address, unsigned& page, std::uint64_t& blocks_of_range);

  // cudaMemAdvise. Acts on every block that the range touches.
  void advise(std::uint64_t address, std::uint64_t bytes, managed_advice advice,
              memory_location location);

  // The device has touched a block.
  void note_use(block& b) {
    b.used = ++clock_;
    if (options_.device_bytes != 0) uses_.push({b.used, &b});
  }
  // Whether the device can make this access without a fault.
  [[nodiscard]] page_state look(const block& b, unsigned page, access_kind kind) const noexcept;
  // Whether the kernel that runs goes through whole pages: then it faults again on those that it
  // waits for.
  enum class loads : std::uint8_t { of_bytes, of_whole_pages };
  void set_loads(loads what) noexcept { loads_ = what; }
  // Serves the faults of one block in one batch: `entries` of them, on the pages of `faulted`.
  // Nanoseconds.
  double serve(block& b, std::uint64_t blocks_of_range, const page_mask& faulted,
               std::uint64_t entries, access_kind kind, double now_ns);
  // The textbook's fault: exactly these pages move, with no growth. Nanoseconds of the copy.
  double move_exactly(block& b, const page_mask& wanted) {
    note_use(b);
    return bring_to_device(b, wanted, keep::nothing);
  }
  // Before a kernel: pins that have run out end.
  void release_pins(double now_ns);
  // The device has touched a page over the link; nanoseconds where its counter moves the block.
  double count_remote(block& b, std::uint64_t touches);

  // A kernel that streams over a range, as one step: what machine.hpp does fault by fault, with the
  // same costs. Nanoseconds that it waits for pages, and in remote_bytes what it must reach over
  // the link.
  double stream(std::uint64_t address, std::uint64_t bytes, access_kind kind, double now_ns,
                std::uint64_t& remote_bytes);
  // The CPU touches every page of a range in order. Nanoseconds beyond the touches themselves.
  double touch_by_host(std::uint64_t address, std::uint64_t bytes, access_kind kind, double now_ns);
  // cudaMemPrefetchAsync.
  double prefetch(std::uint64_t address, std::uint64_t bytes, memory_location to, double now_ns);

  [[nodiscard]] std::uint64_t resident(std::uint64_t address, std::uint64_t bytes);
  [[nodiscard]] const page_counts& counts() const noexcept { return counts_; }
  page_counts& counts() noexcept { return counts_; }
  void reset_counts() noexcept { counts_ = {}; }

 private:
  struct range {
    std::uint64_t bytes = 0;
    std::vector<block> blocks;
  };
  enum class keep : std::uint8_t { nothing, original };
  double bring_to_device(block& b, const page_mask& wanted, keep what);
  double bring_to_host(block& b, const page_mask& wanted, keep what);
  double make_room(block& wanting);
  double collapse(block& b, const page_mask& written, std::uint64_t blocks_of_range);
  void map_remotely(block& b, const page_mask& pages);
  double ask_for(block& b, const page_mask& faulted, side by, double now_ns, page_mask& stay);
  double host_fault(block& b, unsigned page, access_kind kind, double now_ns);

  const page_costs& costs_;
  options options_;
  std::map<std::uint64_t, range> ranges_;
  page_counts counts_;
  loads loads_ = loads::of_bytes;
  bool has_pins_ = false;
  std::uint64_t chunks_ = 0;  // blocks with pages on the device
  std::uint64_t clock_ = 0;   // of use, for eviction
  // Uses, the oldest on top; an entry counts while its block has not been used since. Kept only
  // with a limit.
  struct use_entry {
    std::uint64_t at = 0;
    block* which = nullptr;
    bool operator<(const use_entry& other) const noexcept { return at > other.at; }
  };
  std::priority_queue<use_entry> uses_;
};

template <class Visitor>
void space::visit(std::uint64_t address, std::uint64_t bytes, Visitor&& visitor) {
  if (bytes == 0) return;
  auto it = ranges_.upper_bound(address);
  if (it != ranges_.begin()) --it;
  for (; it != ranges_.end() && it->first < address + bytes; ++it) {
    range& r = it->second;
    if (address >= it->first + r.bytes) continue;
    const std::uint64_t begin = (address > it->first ? address - it->first : 0) / base_page_bytes;
    const std::uint64_t end_bytes =
        address + bytes - it->first < r.bytes ? address + bytes - it->first : r.bytes;
    const std::uint64_t end = (end_bytes + base_page_bytes - 1) / base_page_bytes;
    for (std::uint64_t page = begin; page < end;) {
      const std::uint64_t index = page / pages_a_block;
      const std::uint64_t stop =
          (index + 1) * pages_a_block < end ? (index + 1) * pages_a_block : end;
      visitor(r.blocks[index], static_cast<unsigned>(page - index * pages_a_block),
              static_cast<unsigned>(stop - index * pages_a_block), r.blocks.size());
      page = stop;
    }
  }
}

}  // namespace millpond::sim::pages
