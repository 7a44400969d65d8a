// The checker: it sees what an allocator hands out and takes back, and what the device is asked
// to do, it finds the reuse, access or free that stream order does not allow. It judges by order
// alone, never by when things happened to run, so a race is found on the first run that contains
// it.
//
// Everything is kept by physical range, so that two addresses of one memory are one memory; whose
// an address was last is kept beside it, so that a block's old address still tells of it when its
// pages are out again at another.
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
[[nodiscard]] std::string text_of(stream_name stream);  // "stream 2 (capture 1)"
[[nodiscard]] std::string text_of_block(std::uint64_t address, std::uint64_t bytes);

// A block that was handed out; after its free, what its memory remembers of it.
struct noted_block {
  struct use {
    point last;
    bool wrote = false;
  };
  std::uint64_t address = 0, bytes = 0;
  stream_name stream;
  std::string allocated, freed;
  bool live = true;
  bool orphaned = false;            // allocated in a capture whose graph is gone
  std::uint64_t owner_capture = 0;  // the capture that it was allocated or freed in
  std::uint64_t freed_capture = 0;  // the capture that it was freed in
  point allocated_at;
  std::vector<point> must_follow;  // after the free: everything that a reuse must come after
  std::vector<std::pair<std::uint64_t, std::string>> users;  // record_use: timeline, place
  std::vector<use> uses;                                     // only where races are reported
  // Of a capture's block, the last work of each timeline that is not its graph's: where no free
  // says when it is over, a reuse must come after it.
  std::vector<point> outside_uses;
  bool all_written = false;
  interval_map<written> written_part;  // by offset
};

// What the checker remembers of a node of a graph.
struct node_memory {
  std::uint64_t capture = 0;                         // that it was captured in
  std::vector<std::shared_ptr<noted_block>> blocks;  // that it touches and that lived then
  std::shared_ptr<noted_block> gone;                 // one that it touches and that did not
};

class checker {
 public:
  checker(const simulated_gpu_options& options, memory& of, order_book& order)
      : options_(options), memory_(of), order_(order) {}

  // --- What the harness tells ---
  void note_allocate(std::uint64_t at, std::uint64_t bytes, const timeline& line,
                     stream_name stream, std::string_view call_site, std::uint64_t now_ns);
  // A stream that captures has two timelines: `line` is the capture's branch, `outside` what was
  // queued on it before. Otherwise they are one.
  void note_free(std::uint64_t at, std::uint64_t bytes, const timeline& line,
                 const timeline& outside, stream_name stream, std::string_view call_site,
                 std::uint64_t now_ns);
  void note_use(std::uint64_t at, const timeline& line, const timeline& outside, stream_name stream,
                std::string_view call_site, std::uint64_t now_ns);
  void share_captures(std::uint64_t one, std::uint64_t other);
  void let_arena_go(std::uint64_t capture) { unheld_.insert(group_of(capture)); }

  // --- What the driver sees ---
  struct access {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    access_kind kind = access_kind::read;
    const std::vector<piece>* pieces = nullptr;
    node_memory* node = nullptr;  // of the node that the work is captured as, or was
    std::uint64_t launched = 0;   // the graph that runs now, by its capture
  };
  // One operation's access, as it is queued: `work` is its own tick on `line`.
  void check_access(const access& a, const timeline& line, point work, stream_name stream,
                    std::string_view what, std::uint64_t now_ns);
  // A node is about to run: false, and reported, where memory that it touches is no longer its
  // graph's nor the program's. `launch` is the stream, and the graph that is launched.
  bool check_node(const node_memory& node, stream_name launch, std::string_view what,
                  std::uint64_t now_ns);
  // A node of a graph that is launched into a capture: what the capture has freed by then is gone
  // for it.
  std::shared_ptr<node_memory> child_node(const node_memory& node, stream_name into,
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
  // The driver may give these addresses to anybody from now on.
  void forget_addresses(std::uint64_t begin, std::uint64_t end) { by_address_.erase(begin, end); }

  [[nodiscard]] const std::vector<violation>& violations() const noexcept { return violations_; }
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  void clear() {
    violations_.clear();
    count_ = 0;
  }

 private:
  using block = noted_block;
  using block_ptr = std::shared_ptr<block>;
  // One piece of work, as the checks of its accesses name it.
  struct asked {
    const access& a;
    const timeline& line;
    point work;
    stream_name stream;
    std::string_view what;
    std::uint64_t now_ns;
    std::vector<const block*> reported;  // one report a block
  };

  void report(const char* rule, const std::string& first, std::string_view second, std::string text,
              std::uint64_t now_ns);
  [[nodiscard]] bool same_capture(std::uint64_t one, std::uint64_t other) const;
  [[nodiscard]] std::uint64_t group_of(std::uint64_t capture) const;
  // The graph's own: its capture, or one that shares the memory, allocated or freed the block.
  [[nodiscard]] bool graphs_own(const block& b, std::uint64_t capture) const {
    if (capture == 0) return false;
    if (b.owner_capture != 0 && same_capture(b.owner_capture, capture)) return true;
    return b.freed_capture != 0 && same_capture(b.freed_capture, capture) && !given_back(b);
  }
  // The graph that allocated it is gone, and its arena where it has one.
  [[nodiscard]] bool given_back(const block& b) const {
    const std::uint64_t capture = b.stream.capture;
    if (capture == 0 || live_captures_.contains(capture)) return false;
    return !groups_.contains(capture) || arena_is_over(capture);
  }
  [[nodiscard]] bool works_own(const asked& of, const block& b) const {
    return graphs_own(b, of.stream.capture) || graphs_own(b, of.a.launched);
  }
  // Nobody's: its graph is gone, and it is in no arena that may be held.
  [[nodiscard]] bool abandoned(const block& b) const { return b.orphaned && given_back(b); }
  [[nodiscard]] bool arena_is_over(std::uint64_t capture) const;
  static bool follow(block& b, const timeline& line);
  void check_reuse(const block& old, const block& fresh, const timeline& line,
                   std::uint64_t now_ns);
  void check_outside_uses(const block& old, const block& fresh, const timeline& line,
                          std::uint64_t now_ns);
  [[nodiscard]] bool check_owner(asked& of, const block_ptr& b, std::uint64_t from,
                                 std::uint64_t to);
  [[nodiscard]] bool check_old_address(asked& of, std::uint64_t from, std::uint64_t to);
  void check_unnoted(const asked& of, const piece& p);
  void note_outside_use(block& b, point work);
  void check_live(asked& of, block& b, std::uint64_t begin, std::uint64_t end);
  void report_gone(asked& of, const block_ptr& b, std::uint64_t address);
  void report_gone(const block& b, std::uint64_t address, stream_name stream, std::string_view what,
                   std::uint64_t now_ns);

  const simulated_gpu_options& options_;
  memory& memory_;
  order_book& order_;
  interval_map<block_ptr> owners_;                     // physical range -> its last block
  interval_map<block_ptr> by_address_;                 // address range -> its last block
  std::unordered_map<std::uint64_t, block_ptr> live_;  // by address
  std::unordered_set<std::uint64_t> live_captures_;
  // Captures that share their memory -> their group, those that are gone too: another's graph may
  // write where theirs did.
  std::unordered_map<std::uint64_t, std::uint64_t> groups_;
  std::unordered_set<std::uint64_t> unheld_;  // groups whose arena nobody holds
  std::vector<piece> scratch_;
  std::vector<violation> violations_;
  std::uint64_t count_ = 0;
};

}  // namespace millpond::sim
