// A running program's memory at a moment, and since the moment before: what `millpond top` shows.
// `live_account` takes events as they come; `view` is plain data, which live_text and live_json
// print.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "replay/latency.hpp"
#include "trace/source.hpp"

namespace millpond::report {

inline constexpr std::size_t live_kinds = 5;

struct live_kind {
  std::uint64_t live_bytes = 0, live_blocks = 0, peak_bytes = 0;
  std::uint64_t allocations = 0, frees = 0, allocated_bytes = 0;  // since the view before
};

struct live_call {
  std::string name;         // "cudaMalloc"; "allocate (device)" where the trace does not say
  std::uint64_t calls = 0;  // since the view before
  double p50_ns = 0, p99_ns = 0, max_ns = 0, sum_ns = 0;  // of those
};

struct live_frame {
  std::string symbol, file;
  std::uint32_t line = 0;
};
// "on_device program.h:70 < main server.cu:14": the innermost frame and who called it.
[[nodiscard]] std::string call_site_of(const std::vector<live_frame>& frames);

struct live_site {
  std::string label;  // place_of the frames; where there are none, the call and a doubling of sizes
  std::vector<live_frame> frames;  // the program's innermost, at most 4
  trace::kind of{};
  std::uint64_t live_bytes = 0, live_blocks = 0,
                allocations = 0;  // allocations: since the view before
  double call_ns = 0;             // in them, since the view before
};

struct live_view {
  std::string program, device;
  bool simulated = false;
  std::uint64_t events = 0, new_events = 0, dropped = 0, streams = 0;
  std::uint64_t trace_ns = 0;  // the time of the last event, from the first
  double elapsed_s = 0;        // since the view before; 0: the first view, its counts are from the
                               // beginning, over trace_ns
  std::array<live_kind, live_kinds> kinds;  // by trace::kind
  // Of the kinds that are GPU memory (trace::is_gpu_memory), as `explain` counts its peak.
  std::uint64_t gpu_live_bytes = 0, gpu_peak_bytes = 0;
  std::uint64_t kernels = 0, copies = 0, failed = 0;  // since the view before
  std::vector<live_call> calls;                       // that have times, most time first
  // GPU memory and what is free in it: of the allocator's segments where the trace has them, else
  // gaps between blocks.
  bool segments_known = false;
  std::uint64_t reserved_bytes = 0, free_bytes = 0, free_pieces = 0, largest_free = 0;
  std::vector<live_site> sites;  // the hottest first
  std::uint64_t sites_in_all = 0;
};

enum class site_order : std::uint8_t { bytes, rate, time };

class live_account {
 public:
  // `info` is the reader's; its texts must be there for what the event names.
  void add(const trace::event& at, const trace::trace_info& info);
  // What there is, and what was since the call before; starts counting anew. `elapsed_s` is that
  // time as the caller knows it; the trace's own counts where it is longer.
  [[nodiscard]] live_view view(double elapsed_s, std::size_t most_sites, site_order by);
  [[nodiscard]] std::uint64_t events() const noexcept { return events_; }

 private:
  struct block {
    std::uint64_t bytes = 0;
    std::uint32_t site = 0;
    trace::kind of{};
  };
  struct timed_call {
    replay::latency_histogram recent;
  };
  void allocated(const trace::event& at, const trace::trace_info& info);
  void ended(std::map<std::uint64_t, block>::iterator which);
  void segment_began(std::uint64_t begin, std::uint64_t end);
  void segment_ended(std::uint64_t begin, std::uint64_t end);
  [[nodiscard]] std::uint32_t site_of(const trace::event& at, const trace::trace_info& info);
  void measure_holes(live_view& into) const;

  std::uint64_t events_ = 0, events_before_ = 0, first_ns_ = 0, now_ns_ = 0, before_ns_ = 0;
  std::string program_, device_;
  bool simulated_ = false;
  std::uint64_t dropped_ = 0;
  std::array<live_kind, live_kinds> kinds_;
  std::uint64_t gpu_live_bytes_ = 0, gpu_peak_bytes_ = 0;
  std::uint64_t kernels_ = 0, copies_ = 0, failed_ = 0;
  std::map<std::uint64_t, block> blocks_;            // live, by address
  std::map<std::uint64_t, std::uint64_t> segments_;  // begin -> end, of device memory
  bool segments_known_ = false;
  std::vector<live_site> sites_;
  std::unordered_map<std::uint64_t, std::uint32_t> site_ids_;
  std::unordered_map<std::string, timed_call> calls_;
  std::unordered_map<std::uint64_t, bool> streams_;
};

// `past`: gpu_live_bytes of the views before, oldest first, for a line of how it
// went. At most `width` columns and `height` lines (0: as many as there are). Colours are escapes
// of the terminal.
struct live_text_options {
  std::size_t width = 80, height = 0;
  enum class ink : std::uint8_t { plain, colours } how = ink::plain;
  enum class letters : std::uint8_t { ascii, utf8 } with = letters::ascii;
  std::string title;  // what is watched
  std::string state;  // "recording", "ended with status 0"
};
[[nodiscard]] std::string live_text(const live_view& of, const std::vector<std::uint64_t>& past,
                                    const live_text_options& options);
// One JSON document on one line.
[[nodiscard]] std::string live_json(const live_view& of, const std::string& state);

}  // namespace millpond::report
