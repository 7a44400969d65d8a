// One level of translation buffer: so many entries, the least recently used goes first.
#pragma once
#include <cstdint>
#include <list>
#include <unordered_map>

namespace millpond::sim::pages {

class tlb {
 public:
  explicit tlb(unsigned entries) : entries_(entries) { index_.reserve(entries); }
  // A translation: the page's number among pages of its size, the size, and the generation of its
  // block when the translation was made. An older generation's entry is void.
  struct key {
    std::uint64_t page = 0;
    std::uint32_t bytes = 0;
    std::uint64_t generation = 0;
  };
  // Whether it is there. It is the most recently used one then.
  bool find(const key& wanted) {
    const auto found = index_.find(name_of(wanted));
    if (found == index_.end()) return false;
    if (found->second->generation != wanted.generation) {
      order_.erase(found->second);
      index_.erase(found);
      return false;
    }
    order_.splice(order_.begin(), order_, found->second);
    return true;
  }
  void put(const key& made) {
    const std::uint64_t name = name_of(made);
    if (const auto found = index_.find(name); found != index_.end()) {
      found->second->generation = made.generation;
      order_.splice(order_.begin(), order_, found->second);
      return;
    }
    if (index_.size() == entries_) {
      index_.erase(order_.back().name);
      order_.splice(order_.begin(), order_, std::prev(order_.end()));
      order_.front() = {name, made.generation};
    } else {
      order_.push_front({name, made.generation});
    }
    index_[name] = order_.begin();
  }

 private:
  // Pages of the sizes that exist differ in two low bits.
  static std::uint64_t name_of(const key& k) noexcept {
    return k.page << 2 | (k.bytes >= (2u << 20) ? 2u : k.bytes >= (64u << 10) ? 1u : 0u);
  }
  struct entry {
    std::uint64_t name = 0;
    std::uint64_t generation = 0;
  };
  unsigned entries_;
  std::list<entry> order_;
  std::unordered_map<std::uint64_t, std::list<entry>::iterator> index_;
};

}  // namespace millpond::sim::pages
