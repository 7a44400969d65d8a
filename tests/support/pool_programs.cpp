// Programs for the pool's model: made from seeds, shrunk, written and read.
#include <algorithm>
#include <array>
#include <istream>
#include <ostream>

#include "base/random.hpp"
#include "millpond/base/units.hpp"
#include "support/pool_model.hpp"

namespace millpond::model {

const char* to_string(rule which) noexcept {
  switch (which) {
    case rule::order: return "order: memory that another stream had freed was handed out";
    case rule::own_order:
      return "order: memory was handed out again at once on the stream that freed it";
    case rule::identity: return "identity: a destroyed stream's handle came back";
    case rule::special_handles:
      return "special handles: calls on the null, legacy and per-thread streams";
    case rule::other_uses:
      return "other uses: a block was freed that record_use had named streams for";
    case rule::capture_calls: return "capture: calls of the pool while another stream captured";
    case rule::capture_memory:
      return "capture: a graph was launched beside the program's own blocks";
    case rule::shared_arena: return "capture: a graph took over memory of an arena";
    case rule::aborted: return "capture: one was broken half-way and gave everything back";
    case rule::dead_streams: return "dead streams: one was destroyed that had freed blocks";
    case rule::locks: return "locks: the pressure callback freed into the pool";
    case rule::no_device_waits: return "no device-wide waits: calls served without one";
    case rule::mappings:
      return "mappings: memory went back to the driver while other memory was in use";
    case rule::kinds: return "kinds: a wrong free was refused and its block unharmed";
    case rule::ends: return "ends: a pool ended with everything given back";
    case rule::forks: return "ends: a forked child was refused";
    case rule::zero_and_null:
      return "zero and null: asked for nothing, freed nothing, wrong alignments";
    case rule::failure: return "failure: a driver call failed under an allocation";
    case rule::no_overlap: return "no overlap: a block was compared with its neighbours";
    case rule::count_: break;
  }
  return "";
}

settings settings_of(std::uint64_t seed) {
  settings out;
  out.reuse = seed % 5 == 0   ? reuse_policy::same_stream
              : seed % 5 == 1 ? reuse_policy::may_wait
                              : reuse_policy::idle;
  if (seed % 3 == 0) out.limit_bytes = 512 * MiB;
  return out;
}

program generate(std::uint64_t seed, std::size_t length) {
  random numbers(seed);
  program out;
  const std::uint64_t largest = 10 + numbers.below(17);
  // Weights: mostly memory, then work, now and then what upsets everything.
  constexpr std::array<std::uint32_t, static_cast<std::size_t>(action::count_)> weights{
      400, 260, 60, 160, 40, 60, 10, 20, 12, 18, 20, 10, 4, 2, 6, 10, 4, 1};
  std::uint32_t total = 0;
  for (const std::uint32_t w : weights) total += w;
  while (out.size() < length) {
    operation op;
    std::uint64_t at = numbers.below(total);
    std::size_t what = 0;
    while (at >= weights[what]) at -= weights[what++];
    op.what = static_cast<action>(what);
    op.thread = static_cast<std::uint32_t>(numbers.below(threads));
    op.stream = static_cast<std::uint32_t>(numbers.below(1000));
    op.other = static_cast<std::uint32_t>(numbers.below(1000));
    op.amount = 1 + numbers.below(std::uint64_t{1} << (4 + numbers.below(largest)));
    if (op.what == action::trim) op.amount = numbers.below(3) * 64 * MiB;
    out.push_back(op);
  }
  return out;
}

program shrink(program failing, const settings& how, int tries) {
  // Delta debugging: leave out ever smaller stretches while what remains still fails.
  std::size_t stretch = std::max<std::size_t>(1, failing.size() / 2);
  while (tries > 0) {
    bool shorter = false;
    for (std::size_t at = 0; at < failing.size() && tries > 0;) {
      program without = failing;
      without.erase(
          without.begin() + static_cast<std::ptrdiff_t>(at),
          without.begin() + static_cast<std::ptrdiff_t>(std::min(failing.size(), at + stretch)));
      --tries;
      if (!run(without, how).failure.empty()) {
        failing = std::move(without);
        shorter = true;
      } else {
        at += stretch;
      }
    }
    if (stretch == 1 && !shorter) break;
    stretch = std::max<std::size_t>(1, stretch / 2);
  }
  return failing;
}

void write(std::ostream& to, std::uint64_t seed, const program& of) {
  to << "millpond pool program 1\nseed " << seed << "\n";
  for (const operation& op : of) {
    to << static_cast<unsigned>(op.what) << ' ' << op.thread << ' ' << op.stream << ' ' << op.other
       << ' ' << op.amount << '\n';
  }
}

bool read(std::istream& from, std::uint64_t* seed, program* out) {
  std::string line;
  std::string word;
  if (!std::getline(from, line) || line != "millpond pool program 1" || !(from >> word >> *seed) ||
      word != "seed")
    return false;
  unsigned what = 0;
  operation op;
  while (from >> what >> op.thread >> op.stream >> op.other >> op.amount) {
    if (what >= static_cast<unsigned>(action::count_)) return false;
    op.what = static_cast<action>(what);
    out->push_back(op);
  }
  return from.eof();
}

}  // namespace millpond::model
