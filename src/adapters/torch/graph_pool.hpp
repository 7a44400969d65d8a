// The private memory of captured graphs: what PyTorch calls a memory pool of a graph.
//
// While PyTorch captures, its allocations go to a graph pool: blocks carved from chunks that the main pool lent, reused
// only within the graph pool, and kept until PyTorch has let go of the pool and of every tensor in it. A graph writes to the
// same addresses at each replay, so nobody else may have them meanwhile; and unlike memory that a capture took from
// millpond::pool itself, a tensor here outlives its graph, which PyTorch's programs rely on.
//
// Reuse is by stream: what a stream freed serves that stream, since one capture's nodes on one stream run in order, and
// graphs that share a pool are replayed in the order of their captures, which PyTorch asks of its users. Not thread-safe.
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "millpond/driver.hpp"

namespace millpond::torch {

class graph_pool {
 public:
  struct chunk {
    std::uint64_t start = 0;
    std::uint64_t bytes = 0;
  };

  // A block from what is free for this stream, the tightest fit; nullptr where a chunk must be added first.
  [[nodiscard]] void* allocate(std::uint64_t bytes, stream_handle stream);
  // How large a chunk to lend for a request: what it needs, small ones together.
  [[nodiscard]] static std::uint64_t chunk_bytes_for(std::uint64_t bytes) noexcept;
  void add_chunk(chunk lent, stream_handle stream);

  // The bytes that were asked for; 0 where the address is not a live block of this pool.
  std::uint64_t deallocate(void* ptr);
  // Another stream uses the block too: freed in a capture, it serves nobody before the capture has ended.
  [[nodiscard]] bool note_other_use(void* ptr);
  // A capture into this pool has ended: blocks kept back for other uses serve again.
  void capture_ended();

  // Chunks in which nothing lives, no longer this pool's: for when its graphs are gone, and a tensor is left or a library keeps
  // its scratch memory.
  [[nodiscard]] std::vector<chunk> take_idle_chunks();
  // The peak is what lives now; answers by how much it falls.
  std::uint64_t forget_peak() noexcept;

  // The live block that an address lies in; 0 bytes where none.
  [[nodiscard]] chunk find(const void* ptr) const noexcept;
  [[nodiscard]] std::uint64_t live_blocks() const noexcept { return live_blocks_; }
  [[nodiscard]] std::uint64_t chunk_bytes() const noexcept { return chunk_bytes_; }
  // The most bytes asked for that lived at once: what replays need, whatever lives now.
  [[nodiscard]] std::uint64_t peak_live_bytes() const noexcept { return peak_live_bytes_; }
  [[nodiscard]] const std::vector<chunk>& chunks() const noexcept { return chunks_; }

  int captures = 0;       // that allocate into it now
  bool released = false;  // PyTorch has let go of it: chunks in which no block lives go back

 private:
  enum class state : std::uint8_t { free, live, kept_back };
  struct block {
    std::uint64_t bytes = 0;
    std::uint64_t requested = 0;
    stream_handle stream = nullptr;
    state is = state::free;
    bool other_use = false;
    bool first_of_chunk = false;
  };
  // By address, without gaps within a chunk. No block goes over the end of its chunk: larger free blocks are no gain, since the
  // tightest fit then has fewer to choose from.
  using blocks = std::map<std::uint64_t, block>;
  void make_free(blocks::iterator at);

  blocks blocks_;
  std::set<std::tuple<stream_handle, std::uint64_t, std::uint64_t>> free_;  // stream, bytes, address
  std::vector<chunk> chunks_;
  std::uint64_t chunk_bytes_ = 0;
  std::uint64_t live_blocks_ = 0;
  std::uint64_t live_bytes_ = 0, peak_live_bytes_ = 0;
};

}  // namespace millpond::torch
