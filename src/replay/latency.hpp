// Call times in buckets: 64 to a doubling, so that a percentile is off by less than 1.6% whatever
// the number of calls; below 64 ns, the largest value and the sum are exact.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/bits.hpp"

namespace millpond::replay {

class latency_histogram {
 public:
  void add(double nanoseconds) {
    const auto whole = static_cast<std::uint64_t>(std::llround(std::max(0.0, nanoseconds)));
    const std::size_t at = bucket_of(whole);
    if (at >= counts_.size()) counts_.resize(at + 1);
    ++counts_[at];
    ++count_;
    sum_ns_ += nanoseconds;
    max_ns_ = std::max(max_ns_, nanoseconds);
  }
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  [[nodiscard]] double sum_ns() const noexcept { return sum_ns_; }
  [[nodiscard]] double mean_ns() const noexcept {
    return count_ == 0 ? 0 : sum_ns_ / static_cast<double>(count_);
  }
  [[nodiscard]] double max_ns() const noexcept { return max_ns_; }
  // The value that `share` (0 to 1) of the calls do not exceed; 0 when there were none.
  [[nodiscard]] double percentile_ns(double share) const noexcept {
    if (count_ == 0) return 0;
    const double wanted = share * static_cast<double>(count_);
    std::uint64_t seen = 0;
    for (std::size_t at = 0; at < counts_.size(); ++at) {
      seen += counts_[at];
      if (seen == count_) return max_ns_;  // among the last: the largest is the best known of them
      if (static_cast<double>(seen) >= wanted && seen > 0) {
        return std::min(max_ns_, middle_of(at));
      }
    }
    return max_ns_;
  }

  // Calls visit(nanoseconds, count) for each bucket that has calls, in growing order.
  template <class Visit>
  void for_each_bucket(Visit&& visit) const {
    for (std::size_t at = 0; at < counts_.size(); ++at) {
      if (counts_[at] > 0) visit(middle_of(at), counts_[at]);
    }
  }

 private:
  static constexpr unsigned sub_bits = 6;
  static std::size_t bucket_of(std::uint64_t value) noexcept {
    const unsigned top = floor_log2(value);
    if (top < sub_bits) return static_cast<std::size_t>(value);
    const unsigned shift = top - sub_bits;
    return (static_cast<std::size_t>(shift + 1) << sub_bits) +
           static_cast<std::size_t>((value >> shift) - (std::uint64_t{1} << sub_bits));
  }
  static double middle_of(std::size_t bucket) noexcept {
    if (bucket < (std::size_t{1} << sub_bits)) return static_cast<double>(bucket);
    const unsigned shift = static_cast<unsigned>(bucket >> sub_bits) - 1;
    const std::uint64_t low = ((std::uint64_t{1} << sub_bits) + (bucket & ((1u << sub_bits) - 1)))
                              << shift;
    return static_cast<double>(low) + static_cast<double>((std::uint64_t{1} << shift) - 1) / 2;
  }

  std::vector<std::uint64_t> counts_;
  std::uint64_t count_ = 0;
  double sum_ns_ = 0;
  double max_ns_ = 0;
};

}  // namespace millpond::replay
