// The checker: it sees what an allocator hands out and takes back, and what the device is asked
// to do, it finds the reuse, access or free that stream order does not allow. It judges by order
// alone, never by when things happened to run, so a race is found on the first run that contains
// it.
//
// Everything is kept by physical range, so that two addresses of one memory are one memory.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "driver/sim/clocks.hpp"
#include "driver/sim/interval_map.hpp"
#include "driver/sim/memory.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace millpond::sim {

// The stream that a call is about, as messages name it.
struct stream_name {
  std::uint64_t id = 0;       // cuStreamGetId's
  std::uint64_t capture = 0;  // the capture that it is in, or 0
};

class checker {
 public:
  checker(const simulated_gpu_options& options, memory& of, order_book& order)
      : options_(options), memory_(of), order_(order) {}

  // --- What the harness tells ---
  void note_allocate(std::uint64_t at, std::uint64_t bytes, const timeline& line,
                     stream_name stream, std::string_view call_site, std::uint64_t now_ns);
  void note_free(std::uint64_t at, std::uint64_t bytes, const timeline& line, stream_name stream,
                 std::string_view call_site, std::uint64_t now_ns);
  void note_use(std::uint64_t at, const timeline& line, stream_name stream,
                std::string_view call_site, std::uint64_t now_ns);
  void share_captures(std::uint64_t one, std::uint64_t other);

  // --- What the driver sees ---
  struct access {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    access_kind kind = access_kind::read;
    const std::vector<piece>* pieces = nullptr;
  };
  // One operation's access, as it is queued: `work` is its own tick on `line`.
  void check_access(const access& a, const timeline& line, point work, stream_name stream,
                    std::string_view what, std::uint64_t now_ns);
  // All ranges of one kernel together: aliases.
  void check_aliases(const std::vector<std::vector<piece>>& ranges, std::string_view what,
                     std::uint64_t now_ns);
  // A mapping or allocation is about to disappear from these addresses.
  void check_removal(std::uint64_t at, const region& r, std::string_view call, bool waited,
                     std::uint64_t now_ns);
  void wrong_kind_free(std::uint64_t at, const region& r, std::string_view call,
                       std::uint64_t now_ns);
  void pollution(std::string_view call, std::uint64_t capture, std::uint64_t now_ns);
  void forbidden(std::string_view call, std::uint64_t capture, std::uint64_t now_ns);
  void capture_opened(std::uint64_t id) { live_captures_.insert(id); }
  // The graph and its instances are gone and the device is done with them: what the capture
  // allocated is nobody's, whether it was freed or not.
  void capture_released(std::uint64_t id);
  void forget(std::uint64_t begin, std::uint64_t end) { owners_.erase(begin, end); }

  [[nodiscard]] const std::vector<violation>& violations() const noexcept { return violations_; }
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  void clear() {
    violations_.clear();
    count_ = 0;
  }

 private:
  struct use {
    point last;
    bool wrote = false;
  };
  // A block that was handed out; after its free, what its memory remembers of it.
  struct block {
    std::uint64_t address = 0, bytes = 0;
    stream_name stream;
    std::string allocated, freed;
    bool live = true;
    bool orphaned = false;            // allocated in a capture whose graph is gone
    std::uint64_t owner_capture = 0;  // the capture that it was allocated or freed in
    bool freed_in_capture = false;
    point allocated_at;
    std::vector<point> must_follow;  // after the free: everything that a reuse must come after
    std::vector<std::pair<std::uint64_t, std::string>> users;  // record_use: timeline, place
    std::vector<use> uses;                                     // only where races are reported
    bool all_written = false;
    interval_map<written> written_part;  // by offset
  };
  using block_ptr = std::shared_ptr<block>;

  void report(const char* rule, const std::string& first, std::string_view second, std::string text,
              std::uint64_t now_ns);
  [[nodiscard]] bool same_capture(std::uint64_t one, std::uint64_t other) const;
  [[nodiscard]] std::uint64_t group_of(std::uint64_t capture) const;
  void check_reuse(const block& old, const block& fresh, const timeline& line,
                   std::uint64_t now_ns);
  void check_live(block& b, const access& a, std::uint64_t begin, std::uint64_t end,
                  const timeline& line, point work, stream_name stream, std::string_view what,
                  std::uint64_t now_ns);

  const simulated_gpu_options& options_;
  memory& memory_;
  order_book& order_;
  interval_map<block_ptr> owners_;                     // physical range -> its last block
  std::unordered_map<std::uint64_t, block_ptr> live_;  // by address
  std::unordered_set<std::uint64_t> live_captures_;
  // Captures that share their memory -> their group, those that are gone too: another's graph may
  // write where theirs did.
  std::unordered_map<std::uint64_t, std::uint64_t> groups_;
  std::unordered_map<std::uint64_t, std::uint64_t> capture_of_;  // a capture's timelines -> its id
  std::vector<piece> scratch_;
  std::vector<violation> violations_;
  std::uint64_t count_ = 0;
};

}  // namespace millpond::sim
