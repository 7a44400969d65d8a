// Findings while they are being found: one for each flaw and pair of places, however often it
// happens.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "advise/finding.hpp"

namespace millpond::advise {

class finding_list {
 public:
  static constexpr std::size_t most_events = 8;
  // Different places of one flaw that are distinguished; what comes after them is counted with the
  // last one.
  static constexpr std::size_t most_of_a_flaw = 50;

  struct entry {
    finding& of;
    bool is_new;
  };
  // The finding of this flaw at these two places, counted up by one, with the event among its
  // evidence.
  entry add(flaw which, std::uint64_t call_site, std::uint64_t other_call_site,
            std::uint64_t event) {
    auto& number = numbers_[static_cast<std::size_t>(which)];
    key mine(which, call_site, other_call_site);
    if (!index_.contains(mine) && number >= most_of_a_flaw)
      mine = last_[static_cast<std::size_t>(which)];
    const auto [at, is_new] = index_.try_emplace(mine, findings_.size());
    if (is_new) {
      ++number;
      last_[static_cast<std::size_t>(which)] = mine;
      finding& made = findings_.emplace_back();
      made.which = which;
      made.how_bad = facts_of(which).how_bad;
    }
    finding& found = findings_[at->second];
    ++found.count;
    if (found.events.size() < most_events &&
        (found.events.empty() || found.events.back() != event)) {
      found.events.push_back(event);
    }
    return {found, is_new};
  }
  template <class Change>
  void each(flaw which, Change&& change) {
    for (finding& one : findings_) {
      if (one.which == which) change(one);
    }
  }
  [[nodiscard]] bool any(flaw which) const noexcept {
    return numbers_[static_cast<std::size_t>(which)] > 0;
  }
  [[nodiscard]] std::vector<finding> take() { return std::move(findings_); }

 private:
  using key = std::tuple<flaw, std::uint64_t, std::uint64_t>;
  std::vector<finding> findings_;
  std::map<key, std::size_t> index_;
  std::size_t numbers_[flaw_count] = {};
  key last_[flaw_count] = {};
};

}  // namespace millpond::advise
