// Planning problems of any size from a seed: for tests and benchmarks, and to tune on nothing
// published.
#pragma once
#include <cstdint>

#include "plan/problem.hpp"

namespace millpond::plan {

struct generate_options {
  std::uint64_t seed = 1;
  std::uint64_t buffers = 1000;
  std::uint64_t steps = 1000;  // times are below this
  std::uint64_t capacity =
      1 << 20;  // bytes, of the perfect ones; sizes of the others are a small part of it
};

// A rectangle of steps x capacity cut into buffers by straight cuts: a plan without a wasted byte
// exists, and the lower bound is the capacity at every time. The hardest sort. `buffers` at most
// steps * capacity / 4096.
[[nodiscard]] problem generate_perfect(const generate_options& options);

// A perfect one with some of its buffers left out: slack in places, as in a real accelerator's
// program.
[[nodiscard]] problem generate_loose(const generate_options& options);

// Independent random lifetimes, most of them short, and log-uniform sizes.
[[nodiscard]] problem generate_random(const generate_options& options);

// A training step: activations that live from the forward to the backward of their layer, with
// temporaries in both, a few sizes in all.
[[nodiscard]] problem generate_training(const generate_options& options);

}  // namespace millpond::plan
