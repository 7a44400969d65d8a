// A trace as a workload: which allocation each free ends, how long each block lives, on which
// streams it is used, and how many bytes are live at most. It is also the trace's validation: a
// double free, a free of something unknown, two live blocks on the same bytes are found and named.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "millpond/base/result.hpp"
#include "trace/address_map.hpp"
#include "trace/event.hpp"
#include "trace/live_index.hpp"
#include "trace/source.hpp"

namespace millpond::trace {

inline constexpr std::uint64_t never = UINT64_MAX;

// One block of the workload. An event index counts the events given to the builder, from 0: the
// place in trace_data::events.
struct block {
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;  // a name, reused after the block's death
  std::uint64_t allocate_event = 0;
  std::uint64_t free_event = never;  // never: live at the end
  std::uint64_t stream = 0;          // that it was allocated on
  std::uint64_t free_stream = 0;     // that it was freed on; meaningless while free_event is never
  std::uint32_t streams_first = 0;   // other streams that used it: lifetimes::streams_of
  std::uint32_t streams_count = 0;
  std::uint32_t stack = 0;  // of the allocation
  std::uint16_t device = 0;
  kind of{};
  // The recorded allocator kept the block back after its free because other streams still used it;
  // which ones, such a recording does not say. Known by a free_complete that is not right after the
  // free.
  bool deferred = false;
};

// What was wrong, by sort; all 0 in a clean trace.
struct trace_faults {
  std::uint64_t double_frees = 0;
  std::uint64_t unknown_frees = 0;  // of an address never allocated, or inside a live block
  std::uint64_t overlaps = 0;       // an allocation over a live block
  std::uint64_t wrong_sizes = 0;    // a free that names another size than the allocation did
  std::uint64_t overflows = 0;      // a block that passes the end of the address space
  [[nodiscard]] std::uint64_t total() const noexcept {
    return double_frees + unknown_frees + overlaps + wrong_sizes + overflows;
  }
};

struct lifetimes {
  std::vector<block> blocks;  // in the order of their allocations
  std::vector<std::uint64_t> streams;
  std::uint64_t events = 0;  // all that were given
  std::uint64_t peak_live_bytes = 0;
  std::uint64_t peak_event = 0;  // the allocation that first reached the peak
  std::uint64_t peak_live_blocks = 0;
  std::uint64_t end_live_bytes = 0;
  std::uint64_t end_live_blocks = 0;
  std::uint64_t allocated_bytes = 0;  // the sum over all blocks
  std::uint64_t largest_bytes = 0;
  std::uint64_t frees = 0;
  std::uint64_t failed_allocations = 0;  // recorded with a status that is not 0: no block
  std::uint64_t unknown_uses = 0;        // `use` of an address in no live block
  std::uint64_t deferred_frees = 0;
  std::uint64_t peak_live_by_kind[5] = {};  // each kind's own peak, by `kind`
  trace_faults faults;
  std::vector<std::string> warnings;  // tolerant: the first faults in words

  // Streams other than block.stream that used the block by `use`, copy, memset or prefetch.
  [[nodiscard]] std::span<const std::uint64_t> streams_of(const block& of) const noexcept {
    return std::span(streams).subspan(of.streams_first, of.streams_count);
  }
};

enum class strictness : std::uint8_t {
  strict,    // the first fault is an error
  tolerant,  // faulty events are left out, counted and warned of
};

struct lifetime_options {
  strictness on_fault = strictness::strict;
  std::uint64_t most_warnings = 20;
};

// Builds lifetimes event by event, so that a trace need not be in memory. 10 million events take
// some 2 s and 0.5 GiB. Not thread-safe.
class lifetime_builder {
 public:
  explicit lifetime_builder(std::string trace_name, lifetime_options options = {});
  // bad_input in strict mode only; it names the trace, the events by index, and the addresses.
  result<void> add(const event& next);
  // Only once; the builder is spent.
  lifetimes finish();

 private:
  struct use_node {
    std::uint64_t stream;
    std::uint32_t next;
  };
  using block_and_stream = std::pair<std::uint64_t, std::uint64_t>;
  struct hash_of_use {
    std::size_t operator()(const block_and_stream& of) const noexcept {
      return static_cast<std::size_t>((of.first * 0x9e3779b97f4a7c15u) ^
                                      (of.second * 0xc2b2ae3d27d4eb4fu));
    }
  };
  result<void> allocated(const event& next);
  result<void> freed(const event& next);
  void completed(const event& next);
  bool used(std::uint64_t address, std::uint64_t stream);
  result<void> fault(std::uint64_t& counter, std::string text);
  [[nodiscard]] std::string name_block(std::uint64_t id) const;

  std::string name_;
  lifetime_options options_;
  lifetimes made_;
  live_index live_;
  address_map last_block_;  // by address: the last block that began there
  std::vector<use_node> uses_;
  std::unordered_set<block_and_stream, hash_of_use> many_uses_;  // of blocks with many streams
  std::uint64_t live_bytes_ = 0;
  std::uint64_t live_by_kind_[5] = {};
  std::uint64_t last_freed_ = never;  // the block that the event before this one freed
};

[[nodiscard]] result<lifetimes> find_lifetimes(std::span<const event> events,
                                               std::string trace_name = "trace",
                                               const lifetime_options& options = {});
[[nodiscard]] result<lifetimes> find_lifetimes(const trace_data& trace,
                                               const lifetime_options& options = {});

}  // namespace millpond::trace
