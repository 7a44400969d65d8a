// Device memory whose blocks grow at their end without moving: each has a range of addresses of its own, into which
// physical memory is mapped as it grows. For buffers whose final size nobody knows (the outputs of an inference engine with
// data-dependent shapes); a pool is the place for everything else.
#pragma once
#include <cstdint>
#include <memory>

#include "millpond/driver.hpp"
#include "millpond/result.hpp"

namespace millpond {

struct growable_options {
  // Addresses reserved for each block, which it can never outgrow; 0: a quarter of the device's memory. Addresses cost
  // nothing, and there are some thousand times the device's memory of them.
  std::uint64_t reserve_bytes = 0;
  // A block grows by an eighth of itself at least, so that growing byte by byte costs few calls (mapping costs about
  // 35 us a piece on an H200, driver 580.159, 2026-11-30).
  double step = 0.125;
};

// Thread-safe. Not stream-ordered: a block may be used at once anywhere, growing leaves what runs on it alone, and freeing
// is for when the work on the block is done. Freed blocks are kept mapped and serve again; trim gives them back.
class growable_memory {
 public:
  // Errors: not_supported where the device has no virtual memory management.
  [[nodiscard]] static result<std::shared_ptr<growable_memory>> create(std::shared_ptr<driver> gpu, growable_options options = {});
  ~growable_memory();  // gives everything back, live blocks too
  growable_memory(const growable_memory&) = delete;
  growable_memory& operator=(const growable_memory&) = delete;

  // 0 bytes gives nullptr. Aligned to 2 MiB. Errors: out_of_memory, with the reason.
  [[nodiscard]] result<void*> allocate(std::uint64_t bytes);
  // Makes the block at least so large, at the same address; smaller than it is: nothing is done. Errors: out_of_memory (also
  // beyond the reserved addresses) with the block as it was, foreign_pointer.
  [[nodiscard]] result<void> grow(void* ptr, std::uint64_t bytes);
  // nullptr is legal. Errors: foreign_pointer.
  result<void> deallocate(void* ptr);

  // Bytes mapped at a live block; 0 where it is none of ours.
  [[nodiscard]] std::uint64_t capacity(const void* ptr) const;
  [[nodiscard]] std::uint64_t reserved_bytes() const;  // physical memory held
  std::uint64_t trim();                                // freed blocks go; answers their bytes
  [[nodiscard]] driver& gpu() const noexcept;

 private:
  struct state;
  explicit growable_memory(std::unique_ptr<state> inside);
  std::unique_ptr<state> state_;
};

}  // namespace millpond
