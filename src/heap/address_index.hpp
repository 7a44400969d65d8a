// address -> segment. Starts of segments are kept by page of 64 KiB: 128 slots of 512 bytes each, with a
// bitmap, and summaries of the bitmaps above, so that the segment that covers an address is found in a few
// steps. A lookup by exact start takes no lock: pages are never given back before the index is, and a
// stale answer is told by the segment's own start.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "heap/segment.hpp"

namespace millpond::heap {

class address_index {
 public:
  address_index();
  ~address_index();
  address_index(const address_index&) = delete;
  address_index& operator=(const address_index&) = delete;

  // A range of addresses that segments may lie in, 64 KiB aligned. At most max_regions. Under the caller's
  // lock, as everything here but exact() and contains().
  void add_region(std::uint64_t base, std::uint64_t bytes);
  [[nodiscard]] bool full() const noexcept { return region_count_.load(std::memory_order_relaxed) == max_regions; }

  // A fresh record (state unused, id set), and back.
  [[nodiscard]] segment* new_segment();
  void delete_segment(segment* of);

  void insert(segment* of);
  void erase(std::uint64_t start);
  // The segment with the largest start <= address in the address's region; nullptr where none.
  [[nodiscard]] segment* covering(std::uint64_t address) const;

  // The segment that starts exactly here, or nullptr. No lock, any thread.
  [[nodiscard]] segment* exact(std::uint64_t start) const noexcept {
    const std::uint32_t count = region_count_.load(std::memory_order_acquire);
    for (std::uint32_t i = 0; i < count; ++i) {
      const region& r = regions_[i];
      const std::uint64_t offset = start - r.base;
      if (offset >= r.bytes) continue;
      if ((offset & (granule - 1)) != 0) return nullptr;
      const page* p = r.root[offset >> page_shift].load(std::memory_order_acquire);
      if (p == nullptr) return nullptr;
      const std::uint32_t id = p->slots[(offset & (page_bytes - 1)) / granule].load(std::memory_order_acquire);
      if (id == 0) return nullptr;
      segment* found = at(id);
      return found->start() == start ? found : nullptr;
    }
    return nullptr;
  }
  [[nodiscard]] bool contains(std::uint64_t address) const noexcept { return region_of(address) != nullptr; }

  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept { return metadata_bytes_; }

 private:
  static constexpr unsigned page_shift = 16;
  static constexpr std::uint64_t page_bytes = std::uint64_t{1} << page_shift;
  static constexpr std::size_t slots_a_page = page_bytes / granule;
  static constexpr std::size_t max_regions = 256;
  static constexpr std::size_t chunk_records = 256;
  static constexpr std::size_t max_chunks = std::size_t{1} << 16;

  struct page {
    std::array<std::atomic<std::uint32_t>, slots_a_page> slots{};  // segment id, 0 none
    std::array<std::uint64_t, slots_a_page / 64> bits{};
  };
  struct region {
    std::uint64_t base = 0;
    std::uint64_t bytes = 0;
    std::atomic<page*>* root = nullptr;                // one entry a page, lazily touched
    std::array<std::uint64_t*, 4> levels{};            // bit set: something below; lazily touched
    std::uint64_t mapped = 0;                          // bytes of the mapping that root starts
  };

  [[nodiscard]] segment* at(std::uint32_t id) const noexcept {
    return &chunks_[id / chunk_records].load(std::memory_order_acquire)[id % chunk_records];
  }
  [[nodiscard]] const region* region_of(std::uint64_t address) const noexcept {
    const std::uint32_t count = region_count_.load(std::memory_order_acquire);
    for (std::uint32_t i = 0; i < count; ++i) {
      if (address - regions_[i].base < regions_[i].bytes) return &regions_[i];
    }
    return nullptr;
  }

  std::array<region, max_regions> regions_;
  std::atomic<std::uint32_t> region_count_{0};  // publishes regions_[0, count)
  std::unique_ptr<std::atomic<segment*>[]> chunks_;
  std::uint32_t next_id_ = 0;
  segment* unused_ = nullptr;
  std::vector<std::unique_ptr<page>> pages_;
  std::uint64_t metadata_bytes_ = 0;
};

}  // namespace millpond::heap
