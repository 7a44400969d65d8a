#include "driver/sim/pages/block.hpp"

#include <algorithm>
#include <array>

namespace millpond::sim::pages {

std::size_t big_pages_of(const page_mask& pages) noexcept {
  std::size_t found = 0;
  for (unsigned first = 0; first < pages_a_block; first += pages_a_big_page) {
    found += (pages & mask_of(first, first + pages_a_big_page)).any() ? 1 : 0;
  }
  return found;
}

page_mask grow_by_density(const page_mask& faulted, const page_mask& there, unsigned pages,
                          unsigned percent) noexcept {
  constexpr unsigned leaves = pages_a_block / pages_a_big_page;
  page_mask wanted;
  std::array<bool, leaves> leaf_faulted{};
  for (unsigned leaf = 0; leaf < leaves; ++leaf) {
    const unsigned first = leaf * pages_a_big_page;
    if (first >= pages) break;
    const page_mask whole = mask_of(first, std::min(pages, first + pages_a_big_page));
    if ((faulted & whole).none()) continue;
    leaf_faulted[leaf] = true;
    wanted |= whole;
  }
  const page_mask seen = wanted | there;
  page_mask grown = wanted;
  for (unsigned leaf = 0; leaf < leaves; ++leaf) {
    if (!leaf_faulted[leaf]) continue;
    for (unsigned width = leaves; width > 1; width /= 2) {
      const unsigned first = leaf / width * width * pages_a_big_page;
      const unsigned last = std::min(pages, first + width * pages_a_big_page);
      if (first >= last) continue;
      const page_mask subtree = mask_of(first, last);
      if ((seen & subtree).count() * 100 > std::size_t{percent} * (last - first)) {
        grown |= subtree;
        break;  // the largest one holds the smaller ones
      }
    }
  }
  return grown;
}

}  // namespace millpond::sim::pages
