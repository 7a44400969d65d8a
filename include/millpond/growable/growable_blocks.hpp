// Device memory by blocks that grow at their end without moving, each over a growable_memory of its
// own. For buffers whose final size nobody knows and that are asked for by pointer (the outputs of
// an inference engine with data-dependent shapes). Where the program holds the buffer itself,
// millpond::growable_buffer is the thing; for the rest there is the pool.
#pragma once
#include "millpond/detail/language.hpp"

#include <cstdint>
#include <memory>

#include "millpond/base/result.hpp"
#include "millpond/driver/driver.hpp"

namespace millpond {

struct growable_blocks_options {
  // Addresses reserved for each block, which it can never outgrow; 0: a quarter of the device's
  // memory. Addresses cost nothing, and there are some thousand times the device's memory of them.
  std::uint64_t reserve_bytes = 0;
  // A block grows by this share of itself at least (an eighth), where there is memory, so that
  // growing bit by bit costs few calls. 0 or more; a large one means all of its addresses.
  double step = 0.125;
};

// Thread-safe. Not stream-ordered: a block may be used at once anywhere, growing leaves what runs
// on it alone, and freeing is for when the work on the block is done. Freed blocks are kept mapped
// and serve again; trim gives them back.
class growable_blocks {
 public:
  // Errors: not_supported where the device has no virtual memory management, invalid_argument for
  // options that no device can serve.
  [[nodiscard]] static result<std::shared_ptr<growable_blocks>> create(
      std::shared_ptr<driver> gpu, growable_blocks_options options = {});
  ~growable_blocks();  // gives everything back, live blocks too, after waiting for the device
  growable_blocks(const growable_blocks&) = delete;
  growable_blocks& operator=(const growable_blocks&) = delete;

  // 0 bytes gives nullptr. Aligned to the driver's granularity (2 MiB). Served by a kept block
  // where one is large enough or has the addresses to grow, else by a new one. Errors:
  // out_of_memory, with the reason; what is kept stays, but for what was given back to make room.
  [[nodiscard]] result<void*> allocate(std::uint64_t bytes);
  // Makes the block at least so large, at the same address; smaller than it is: nothing is done.
  // Errors: out_of_memory (also beyond the reserved addresses) with the block as it was,
  // foreign_pointer.
  [[nodiscard]] result<void> grow(void* ptr, std::uint64_t bytes);
  // nullptr is legal. Errors: foreign_pointer.
  result<void> deallocate(void* ptr);

  // Bytes mapped at a live block; 0 where it is none of ours.
  [[nodiscard]] std::uint64_t capacity(const void* ptr) const;
  // Physical memory held, with what the driver has refused to take back.
  [[nodiscard]] std::uint64_t reserved_bytes() const;
  std::uint64_t trim();  // freed blocks go; answers the bytes that the driver has taken back
  [[nodiscard]] driver& gpu() const noexcept;

 private:
  struct state;
  explicit growable_blocks(std::unique_ptr<state> inside);
  std::unique_ptr<state> state_;
};

}  // namespace millpond
