#include "plan/generate.hpp"

#include <algorithm>
#include <queue>

#include "base/random.hpp"

namespace millpond::plan {
namespace {

struct rectangle {
  std::uint64_t left, right, bottom, top;
  [[nodiscard]] std::uint64_t area() const { return (right - left) * (top - bottom); }
};

buffer make(std::size_t number, std::uint64_t lower, std::uint64_t upper, std::uint64_t size) {
  buffer b;
  b.id = std::to_string(number);
  b.lower = static_cast<std::int64_t>(lower);
  b.upper = static_cast<std::int64_t>(upper);
  b.size = size;
  return b;
}

// Cuts the largest rectangle again and again, in a random direction and place.
std::vector<rectangle> cut(const generate_options& options, random& any) {
  constexpr std::uint64_t grain = 64;  // bytes: heights are multiples, as real sizes are
  const auto smaller = [](const rectangle& a, const rectangle& b) { return a.area() < b.area(); };
  std::priority_queue<rectangle, std::vector<rectangle>, decltype(smaller)> open(smaller);
  std::vector<rectangle> done;
  open.push({0, options.steps, 0, options.capacity / grain});
  while (!open.empty() && open.size() + done.size() < options.buffers) {
    const rectangle r = open.top();
    open.pop();
    const bool tall = r.top - r.bottom > 1;
    const bool wide = r.right - r.left > 1;
    if (!tall && !wide) {
      done.push_back(r);
      continue;
    }
    rectangle a = r;
    rectangle b = r;
    if (wide && (!tall || any.chance(0.5)))
      a.right = b.left = any.between(r.left + 1, r.right - 1);
    else
      a.top = b.bottom = any.between(r.bottom + 1, r.top - 1);
    open.push(a);
    open.push(b);
  }
  for (; !open.empty(); open.pop()) done.push_back(open.top());
  for (rectangle& r : done) r.bottom *= grain, r.top *= grain;
  return done;
}

// The order must tell nothing of the plan.
template <class T>
void shuffle(std::vector<T>& of, random& any) {
  for (std::size_t i = of.size(); i > 1; --i) std::swap(of[i - 1], of[any.below(i)]);
}

problem from_rectangles(std::vector<rectangle> cuts, random& any) {
  shuffle(cuts, any);
  problem out;
  for (const rectangle& r : cuts)
    out.buffers.push_back(make(out.buffers.size(), r.left, r.right, r.top - r.bottom));
  return out;
}

}  // namespace

problem generate_perfect(const generate_options& options) {
  random any(options.seed);
  problem out = from_rectangles(cut(options, any), any);
  out.capacity = options.capacity;
  return out;
}

problem generate_loose(const generate_options& options) {
  random any(options.seed);
  std::vector<rectangle> cuts = cut(options, any);
  std::erase_if(cuts, [&](const rectangle&) { return any.chance(0.07); });
  problem out = from_rectangles(std::move(cuts), any);
  out.capacity = options.capacity;
  return out;
}

problem generate_random(const generate_options& options) {
  random any(options.seed);
  problem out;
  for (std::uint64_t i = 0; i < options.buffers; ++i) {
    const std::uint64_t lower = any.below(options.steps);
    const std::uint64_t length = any.log_uniform(1, std::max<std::uint64_t>(options.steps / 4, 2));
    out.buffers.push_back(make(i, lower, std::min(lower + length, options.steps + 1),
                               any.log_uniform(64, options.capacity / 16)));
  }
  return out;
}

problem generate_training(const generate_options& options) {
  random any(options.seed);
  std::vector<std::uint64_t> sizes;
  sizes.reserve(24);
  for (int k = 0; k < 24; ++k)
    sizes.push_back(any.log_uniform(512, options.capacity / 16) / 512 * 512 + 512);
  problem out;
  const std::uint64_t each =
      std::max<std::uint64_t>(options.buffers / 4, 1);  // per forward layer: two kept, two not
  for (std::uint64_t layer = 0; layer < each; ++layer) {
    const std::uint64_t forward = layer * 2;
    const std::uint64_t backward = 4 * each - layer * 2;
    const auto add = [&](std::uint64_t lower, std::uint64_t upper) {
      out.buffers.push_back(make(out.buffers.size(), lower, upper, sizes[any.below(sizes.size())]));
    };
    add(forward, backward);
    add(forward, any.chance(0.5) ? backward - 1 : forward + any.between(1, 40));
    add(forward + 1, forward + 1 + any.between(1, 3));
    add(backward, backward + any.between(1, 4));
  }
  return out;
}

}  // namespace millpond::plan
