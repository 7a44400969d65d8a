// What is summed over a picture's blocks once all are known.
#pragma once
#include "report/picture.hpp"

namespace millpond::report {

// Groups of a stacked chart: so many are distinguished, and one more stands for the rest.
inline constexpr std::size_t shown_apart = 7;

// Fills the peaks, the order of sites and streams, the regions, bins, fragmentation and lifetimes.
void sum_up(picture& of, const picture_options& options);

}  // namespace millpond::report
