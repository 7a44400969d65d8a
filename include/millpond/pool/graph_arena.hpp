// Memory that several captured graphs share, as PyTorch's graphs share a pool.
//
// A capture has memory of its own unless the program says otherwise: five graphs that are never run
// at the same time then hold five times what the largest needs. Captures attached to one arena
// (pool::capture_into) take what the arena has free, so that it grows to about what the largest of
// them needs.
//
// What the program promises: graphs of one arena never run at the same time. A launch is put behind
// the end of every launch of the others, on one stream or by events, and behind its own work
// outside graphs that uses a result which the graph's capture, or a later one, freed: a later
// capture has such a block at once. Then
//  - what a graph allocates and frees within its capture is its own while it runs;
//  - a block that stays allocated keeps its contents until it is freed, as long as only graphs
//    captured after its allocation are launched. An earlier graph's launch may write it: when that
//    was captured its memory was free. Launch graphs in the order of their captures where results
//    are handed on.
// Free memory stays the arena's as long as it is held or a graph lives; with no graph left, trim
// and pressure take it. What is freed outside any capture serves captures attached later, once the
// freeing stream has passed the free.
#pragma once
#include "millpond/detail/language.hpp"

#include <memory>
#include <utility>

namespace millpond {

// Holds an arena: copies hold the same one. The arena ends when its last holder and the last graph
// captured into it are gone (graphs and their executables destroyed, aborted captures too), in any
// order; then all its memory goes back to the pool, what the program never freed as well, as with a
// graph that has memory of its own. So keep a holder as long as a block is to outlive its graph.
// May outlive the pool. Copying and dropping it: from any thread, without a driver call.
class graph_arena {
 public:
  graph_arena() = default;  // none
  [[nodiscard]] explicit operator bool() const noexcept { return held_ != nullptr; }
  [[nodiscard]] bool operator==(const graph_arena&) const noexcept = default;

 private:
  friend class pool;
  friend class capture_directory;
  struct hold;  // src/pool/capture/capture_state.hpp
  explicit graph_arena(std::shared_ptr<const hold> held) noexcept : held_(std::move(held)) {}
  std::shared_ptr<const hold> held_;
};

}  // namespace millpond
