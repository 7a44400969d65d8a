// The driver's stream-ordered pools: what they reserve, which freed range serves which stream, and
// when unused memory goes back.
//
// A freed range serves its own stream at once; another stream when that is ordered after the free,
// or when the device has passed it; and otherwise, where the pool cannot grow, by a wait that the
// driver inserts into the asking stream (CUDA's three reuse policies, all on by default; that the
// pool grows before it waits is what the reserved bytes of the trace multistream_serving on a card
// show).
//
// A pool is one heap over segments of 32 MiB that lie side by side in a range of addresses. It
// grows at its end, by what the free bytes there lack; where whole segments elsewhere are free,
// those are moved there instead of new ones. Blocks of 2 MiB and more take whole pages. That this
// is what the driver does is not documented beyond "it remaps unused memory"; it gives the reserved
// bytes of a card on the recorded traces to a step or two.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "driver/sim/clocks.hpp"
#include "driver/sim/memory.hpp"
#include "driver/sim/slots.hpp"

namespace millpond::sim {

class pool {
 public:
  pool(memory& from, order_book& order, memory_location location, std::uint64_t max_bytes,
       std::uint64_t step)
      : memory_(from), order_(order), location_(location), max_(max_bytes), step_(step) {}
  ~pool();
  pool(const pool&) = delete;
  pool& operator=(const pool&) = delete;

  void set_handle(pool_handle self) noexcept { self_ = self; }

  struct answer {
    driver_status status = driver_status::success;
    std::uint64_t address = 0;
    std::uint64_t grown_bytes = 0;      // put behind the pool's end for this request
    std::uint64_t moved_bytes = 0;      // of them, taken from elsewhere in the pool
    std::uint64_t wait_until_ns = 0;    // the asking stream must not go on before
    std::optional<vector_clock> after;  // and is then ordered after this
  };
  // For `line`; a captured allocation takes only ranges whose use is over.
  answer allocate(std::uint64_t bytes, const timeline& line, std::uint64_t now_ns);
  // The range may be reused by others from `ready_ns` on, when the work of `freed` is done.
  void free(std::uint64_t address, point freed, const vector_clock& clock, std::uint64_t ready_ns,
            std::uint64_t now_ns);
  // Gives segments back that nothing uses, until `keep` bytes are reserved; answers the bytes
  // given.
  std::uint64_t trim(std::uint64_t keep, std::uint64_t now_ns);
  [[nodiscard]] std::uint64_t trim_to_threshold(std::uint64_t now_ns) {
    return reserved_ > threshold_ ? trim(threshold_, now_ns) : 0;
  }
  void set_threshold(std::uint64_t bytes) noexcept { threshold_ = bytes; }
  [[nodiscard]] driver::pool_usage usage() const noexcept {
    return {reserved_, reserved_high_, used_, used_high_};
  }
  [[nodiscard]] memory_location location() const noexcept { return location_; }
  [[nodiscard]] std::size_t blocks() const noexcept { return blocks_.size(); }
  // Destroyed while blocks live: it goes when the last of them does.
  bool dying = false;

 private:
  // A free range, with everything that must be over before any stream may have it.
  struct hole {
    std::uint64_t bytes = 0;
    std::uint64_t range = 0;
    std::uint64_t ready_ns = 0;
    std::uint64_t owner = 0;  // the one timeline that may have it at once; 0: none
    vector_clock after;       // kept when it is over: who gets the range then runs after it
  };
  using holes = std::map<std::uint64_t, hole>;
  [[nodiscard]] bool usable(const hole& h, const timeline& line,
                            std::uint64_t now_ns) const noexcept;
  holes::iterator best(std::uint64_t bytes, const timeline* line, std::uint64_t now_ns);
  struct range {
    std::uint64_t end = 0;
    std::uint64_t top = 0;  // the end of its last segment
  };
  driver_status grow(std::uint64_t bytes, const timeline& line, std::uint64_t now_ns, answer& out);
  driver_status add_segments(std::uint64_t bytes, std::uint64_t now_ns);
  driver_status add_range(std::uint64_t bytes);
  std::uint64_t remove_free(std::uint64_t most, std::uint64_t before, std::uint64_t now_ns);
  void remove_segment(std::map<std::uint64_t, std::uint64_t>::iterator segment);
  holes::iterator insert(std::uint64_t address, hole h, std::uint64_t now_ns);
  void join_ready(std::uint64_t now_ns);
  void join_for(const timeline& line, std::uint64_t now_ns);

  memory& memory_;
  order_book& order_;
  memory_location location_;
  std::uint64_t max_;
  std::uint64_t step_;
  std::uint64_t threshold_ = 0;
  pool_handle self_ = nullptr;
  struct block {
    std::uint64_t bytes, range, used;
  };
  std::map<std::uint64_t, range> ranges_;            // by their begin
  std::uint64_t last_range_ = 0;                     // the one that grows
  std::map<std::uint64_t, std::uint64_t> segments_;  // address -> bytes
  holes holes_;
  std::uint64_t waiting_ = 0;  // holes that were not ready when last looked at
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> by_size_;  // {bytes, address}
  std::unordered_map<std::uint64_t, block> blocks_;
  std::uint64_t reserved_ = 0, reserved_high_ = 0, used_ = 0, used_high_ = 0;
};

}  // namespace millpond::sim
