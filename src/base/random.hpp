// A small seeded generator. The same seed gives the same numbers on every machine, which the
// distributions of <random> do not promise.
#pragma once
#include <cmath>
#include <cstdint>

namespace millpond {

// splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
__extension__ using uint128 = unsigned __int128;

class random {
 public:
  explicit constexpr random(std::uint64_t seed) noexcept : state_(seed) {}
  constexpr std::uint64_t next() noexcept {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  // Uniform in [0, bound); bound > 0.
  constexpr std::uint64_t below(std::uint64_t bound) noexcept {
    return static_cast<std::uint64_t>((static_cast<uint128>(next()) * bound) >> 64);
  }
  // Uniform in [low, high].
  constexpr std::uint64_t between(std::uint64_t low, std::uint64_t high) noexcept {
    return low + below(high - low + 1);
  }
  // Uniform in [0, 1).
  double unit() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }
  bool chance(double probability) noexcept { return unit() < probability; }
  // Log-uniform in [low, high].
  std::uint64_t log_uniform(std::uint64_t low, std::uint64_t high) noexcept {
    const double a = std::log(static_cast<double>(low));
    const double b = std::log(static_cast<double>(high));
    return static_cast<std::uint64_t>(std::exp(a + (b - a) * unit()));
  }

 private:
  std::uint64_t state_;
};

}  // namespace millpond
