// soak --minutes N [--seed S] | --replay FILE: random programs on the simulated GPU until the time
// is over.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <string>

#include "support/pool_model.hpp"

namespace {

using millpond::model::outcome;
using millpond::model::program;

int tell(std::uint64_t seed, const outcome& result) {
  if (result.failure.empty()) return 0;
  std::cout << "seed " << seed << ", operation " << result.failed_at << ": " << result.failure
            << "\n";
  return 1;
}

int replay(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t seed = 0;
  program of;
  if (!millpond::model::read(file, &seed, &of)) {
    std::cerr << path << ": not a program of the pool's model\n";
    return 3;
  }
  const int status = tell(seed, run(of, millpond::model::settings_of(seed)));
  if (status == 0) std::cout << of.size() << " operations, 0 violations\n";
  return status;
}

int soak(double minutes, std::uint64_t seed) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(minutes * 60);
  const std::uint64_t first = seed;
  std::uint64_t operations = 0, refused = 0, violations = 0;
  millpond::model::coverage covered{};
  auto reported = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() < end) {
    const program of = millpond::model::generate(seed, 2000);
    const auto how = millpond::model::settings_of(seed);
    const outcome result = run(of, how);
    operations += result.operations;
    refused += result.refused;
    for (std::size_t i = 0; i < covered.size(); ++i) covered[i] += result.covered[i];
    if (tell(seed, result) != 0) {
      ++violations;
      const std::string path = "failing_pool_program_" + std::to_string(seed) + ".txt";
      std::ofstream file(path);
      write(file, seed, shrink(of, how, 300));
      std::cout << "  shrunk into " << path << "; again: soak --replay " << path << "\n";
      if (violations == 10) break;
    }
    ++seed;
    if (std::chrono::steady_clock::now() - reported > std::chrono::seconds(10)) {
      reported = std::chrono::steady_clock::now();
      std::cout << operations << " operations, seed " << seed << std::endl;
    }
  }
  std::cout << operations << " operations (allocations and frees), " << refused
            << " refused for want of memory\n"
            << "seeds " << first << " to " << seed - 1 << "\n"
            << "rules covered, and how often a broken one would have shown:\n";
  for (std::size_t i = 0; i < covered.size(); ++i) {
    std::cout << std::setw(12) << covered[i] << "  "
              << to_string(static_cast<millpond::model::rule>(i)) << "\n";
  }
  // A rule that nothing tried is not kept, it is untested.
  const auto untried = std::count(covered.begin(), covered.end(), std::uint64_t{0});
  if (untried > 0) std::cout << untried << " rules were not tried: run it longer\n";
  std::cout << violations << " violations\n";
  return violations == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  double minutes = 1;
  std::uint64_t seed = 1;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string word = words[i];
    if (word == "--minutes")
      minutes = std::atof(words[i + 1]);
    else if (word == "--seed")
      seed = std::strtoull(words[i + 1], nullptr, 10);
    else if (word == "--replay")
      return replay(words[i + 1]);
    else
      count = -1;
  }
  if (count < 0 || count % 2 == 0 || minutes <= 0) {
    std::cerr << "usage: soak [--minutes N] [--seed S] | --replay FILE\n";
    return 2;
  }
  return soak(minutes, seed);
}
