// address -> extent. Starts of extents are kept by page of 64 KiB, in the smallest form that
// holds them: the extent itself where one starts in the page, as for most large blocks; a cache
// line for up to eight; else 128 slots of 512 bytes each, with a bitmap. Small forms keep the books
// of a large pool small: to touch new memory costs more than all the rest. Summaries of the pages
// above let the extent that covers an address be found in a few steps. A lookup by exact start
// takes no lock: a form is never given back before the index is, and a stale answer is known by
// the extent's own start. Host memory is asked for by provide() and add_region() alone, which
// answer a refusal; what provide() has made ready, and what was given back, is used by the others.
// It first looks where the extent of a block that begins there was last noted, in a table of hints
// that may be overwritten by another block's: one load, whatever the form, where walking to it
// takes three that wait for each other.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <utility>

#include "base/prefetch.hpp"
#include "heap/extent.hpp"
#include "heap/limits.hpp"
#include "heap/stock.hpp"

namespace millpond::heap {

class address_index {
 public:
  // Throws std::bad_alloc where the host has no addresses for the tables.
  explicit address_index(const limits& most);
  ~address_index();
  address_index(const address_index&) = delete;
  address_index& operator=(const address_index&) = delete;

  // A range of addresses that extents may lie in, 64 KiB aligned. Under the caller's lock, as
  // everything here but exact() and contains().
  [[nodiscard]] refusal add_region(std::uint64_t base, std::uint64_t bytes) noexcept {
    const refusal answer = prepare_region(bytes);
    if (answer == refusal::none) add_prepared_region(base);
    return answer;
  }
  // The same in two steps, of which the second cannot fail: where the addresses are not known yet.
  [[nodiscard]] refusal prepare_region(std::uint64_t bytes) noexcept;
  void add_prepared_region(std::uint64_t base) noexcept;
  [[nodiscard]] bool full() const noexcept {
    return region_count_.load(std::memory_order_relaxed) == most_.regions;
  }

  // So many records can be taken and inserted from now on. Otherwise the reason, and the books are
  // as before.
  [[nodiscard]] refusal provide(std::size_t inserts) noexcept {
    if (__builtin_expect(unused_count_ >= inserts + aside_ && fews_.left() >= inserts &&
                             pages_.left() >= inserts,
                         1))
      return refusal::none;
    return provide_more(inserts);
  }

  // So many of the records are not provided to others.
  void set_aside(std::size_t records) noexcept { aside_ = records; }

  // A fresh record (state unused, id set), and back.
  [[nodiscard]] extent* new_extent() noexcept;
  void delete_extent(extent* of) noexcept;

  // The extent was handed out: lookups of its start will come.
  void note(extent* of) noexcept {
    hints_[hint_of(of->start())].store(of, std::memory_order_release);
  }
  // A start here is about to be inserted or erased: its entry is fetched meanwhile.
  void expect(std::uint64_t start) const noexcept {
    if (const region* const r = region_of(start))
      __builtin_prefetch(&r->root[(start - r->base) >> page_shift], 1);
  }
  void insert(extent* of) noexcept;
  void erase(std::uint64_t start) noexcept;
  // The extent with the largest start <= address in the address's region; nullptr where none.
  [[nodiscard]] extent* covering(std::uint64_t address) const;

  // The extent that starts exactly here, or nullptr. No lock, any thread.
  [[nodiscard]] extent* exact(std::uint64_t start) const noexcept {
    // Records are kept as long as the index, and one that begins here is the one that begins here.
    extent* const hint = hints_[hint_of(start)].load(std::memory_order_acquire);
    prefetch_to_write(hint);  // who looks a block up is about to free it: one transfer from another
                              // core instead of two
    if (__builtin_expect(hint != nullptr && hint->start() == start, 1)) return hint;
    return walk_to(start);
  }
  [[nodiscard]] bool contains(std::uint64_t address) const noexcept {
    return region_of(address) != nullptr;
  }

  // A record by its number, which never changes. No lock, any thread.
  [[nodiscard]] extent* at(std::uint32_t id) const noexcept {
    return &chunks_[id / chunk_records].load(std::memory_order_acquire)[id % chunk_records];
  }

  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept;

 private:
  [[nodiscard]] extent* walk_to(std::uint64_t start) const noexcept {
    const std::uint32_t count = region_count_.load(std::memory_order_acquire);
    for (std::uint32_t i = 0; i < count; ++i) {
      const region& r = regions_[i];
      const std::uint64_t offset = start - r.base;
      if (offset >= r.bytes) continue;
      const std::uintptr_t e = r.root[offset >> page_shift].load(std::memory_order_acquire);
      extent* found = nullptr;
      if ((e & form) == is_extent) {
        found = extent_in(e);
      } else if ((e & form) == is_few) {
        found = few_in(e)->find(slot_of(offset));
      } else if (const std::uint32_t id =
                     page_in(e)->slots[slot_of(offset)].load(std::memory_order_acquire);
                 id != 0) {
        found = at(id);
      }
      return found != nullptr && found->start() == start ? found : nullptr;
    }
    return nullptr;
  }
  static constexpr unsigned page_shift = 16;
  static constexpr std::uint64_t page_bytes = std::uint64_t{1} << page_shift;
  static constexpr std::size_t slots_a_page = page_bytes / granule;
  static constexpr std::size_t max_regions = 256;
  static constexpr std::size_t chunk_records = 256;
  // Forms made together: a call of malloc and a page fault are dear here.
  static constexpr std::size_t pages_at_once = 32;
  static constexpr std::size_t few_at_once = 64;
  // Hints for each record, and the least and most of them.
  static constexpr std::size_t hints_a_record = 4;
  static constexpr unsigned least_hints_power = 10, most_hints_power = 18;

  struct page {
    std::array<std::atomic<std::uint32_t>, slots_a_page> slots{};  // extent id, 0 none
    std::array<std::uint64_t, slots_a_page / 64> bits{};
  };
  // Up to eight starts: the slot in the upper seven bits, which no address of a program needs, the
  // extent below; 0: none.
  struct alignas(64) few {
    static constexpr unsigned slot_shift = 57;
    static constexpr std::uint64_t below = (std::uint64_t{1} << slot_shift) - 1;
    [[nodiscard]] static std::uint64_t word_of(std::uint64_t slot, const extent* of) noexcept {
      return slot << slot_shift | reinterpret_cast<std::uintptr_t>(of);
    }
    [[nodiscard]] static extent* extent_in(std::uint64_t word) noexcept {
      return reinterpret_cast<extent*>(word & below);
    }
    std::array<std::atomic<std::uint64_t>, 8> words{};
    [[nodiscard]] extent* find(std::uint64_t slot) const noexcept {
      for (const auto& word : words) {
        const std::uint64_t there = word.load(std::memory_order_acquire);
        if (there >> slot_shift == slot && there != 0) return extent_in(there);
      }
      return nullptr;
    }
  };
  struct region {
    std::uint64_t base = 0;
    std::uint64_t bytes = 0;
    std::atomic<std::uintptr_t>* root = nullptr;  // one entry a page, lazily touched
    std::array<std::uint64_t*, 4> levels{};       // bit set: something below; lazily touched
    std::uint64_t mapped = 0;                     // bytes of the mapping that root starts
    std::uint64_t touched = 0;                    // entries of root up to the last one ever used
  };

  // An entry of root: nothing, or one of the forms, known by its lowest bits.
  static constexpr std::uintptr_t form = 3;
  static constexpr std::uintptr_t is_extent = 0, is_few = 1, is_page = 2;
  [[nodiscard]] static page* page_in(std::uintptr_t entry) noexcept {
    return reinterpret_cast<page*>(entry & ~form);
  }
  [[nodiscard]] static few* few_in(std::uintptr_t entry) noexcept {
    return reinterpret_cast<few*>(entry & ~form);
  }
  [[nodiscard]] static extent* extent_in(std::uintptr_t entry) noexcept {
    return reinterpret_cast<extent*>(entry);
  }
  [[nodiscard]] static std::uint64_t slot_of(std::uint64_t offset) noexcept {
    return (offset & (page_bytes - 1)) / granule;
  }
  static void put_in(page& in, std::uint64_t slot, std::uint32_t id) noexcept;
  // The page of addresses has its first start now, or none any more.
  static void mark(const region& in, std::uint64_t index) noexcept;
  static void unmark(const region& in, std::uint64_t index) noexcept;
  [[nodiscard]] refusal provide_more(std::size_t inserts) noexcept;
  void add_chunk();
  // The last start at or below the slot; nullptr where none.
  [[nodiscard]] extent* last_in(const region& in, std::uintptr_t entry,
                                std::uint64_t slot) const noexcept;

  [[nodiscard]] const region* region_of(std::uint64_t address) const noexcept {
    const std::uint32_t count = region_count_.load(std::memory_order_acquire);
    for (std::uint32_t i = 0; i < count; ++i) {
      if (address - regions_[i].base < regions_[i].bytes) return &regions_[i];
    }
    return nullptr;
  }
  [[nodiscard]] region* region_of(std::uint64_t address) noexcept {
    return const_cast<region*>(std::as_const(*this).region_of(address));
  }

  void spread_hints() noexcept;
  [[nodiscard]] std::size_t hint_count() const noexcept {
    return std::size_t{1} << (64 - hint_shift_.load(std::memory_order_relaxed));
  }
  [[nodiscard]] std::size_t hint_of(std::uint64_t start) const noexcept {
    return static_cast<std::size_t>((start * 0x9e3779b97f4a7c15ULL) >>
                                    hint_shift_.load(std::memory_order_relaxed));
  }

  // What lookups read, away from what changes with every block.
  alignas(64) std::atomic<std::uint32_t> region_count_{0};  // publishes regions_[0, count)
  std::atomic<unsigned> hint_shift_{64 - least_hints_power};
  std::atomic<extent*>* hints_ = nullptr;   // room for 2^most_hints_power, lazily touched
  std::atomic<extent*>* chunks_ = nullptr;  // room for most_.records, lazily touched
  std::array<region, max_regions> regions_;
  alignas(64) std::uint32_t next_id_ = 0;
  extent* unused_ = nullptr;
  std::size_t unused_count_ = 0, aside_ = 0;
  stock<few, few_at_once> fews_;
  stock<page, pages_at_once> pages_;
  region prepared_;  // its base is not known yet
  const limits most_;
};

}  // namespace millpond::heap
