// Findings while they are being found: one for each flaw and pair of places, however often it
// happens. Whoever adds to one sums, and never sets: past the limit one finding stands for many
// places.
#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "advise/finding.hpp"

namespace millpond::advise {

class finding_list {
 public:
  static constexpr std::size_t most_events = 8;
  // Different places of one flaw that are distinguished; what comes after them is summed in one
  // more.
  static constexpr std::size_t most_of_a_flaw = 1000;

  struct entry {
    finding& of;
    bool is_new;
  };
  // The finding of this flaw at these two places, counted up, with the event among its evidence.
  entry add(flaw which, std::uint64_t call_site, std::uint64_t other_call_site, std::uint64_t event,
            std::uint64_t count = 1) {
    auto& number = numbers_[static_cast<std::size_t>(which)];
    key mine(which, call_site, other_call_site);
    if (!index_.contains(mine) && number >= most_of_a_flaw) mine = rest_of(which);
    const auto [at, is_new] = index_.try_emplace(mine, findings_.size());
    if (is_new) {
      ++number;
      finding& made = findings_.emplace_back();
      made.which = which;
      made.how_bad = facts_of(which).how_bad;
    }
    finding& found = findings_[at->second];
    found.count += count;
    if (found.events.size() < most_events &&
        (found.events.empty() || found.events.back() != event)) {
      found.events.push_back(event);
    }
    return {found, is_new};
  }
  // One that was added with these places.
  [[nodiscard]] finding& find(flaw which, std::uint64_t call_site, std::uint64_t other_call_site) {
    const auto mine = index_.find(key(which, call_site, other_call_site));
    return findings_[mine != index_.end() ? mine->second : index_.at(rest_of(which))];
  }
  template <class Change>
  void each(flaw which, Change&& change) {
    for (finding& one : findings_) {
      if (one.which == which) change(one);
    }
  }
  // take() leaves out what has a count of 0.
  static void leave_out(finding& of) noexcept { of.count = 0; }
  [[nodiscard]] bool any(flaw which) const noexcept {
    return numbers_[static_cast<std::size_t>(which)] > 0;
  }
  // All of them; a finding for the places past the limit says what it is.
  [[nodiscard]] std::vector<finding> take() {
    for (int which = 0; which < flaw_count; ++which) {
      const auto rest = index_.find(rest_of(static_cast<flaw>(which)));
      if (rest == index_.end()) continue;
      finding& made = findings_[rest->second];
      made.summary = "All other places together; the first of them: " + made.summary;
    }
    std::erase_if(findings_, [](const finding& each) { return each.count == 0; });
    return std::move(findings_);
  }

 private:
  using key = std::tuple<flaw, std::uint64_t, std::uint64_t>;
  [[nodiscard]] static key rest_of(flaw which) {
    constexpr std::uint64_t no_call_site = std::numeric_limits<std::uint64_t>::max();
    return {which, no_call_site, no_call_site};
  }
  std::vector<finding> findings_;
  std::map<key, std::size_t> index_;
  std::size_t numbers_[flaw_count] = {};
};

}  // namespace millpond::advise
