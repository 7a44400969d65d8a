// One block of 2 MiB: where each of its pages is, and who has it mapped.
#pragma once
#include <cstdint>

#include "driver/sim/pages/thrash.hpp"
#include "millpond/driver/driver.hpp"

namespace millpond::sim::pages {

// Pages [first, last) set.
[[nodiscard]] inline page_mask mask_of(unsigned first, unsigned last) noexcept {
  page_mask made;
  if (first >= last) return made;
  made.set();
  made >>= pages_a_block - (last - first);
  made <<= first;
  return made;
}

// What cudaMemAdvise has said of a block.
struct block_policy {
  enum class location : std::uint8_t { none, host, device };
  bool read_mostly = false;
  location preferred = location::none;
  bool accessed_by_device = false;
  bool accessed_by_host = false;
  bool operator==(const block_policy&) const = default;
};

struct block {
  unsigned pages = pages_a_block;  // fewer in a range's last block
  page_mask on_host, on_device;    // a page in both is duplicated; in neither: never touched
  page_mask mapped;                // the GPU may read it, where it is or over the link
  page_mask writable;              // and write it
  block_policy policy;
  thrash_state thrash;
  page_mask pinned_known;  // pages that thrash on the host and are mapped there, counted as pinned
  std::uint64_t used = 0;  // when the device last touched it, for eviction
  std::uint64_t generation = 0;      // a translation made before it changed is void
  std::uint64_t remote_touches = 0;  // the access counter
  [[nodiscard]] page_mask all() const noexcept { return mask_of(0, pages); }
  [[nodiscard]] page_mask duplicated() const noexcept { return on_host & on_device; }
  [[nodiscard]] page_mask touched() const noexcept { return on_host | on_device; }
};

// Stretches of pages side by side.
[[nodiscard]] inline std::size_t regions_of(const page_mask& pages) noexcept {
  return (pages & ~(pages << 1)).count();
}
// Big pages that hold one of the pages.
[[nodiscard]] std::size_t big_pages_of(const page_mask& pages) noexcept;

// The driver's prefetcher: the faulted pages grow to their big pages, and then each to the largest
// subtree of the block's binary tree of which more than `percent` is at the target already or
// faulted. Never leaves the block.
[[nodiscard]] page_mask grow_by_density(const page_mask& faulted, const page_mask& there,
                                        unsigned pages, unsigned percent) noexcept;

}  // namespace millpond::sim::pages
