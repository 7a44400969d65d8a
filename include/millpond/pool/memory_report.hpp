// Where a pool's memory is: who keeps each byte that it has reserved, why a request was refused,
// and what was tried. Plain data, with its words and its JSON. docs/how_to/out_of_memory.md reads
// one line by line.
#pragma once
#include "millpond/detail/language.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include "millpond/driver/driver.hpp"

namespace millpond {

// Who keeps bytes from being used by a request.
enum class keeper_kind : std::uint8_t {
  live,          // blocks that the program holds
  cache,         // free blocks that a thread keeps for a stream
  stream_cache,  // free blocks that a stream's caches share
  fence,         // freed on a stream whose fence has not been seen to pass
  dead_stream,   // freed on a stream that is gone: only a fence over the whole context tells
  recorded_use,  // freed, waits for streams that record_use named
  capture_live,  // allocated in a capture and not freed
  graph,         // freed by a capture: its graph's, or its arena's, until that is released
  idle_between,  // free for anyone, in handles that also hold something else: cannot be given back
                 // or moved
  idle_span,     // whole free handles: can be moved or given back
  alignment,     // lost to the alignment of chunks that the driver does not align
};
[[nodiscard]] const char* to_string(keeper_kind kind) noexcept;

struct memory_keeper {
  keeper_kind what = keeper_kind::live;
  std::uint64_t bytes = 0;
  std::uint64_t pieces = 0;         // blocks, or free pieces
  std::uint64_t largest_bytes = 0;  // of the pieces
  std::uint64_t stream_id = 0;      // of a stream's: its identity, 0 where it has none
  std::uint64_t stream_handle = 0;  // the handle by which the pool last knew it
  std::uint64_t capture_id = 0;     // of a capture's; 0: a graph arena's, of no one capture
};

// A handle (a piece of physical memory) that cannot be given back, and the block that holds it
// down.
struct memory_neighbour {
  std::uint64_t address = 0;  // of its primary range
  std::uint64_t handle_bytes = 0;
  std::uint64_t free_bytes = 0;  // idle in it
  std::uint64_t block_address = 0,
                block_bytes = 0;  // the largest block in it that the program holds
};

// One step of the pressure ladder, in the order in which they were taken.
struct ladder_step {
  // "fences", "caches", "unused spans", "other members", "waiting", "callback"
  std::string name = {};
  std::uint64_t times = 0;
  std::uint64_t gained_bytes = 0;  // became free for this request, or went back to the driver
};

struct memory_report {
  std::string pool = {};  // pool_options::name
  memory_kind kind = memory_kind::device;
  // What was refused; 0 where the report was asked for and nothing was.
  std::uint64_t asked_bytes = 0, asked_alignment = 0, asked_stream = 0;
  std::uint64_t live_bytes = 0, live_blocks = 0;
  std::uint64_t reserved_bytes = 0, peak_reserved_bytes = 0, limit_bytes = 0, soft_limit_bytes = 0;
  std::uint64_t largest_bytes =
      0;  // the largest block that the stream could have now without growth
  std::uint64_t asleep_bytes = 0;  // physical memory that is away while the pool sleeps
  // Largest first. Their bytes sum to reserved_bytes, but for what other threads do meanwhile.
  std::vector<memory_keeper> keepers = {};
  // those that hold down the most idle bytes, at most 8
  std::vector<memory_neighbour> neighbours = {};
  std::vector<ladder_step> ladder = {};
  struct budget_share {
    std::string name = {};
    std::uint64_t bytes = 0;
  };
  std::uint64_t budget_hard_bytes = 0, budget_soft_bytes = 0,
                budget_used_bytes = 0;  // 0: no budget
  std::vector<budget_share> budget_shares = {};
  std::uint64_t device_free_bytes = 0, device_total_bytes = 0;  // 0 where the driver did not say
  std::string last_failure = {};           // why the driver, the limit or the budget gave no more
  std::string fence_failure = {};          // why a fence could not be put or asked
  std::string reason = {};                 // one sentence: what stands in the way
  std::vector<std::string> remedies = {};  // what to try, the most promising first
};

// For people: a screen at most.
[[nodiscard]] std::string to_text(const memory_report& report);
// For programs: one JSON object with the names of the fields above, bytes as numbers, addresses and
// handles as "0x...".
[[nodiscard]] std::string to_json(const memory_report& report);

}  // namespace millpond
