// A trace as what a page of charts needs: every block with its life, who asked for it and where it
// lay, and sums over all of it. Plain data; page.hpp writes it out.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "replay/latency.hpp"
#include "trace/source.hpp"

namespace millpond::report {

inline constexpr std::uint64_t lives_on = UINT64_MAX;
inline constexpr std::size_t kind_count = 5;

// Events are numbered from 0 in the order of the trace, times count from the first event.
struct picture_block {
  std::uint64_t begin_event = 0, end_event = lives_on;  // lives_on: never freed
  std::uint64_t begin_ns = 0, end_ns = 0;
  std::uint64_t held_event =
      0;  // the recorded allocator kept it back after its free until here; 0: it did not
  std::uint64_t address = 0, bytes = 0;
  std::uint32_t stream = 0;  // index into picture::streams
  std::uint32_t site = 0;    // index into picture::sites
  trace::kind of{};
};

// Where blocks come from: a call stack and a call, or where no stacks were recorded a call, a kind
// and a doubling of sizes.
struct picture_site {
  std::uint32_t stack = 0;
  std::uint32_t call = 0;  // string id, 0 where not recorded
  std::string label;
  std::uint64_t blocks = 0, bytes = 0;
  std::uint64_t peak_bytes = 0;  // live when the whole trace had most
  double call_ns = 0;            // recorded, in its allocations
};

// Everything that is neither an allocation nor a free of the program.
struct picture_mark {
  std::uint64_t event = 0, time_ns = 0, bytes = 0;
  std::uint32_t stream = 0;  // index into picture::streams
  std::uint32_t text = 0;    // string id of a kernel's or a mark's name, 0 for none
  trace::action what{};
};

// What the recorded allocator had from the driver.
struct picture_segment {
  std::uint64_t begin_event = 0, end_event = lives_on;
  std::uint64_t begin_ns = 0, end_ns = 0;
  std::uint64_t address = 0, bytes = 0;
};

// Addresses that the trace used, with the gaps between them left out: region i is drawn from
// `position` on.
struct picture_region {
  std::uint64_t address = 0, bytes = 0, position = 0;
};

// The moment of a stretch of events at which most was live.
struct picture_bin {
  std::uint64_t first_event = 0, event = 0, time_ns = 0;
  std::uint64_t live_bytes = 0, live_blocks = 0, reserved_bytes = 0;
  std::uint64_t allocations = 0, frees = 0;  // in the stretch
  std::array<std::uint64_t, kind_count> by_kind{};
  std::vector<std::uint64_t> by_stream;  // picture::streams, the last group is all others
  std::vector<std::uint64_t> by_site;    // the first sites, then all others
};

// How what is free is cut up, at one moment.
struct picture_fragmentation {
  std::uint64_t event = 0, time_ns = 0;
  std::uint64_t live_bytes = 0;
  std::uint64_t free_bytes =
      0;  // of what is reserved; between the live blocks of a region where that is not known
  std::uint64_t largest_hole = 0, holes = 0;
};

// Blocks by size and life: doubling `size` of bytes and doubling `life` of nanoseconds, or of
// events where times are unknown.
struct picture_cell {
  std::uint32_t size = 0, life = 0;
  std::uint64_t blocks = 0, bytes = 0;
};

// Events [first, end) of which every one is on the page.
struct picture_window {
  std::uint64_t first = 0, end = 0;
  std::string why;
};

struct picture_call {
  std::string name;
  replay::latency_histogram times;
};

struct picture {
  std::string name, format;
  std::uint64_t events = 0, allocations = 0, frees = 0, failed = 0, unmatched_frees = 0;
  std::uint64_t allocated_bytes = 0, freed_bytes = 0;
  std::uint64_t peak_bytes = 0, peak_event = 0, peak_reserved_bytes = 0;
  std::uint64_t end_bytes = 0, end_blocks = 0;
  std::uint64_t duration_ns = 0;
  bool times_known = false;           // they grow
  std::vector<picture_block> blocks;  // in the order of their allocations
  std::vector<picture_mark> marks;
  std::vector<std::uint64_t> streams;  // the trace's own numbers, most blocks first
  std::vector<picture_site> sites;     // most bytes at the peak first; the last may stand for many
  std::vector<picture_segment> segments;
  std::vector<picture_region> regions;
  std::vector<picture_bin> bins;
  std::vector<picture_fragmentation> fragmentation;
  std::vector<picture_cell> lifetimes;
  std::vector<picture_call> calls;  // durations as recorded, by call
  std::vector<picture_window> windows;
  std::uint64_t events_shown = 0;  // in the windows
};

// A place in a trace as a user writes it: "1200" is an event, "1.5s" and "20ms" are times from the
// start.
struct picture_call_site {
  std::uint64_t value = 0;
  enum class unit : std::uint8_t { event, nanoseconds } in{};
};
[[nodiscard]] std::optional<picture_call_site> parse_call_site(std::string_view text);

struct picture_options {
  std::uint64_t most_events = 2'000'000;  // that are shown one by one
  std::size_t most_sites = 200;
  std::size_t most_bins = 2000;
  std::size_t most_streams = 64;
  std::optional<picture_call_site> from,
      to;  // these events one by one, instead of round the peak and the findings
  std::function<void(std::uint64_t)> progress;
};

// Reads the trace to its end: about 100 bytes a block and 40 a mark. bad_input as the reader's;
// invalid_argument where --from is behind --to or the end. Frees of unknown blocks are counted,
// blocks that lie over live ones end those.
[[nodiscard]] result<picture> read_picture(trace::trace_source& from,
                                           const picture_options& options = {});

// Chooses what is shown one by one: everything, or what from and to say, or windows round the peak
// and round `places` (events).
result<void> choose_windows(picture& of, std::span<const std::uint64_t> call_sites,
                            const picture_options& options = {});

// Bytes live behind event `event`, counted from the blocks.
[[nodiscard]] std::uint64_t live_at(const picture& of, std::uint64_t event);

}  // namespace millpond::report
