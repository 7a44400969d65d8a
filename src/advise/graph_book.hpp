// What belongs to a CUDA graph: said here and nowhere else, and every check asks it.
//
// Work that is given to a stream in capture does not run: it becomes a node. It runs at each launch
// of its graph. Memory that a capture allocates is the graph's own: each launch makes its own of
// it, at the same address, so that nothing is said of its uses.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trace/event.hpp"

namespace millpond::advise {

class graph_book {
 public:
  // A graph's nodes are kept up to so many: of one of more nodes the rest is as if not seen.
  static constexpr std::size_t most_nodes = 65536;

  struct graph {
    std::vector<trace::event> nodes;  // kernels with their uses, copies, memsets, prefetches, frees
    std::vector<std::pair<std::uint64_t, std::uint64_t>> own;  // memory that it allocates: [begin,
                                                               // end)
    bool whole = true;                                         // all of its nodes are here
    [[nodiscard]] bool owns(std::uint64_t address) const noexcept;
  };

  void capture_began(const trace::event& at);
  void capture_ended(const trace::event& at);
  // An event that is recorded on a stream in capture belongs to it, and a stream that waits for
  // such an event joins it. Whether it was so.
  bool event_recorded(const trace::event& at);
  bool event_waited(const trace::event& at);
  void graph_destroyed(const trace::event& at);

  // Whether work given to this stream goes into a capture.
  [[nodiscard]] bool captures(std::uint64_t stream) const noexcept {
    return !captures_.empty() && captures_.contains(stream);
  }
  // A node of the capture that the stream is in.
  void keep(std::uint64_t stream, const trace::event& node);
  void allocates(const trace::event& at);
  // Whether the capture that the stream is in allocated this address itself.
  [[nodiscard]] bool own_of_capture(std::uint64_t stream, std::uint64_t address) const;
  // nullptr where its capture was not seen: nobody knows what it does.
  [[nodiscard]] const graph* find(std::uint64_t id) const;

 private:
  std::unordered_map<std::uint64_t, std::uint64_t> captures_;  // stream -> capture
  std::unordered_map<std::uint64_t, std::uint64_t> events_;    // CUDA event -> capture
  std::unordered_map<std::uint64_t, graph> open_;              // by capture
  std::unordered_map<std::uint64_t, graph> graphs_;
};

}  // namespace millpond::advise
