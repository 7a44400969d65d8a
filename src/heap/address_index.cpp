#include "heap/address_index.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "base/bits.hpp"
#include "base/check.hpp"

namespace millpond::heap {

namespace {

// Zero and untouched until used: null pointers by the million at no cost. nullptr where the host
// has no addresses for it.
[[nodiscard]] void* untouched(std::uint64_t bytes) noexcept {
  void* const out = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return out == MAP_FAILED ? nullptr : out;
}

void unmap(void* at, std::uint64_t bytes) noexcept {
  if (at != nullptr) ::munmap(at, bytes);
}

}  // namespace

address_index::address_index(const limits& most)
    : most_{most.records, std::min<std::uint32_t>(most.regions, max_regions)} {
  void* const hints = untouched(sizeof(*hints_) << most_hints_power);
  const std::uint64_t chunk_bytes = divide_up(most_.records, chunk_records) * sizeof(*chunks_);
  void* const chunks = untouched(chunk_bytes);
  if (hints == nullptr || chunks == nullptr) {
    unmap(hints, sizeof(*hints_) << most_hints_power);
    unmap(chunks, chunk_bytes);
    throw std::bad_alloc();
  }
  hints_ = static_cast<std::atomic<extent*>*>(hints);
  chunks_ = static_cast<std::atomic<extent*>*>(chunks);
}

address_index::~address_index() {
  for (std::size_t i = 0; i < next_id_ / chunk_records; ++i) {
    delete[] chunks_[i].load(std::memory_order_relaxed);
  }
  unmap(chunks_, divide_up(most_.records, chunk_records) * sizeof(*chunks_));
  unmap(hints_, sizeof(*hints_) << most_hints_power);
  unmap(prepared_.root, prepared_.mapped);
  for (std::uint32_t i = 0; i < region_count_.load(std::memory_order_relaxed); ++i) {
    unmap(regions_[i].root, regions_[i].mapped);
  }
}

refusal address_index::prepare_region(std::uint64_t bytes) noexcept {
  if (full()) return refusal::regions;
  MILLPOND_CHECK(is_aligned(bytes, page_bytes) && bytes > 0, bytes);
  if (prepared_.bytes == bytes) return refusal::none;
  unmap(prepared_.root, prepared_.mapped);
  prepared_ = {};
  std::uint64_t width = bytes >> page_shift;
  std::uint64_t total = width * sizeof(std::atomic<std::uintptr_t>);
  std::array<std::uint64_t, 4> at{};
  for (std::uint64_t& start : at) {
    width = divide_up(width, 64);
    start = total;
    total += width * 8;
  }
  void* const root = untouched(total);
  if (root == nullptr) return refusal::host_memory;
  region& r = prepared_;
  r.bytes = bytes;
  r.root = static_cast<std::atomic<std::uintptr_t>*>(root);
  r.mapped = total;
  for (std::size_t level = 0; level < at.size(); ++level) {
    r.levels[level] = reinterpret_cast<std::uint64_t*>(static_cast<char*>(root) + at[level]);
  }
  return refusal::none;
}

void address_index::add_prepared_region(std::uint64_t base) noexcept {
  MILLPOND_CHECK(is_aligned(base, page_bytes) && prepared_.bytes > 0, base);
  const std::uint32_t count = region_count_.load(std::memory_order_relaxed);
  regions_[count] = prepared_;
  regions_[count].base = base;
  prepared_ = {};
  region_count_.store(count + 1, std::memory_order_release);
}

// What was made before a refusal stays at hand.
refusal address_index::provide_more(std::size_t inserts) noexcept {
  try {
    while (unused_count_ < inserts + aside_) {
      if (next_id_ + chunk_records > most_.records) return refusal::records;
      add_chunk();
    }
    while (fews_.left() < inserts) fews_.add();
    while (pages_.left() < inserts) pages_.add();
  } catch (const std::bad_alloc&) {
    return refusal::host_memory;
  }
  return refusal::none;
}

void address_index::add_chunk() {
  auto* const records = new extent[chunk_records];
  chunks_[next_id_ / chunk_records].store(records, std::memory_order_release);
  for (std::uint32_t i = chunk_records; i-- > 0;) {
    records[i].id = next_id_ + i;
    if (records[i].id == 0) continue;  // id 0 means none
    records[i].bin_after = unused_;
    unused_ = &records[i];
    ++unused_count_;
  }
  next_id_ += chunk_records;
  if (hints_a_record * next_id_ > hint_count()) spread_hints();
}

extent* address_index::new_extent() noexcept {
  extent* const out = unused_;
  MILLPOND_CHECK(out != nullptr, next_id_);  // the caller has provided for it
  unused_ = out->bin_after;
  --unused_count_;
  out->bin_after = nullptr;
  return out;
}

void address_index::delete_extent(extent* of) noexcept {
  of->at.store(0, std::memory_order_relaxed);
  of->bytes = 0;
  of->state = extent_state::unused;
  of->before = of->after = of->bin_before = of->link = nullptr;
  of->holder = nullptr;
  of->holder_note = 0;
  of->holder_state.store(0, std::memory_order_relaxed);
  of->bin_after = unused_;
  unused_ = of;
  ++unused_count_;
}

std::uint64_t address_index::metadata_bytes() const noexcept {
  std::uint64_t bytes = next_id_ * sizeof(extent) + pages_.touched_bytes() + fews_.touched_bytes() +
                        hint_count() * sizeof(*hints_);
  for (std::uint32_t i = 0; i < region_count_.load(std::memory_order_relaxed); ++i) {
    bytes += regions_[i].touched * sizeof(*regions_[i].root);
  }
  return bytes;
}

// Twice as many hints, in place: what was at i belongs at 2i or behind it now, so the last goes
// first. Who looks meanwhile may miss one and walks.
void address_index::spread_hints() noexcept {
  const std::size_t count = hint_count();
  const unsigned shift = hint_shift_.load(std::memory_order_relaxed);
  if (shift == 64 - most_hints_power) return;
  hint_shift_.store(shift - 1, std::memory_order_relaxed);
  for (std::size_t i = count; i-- > 0;) {
    extent* const of = hints_[i].exchange(nullptr, std::memory_order_relaxed);
    if (of != nullptr && of->start() != 0) note(of);
  }
}

void address_index::put_in(page& in, std::uint64_t slot, std::uint32_t id) noexcept {
  in.bits[slot / 64] |= std::uint64_t{1} << (slot % 64);
  in.slots[slot].store(id, std::memory_order_release);
}

void address_index::mark(const region& in, std::uint64_t index) noexcept {
  for (std::uint64_t* const level : in.levels) {
    std::uint64_t& word = level[index / 64];
    const bool known = word != 0;
    word |= std::uint64_t{1} << (index % 64);
    if (known) break;
    index /= 64;
  }
}

void address_index::unmark(const region& in, std::uint64_t index) noexcept {
  for (std::uint64_t* const level : in.levels) {
    std::uint64_t& word = level[index / 64];
    word &= ~(std::uint64_t{1} << (index % 64));
    if (word != 0) break;
    index /= 64;
  }
}

void address_index::insert(extent* of) noexcept {
  const std::uint64_t start = of->start();
  region* const r = region_of(start);
  MILLPOND_CHECK(r != nullptr, start);
  const std::uint64_t offset = start - r->base;
  const std::uint64_t index = offset >> page_shift;
  std::atomic<std::uintptr_t>& entry = r->root[index];
  const std::uintptr_t there = entry.load(std::memory_order_relaxed);
  if (there == 0) {
    if (r->touched <= index) r->touched = index + 1;
    entry.store(reinterpret_cast<std::uintptr_t>(of), std::memory_order_release);
    mark(*r, index);
    return;
  }
  const std::uint64_t slot = slot_of(offset);
  if ((there & form) == is_page) {
    page& p = *page_in(there);
    const bool was_empty = (p.bits[0] | p.bits[1]) == 0;
    put_in(p, slot, of->id);
    if (was_empty) mark(*r, index);
    return;
  }
  // What is looked up without the lock is found in the old form and in the new one.
  if ((there & form) == is_extent) {
    few& made = fews_.take();
    const extent* const first = extent_in(there);
    made.words[0].store(few::word_of(slot_of(first->start() - r->base), first),
                        std::memory_order_relaxed);
    made.words[1].store(few::word_of(slot, of), std::memory_order_relaxed);
    entry.store(reinterpret_cast<std::uintptr_t>(&made) | is_few, std::memory_order_release);
    return;
  }
  few& f = *few_in(there);
  std::atomic<std::uint64_t>* room = nullptr;
  bool was_empty = true;
  for (auto& word : f.words) {
    if (word.load(std::memory_order_relaxed) == 0)
      room = &word;
    else
      was_empty = false;
  }
  if (room != nullptr) {
    room->store(few::word_of(slot, of), std::memory_order_release);
    if (was_empty) mark(*r, index);
    return;
  }
  page& made = pages_.take();
  for (const auto& word : f.words) {
    const std::uint64_t each = word.load(std::memory_order_relaxed);
    put_in(made, each >> few::slot_shift, few::extent_in(each)->id);
  }
  put_in(made, slot, of->id);
  entry.store(reinterpret_cast<std::uintptr_t>(&made) | is_page, std::memory_order_release);
}

void address_index::erase(std::uint64_t start) noexcept {
  region* const r = region_of(start);
  MILLPOND_CHECK(r != nullptr, start);
  const std::uint64_t offset = start - r->base;
  const std::uint64_t index = offset >> page_shift;
  const std::uint64_t slot = slot_of(offset);
  const std::uintptr_t there = r->root[index].load(std::memory_order_relaxed);
  MILLPOND_CHECK(there != 0, start);
  if ((there & form) == is_extent) {
    MILLPOND_CHECK(extent_in(there)->start() == start, start);
    r->root[index].store(0, std::memory_order_release);
    unmark(*r, index);
  } else if ((there & form) == is_few) {
    bool empty = true;
    for (auto& word : few_in(there)->words) {
      const std::uint64_t each = word.load(std::memory_order_relaxed);
      if (each == 0) continue;
      if (each >> few::slot_shift == slot)
        word.store(0, std::memory_order_release);
      else
        empty = false;
    }
    if (empty) unmark(*r, index);
  } else {
    page& p = *page_in(there);
    p.slots[slot].store(0, std::memory_order_release);
    p.bits[slot / 64] &= ~(std::uint64_t{1} << (slot % 64));
    if ((p.bits[0] | p.bits[1]) == 0) unmark(*r, index);
  }
}

extent* address_index::last_in(const region& in, std::uintptr_t entry,
                               std::uint64_t slot) const noexcept {
  if (entry == 0) return nullptr;
  if ((entry & form) == is_extent) {
    extent* const only = extent_in(entry);
    return slot_of(only->start() - in.base) <= slot ? only : nullptr;
  }
  if ((entry & form) == is_few) {
    std::uint64_t last = 0;
    for (const auto& word : few_in(entry)->words) {
      const std::uint64_t each = word.load(std::memory_order_relaxed);
      if (each != 0 && each >> few::slot_shift <= slot && each > last) last = each;
    }
    return few::extent_in(last);
  }
  const page& p = *page_in(entry);
  for (std::uint64_t word = slot / 64 + 1; word-- > 0;) {
    std::uint64_t bits = p.bits[word];
    if (word == slot / 64) bits &= ~std::uint64_t{0} >> (63 - slot % 64);
    if (bits != 0) return at(p.slots[word * 64 + floor_log2(bits)].load(std::memory_order_relaxed));
  }
  return nullptr;
}

extent* address_index::covering(std::uint64_t address) const {
  const region* const r = region_of(address);
  if (r == nullptr) return nullptr;
  const std::uint64_t offset = address - r->base;
  std::uint64_t index = offset >> page_shift;
  if (extent* const here =
          last_in(*r, r->root[index].load(std::memory_order_relaxed), slot_of(offset)))
    return here;
  // Up the summaries until one has something before us, then down to the last start of it.
  for (std::size_t level = 0; level < r->levels.size(); ++level) {
    const std::uint64_t mask = (std::uint64_t{1} << (index % 64)) - 1;
    const std::uint64_t before = r->levels[level][index / 64] & mask;
    if (before == 0) {
      index /= 64;
      continue;
    }
    std::uint64_t place = index / 64 * 64 + floor_log2(before);
    while (level > 0) {
      --level;
      place = place * 64 + floor_log2(r->levels[level][place]);
    }
    return last_in(*r, r->root[place].load(std::memory_order_relaxed), slots_a_page - 1);
  }
  return nullptr;
}

}  // namespace millpond::heap
