#include "trace/synthetic/shapes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/bits.hpp"
#include "base/random.hpp"
#include "millpond/base/units.hpp"

namespace millpond::trace {
namespace {

constexpr std::array<std::string_view, 6> names{"llm",       "recompute", "detection",
                                                "diffusion", "experts",   "streams"};
constexpr std::uint64_t call_ns = 5'000;       // between two calls of a framework
constexpr std::uint64_t pause_ns = 1'000'000;  // between two requests

struct block {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t stream = 0;
};

class book {
 public:
  book(std::string_view name, std::uint64_t seed) : numbers(seed) {
    made_.info.from = format::workload;
    made_.info.status = read_status::complete;
    made_.info.name = std::string(name);
    made_.info.meta.program = made_.info.name;
    made_.info.meta.recorded_by = fmt::format("millpond shape {}, seed {}", name, seed);
  }
  block take(std::uint64_t bytes, std::uint64_t stream = 0) {
    const block made{next_address_, std::max<std::uint64_t>(bytes, 512), stream};
    next_address_ += align_up(made.bytes, 512) + 512;
    add({.stream = stream,
         .address = made.address,
         .bytes = made.bytes,
         .what = action::allocate,
         .of = kind::device});
    return made;
  }
  void give(const block& dead) {
    add({.stream = dead.stream,
         .address = dead.address,
         .bytes = dead.bytes,
         .what = action::free,
         .of = kind::device});
  }
  void give(std::vector<block>& dead) {
    for (const block& each : dead) give(each);
    dead.clear();
  }
  void use(const block& on, std::uint64_t stream) {
    add({.stream = stream,
         .address = on.address,
         .bytes = on.bytes,
         .what = action::use,
         .of = kind::device});
  }
  void end_request(std::uint64_t stream = 0) {
    add({.stream = stream, .what = action::stream_synchronize});
    time_ns_ += pause_ns / 2 + numbers.below(pause_ns);
  }
  // A temporary: taken and given back.
  void scratch(std::uint64_t bytes) { give(take(bytes)); }
  std::uint64_t between(std::uint64_t low, std::uint64_t high) {
    return numbers.between(low, high);
  }
  template <std::size_t N>
  std::uint64_t one_of(const std::array<std::uint64_t, N>& of) {
    return of[numbers.below(N)];
  }
  std::vector<block> weights(std::uint64_t layers, std::initializer_list<std::uint64_t> sizes) {
    std::vector<block> out;
    for (std::uint64_t l = 0; l < layers; ++l) {
      for (const std::uint64_t bytes : sizes) out.push_back(take(bytes));
    }
    return out;
  }
  trace_data finish() { return std::move(made_); }

  random numbers;

 private:
  void add(event next) {
    next.sequence = made_.events.size();
    next.time_ns = time_ns_;
    time_ns_ += call_ns;
    made_.events.push_back(next);
  }
  trace_data made_;
  std::uint64_t next_address_ = 0x7000'0000'0000;
  std::uint64_t time_ns_ = 0;
};

void llm(book& b, std::uint64_t requests) {
  constexpr std::uint64_t width = 2048, layers = 16, words = 32'000, heads = 16;
  std::vector<block> weights = b.weights(1, {words * width * 2});
  for (const block& w : b.weights(layers, {width * width * 6, width * width * 2, width * width * 8,
                                           width * width * 8, width * 2})) {
    weights.push_back(w);
  }
  for (std::uint64_t r = 0; r < requests; ++r) {
    const std::uint64_t batch = b.between(1, 16), prompt = b.between(16, 512),
                        steps = b.between(4, 24);
    std::vector<std::pair<block, block>> cache(layers);
    for (std::uint64_t step = 0; step < steps; ++step) {
      const std::uint64_t rows = batch * (step == 0 ? prompt : 1), seen = batch * (prompt + step);
      block hidden = b.take(rows * width * 2);
      for (auto& [keys, values] : cache) {
        const block qkv = b.take(rows * width * 6);
        const std::pair<block, block> longer{b.take(seen * width * 2), b.take(seen * width * 2)};
        if (keys.bytes != 0) {
          b.give(keys);
          b.give(values);
        }
        std::tie(keys, values) = longer;
        const std::uint64_t scores = heads * rows * (prompt + step) * 2;
        const block raw = b.take(scores), soft = b.take(scores);
        b.give(raw);
        const block mixed = b.take(rows * width * 2);
        b.give(soft);
        b.give(qkv);
        const block up = b.take(rows * width * 8), gate = b.take(rows * width * 8);
        b.give(up);
        const block next = b.take(rows * width * 2);
        b.give(gate);
        b.give(mixed);
        b.give(hidden);
        hidden = next;
      }
      b.scratch(batch * words * 4);
      b.give(hidden);
    }
    for (const auto& [keys, values] : cache) {
      b.give(keys);
      b.give(values);
    }
    b.end_request();
  }
  b.give(weights);
}

void recompute(book& b, std::uint64_t steps) {
  constexpr std::uint64_t width = 1536, layers = 20, words = 32'000, batch = 4, heads = 12;
  constexpr std::uint64_t square = width * width * 4;
  std::vector<block> weights = b.weights(1, {words * width * 4});
  for (const block& w :
       b.weights(layers, {square * 3, square, square * 4, square * 4, width * 4, width * 4}))
    weights.push_back(w);
  std::vector<block> moments;
  for (std::uint64_t step = 0; step < steps; ++step) {
    const std::uint64_t tokens = b.between(128, 1024);
    const std::uint64_t rows = batch * tokens * width * 4,
                        scores = batch * heads * tokens * tokens * 4;
    const auto layer = [&] {
      return std::vector<block>{b.take(rows * 3), b.take(scores),   b.take(scores),
                                b.take(rows),     b.take(rows * 4), b.take(rows * 4)};
    };
    std::vector<block> checkpoints, gradients;
    block hidden = b.take(rows);
    for (std::uint64_t l = 0; l < layers; ++l) {
      checkpoints.push_back(hidden);
      std::vector<block> inside = layer();
      b.give(inside);
      hidden = b.take(rows);
    }
    const block logits = b.take(batch * tokens * words * 4),
                wrong = b.take(batch * tokens * words * 4);
    b.give(logits);
    block back = b.take(rows);
    b.give(wrong);
    for (std::uint64_t l = layers; l-- > 0;) {
      std::vector<block> inside = layer();
      while (!inside.empty()) {
        const block gradient = b.take(inside.back().bytes);
        b.give(inside.back());
        b.give(gradient);
        inside.pop_back();
      }
      for (const std::uint64_t bytes :
           {square * 3, square, square * 4, square * 4, width * 4, width * 4})
        gradients.push_back(b.take(bytes));
      const block next = b.take(rows);
      b.give(back);
      back = next;
      b.give(checkpoints[l]);
    }
    b.give(back);
    b.give(hidden);
    if (moments.empty()) {
      for (const block& w : weights) {
        moments.push_back(b.take(w.bytes));
        moments.push_back(b.take(w.bytes));
      }
    }
    for (const block& g : gradients) b.scratch(g.bytes);
    b.give(gradients);
    b.end_request();
  }
  b.give(moments);
  b.give(weights);
}

// What one image batch asks for, in order: so many bytes, or the end of what an earlier line asked
// for.
void pyramid(book& b, std::vector<std::pair<bool, std::uint64_t>>& script) {
  const std::uint64_t batch = b.between(1, 8), side = b.one_of<4>({128, 160, 192, 224});
  std::uint64_t channels = 64, across = side / 2;
  const auto take = [&](std::uint64_t bytes) {
    script.emplace_back(true, bytes);
    return script.size() - 1;
  };
  const auto give = [&](std::uint64_t which) { script.emplace_back(false, which); };
  std::uint64_t at = take(batch * 3 * side * side * 4);
  for (int stage = 0; stage < 4; ++stage) {
    for (int layer = 0; layer < 4; ++layer) {
      const std::uint64_t bytes = batch * channels * across * across * 4;
      const std::uint64_t normed = take(bytes);
      if (b.numbers.chance(0.7)) give(take(b.one_of<4>({1, 4, 9, 16}) * MiB));
      const std::uint64_t out = take(bytes);
      give(normed);
      give(at);
      at = out;
    }
    channels *= 2;
    across /= 2;
  }
  const std::uint64_t out = take(batch * 4000);
  give(at);
  give(out);
}

void detection(book& b, std::uint64_t requests) {
  std::vector<block> weights;
  weights.reserve(60);
  for (int i = 0; i < 60; ++i)
    weights.push_back(b.take(b.one_of<6>({1, 2, 4, 9, 16, 36}) * MiB / 4));
  for (std::uint64_t r = 0; r < requests; ++r) {
    const std::uint64_t batch = b.between(1, 8), wide = b.one_of<4>({480, 640, 800, 1024}),
                        high = b.one_of<3>({480, 640, 800});
    std::vector<block> features;
    std::uint64_t channels = 64, area = wide * high / 4;
    block at = b.take(batch * 3 * wide * high * 4);
    for (int stage = 0; stage < 4; ++stage) {
      for (int layer = 0; layer < 3; ++layer) {
        const std::uint64_t bytes = batch * channels * area * (stage == 0 ? 4 : 2);
        const block normed = b.take(bytes);
        b.scratch(b.one_of<4>({1, 8, 18, 32}) * MiB);
        const block out = b.take(bytes);
        b.give(normed);
        b.give(at);
        at = out;
      }
      features.push_back(b.take(batch * 256 * area));
      channels *= 2;
      area /= 4;
    }
    b.give(at);
    const std::uint64_t proposals = batch * b.between(10, 1000);
    const block pooled = b.take(proposals * 256 * 49 * 4), flat = b.take(proposals * 1024 * 4);
    b.give(pooled);
    const block classes = b.take(proposals * 91 * 20);
    b.give(flat);
    for (std::uint64_t i = b.between(0, 30); i > 0; --i) b.scratch(b.between(1, 200) * KiB);
    b.scratch(std::min(proposals, 100 * batch) * 256 * 196 * 4);
    b.give(classes);
    b.give(features);
    b.end_request();
  }
  b.give(weights);
}

void diffusion(book& b, std::uint64_t requests) {
  std::vector<block> weights;
  weights.reserve(80);
  for (int i = 0; i < 80; ++i) weights.push_back(b.take(b.one_of<5>({2, 7, 14, 28, 56}) * MiB / 2));
  for (std::uint64_t r = 0; r < requests; ++r) {
    const std::uint64_t batch = b.one_of<4>({1, 2, 4, 8}), side = b.one_of<4>({32, 48, 64, 96});
    const block latent = b.take(batch * 16 * side * side);
    for (int step = 0; step < 6; ++step) {
      std::vector<block> skips;
      std::uint64_t channels = 320, across = side;
      block at = b.take(batch * channels * across * across * 2);
      for (int level = 0; level < 4; ++level) {
        const std::uint64_t bytes = batch * channels * across * across * 2;
        for (int layer = 0; layer < 2; ++layer) {
          const block normed = b.take(bytes);
          block out = b.take(bytes);
          b.give(normed);
          if (level < 3) {
            const std::uint64_t places = std::min<std::uint64_t>(across * across, 4096);
            const block scores = b.take(batch * 4 * places * places), qkv = b.take(bytes * 3),
                        mixed = b.take(bytes);
            b.give(qkv);
            b.give(scores);
            b.give(out);
            out = mixed;
          }
          skips.push_back(at);
          at = out;
        }
        if (level < 3) {
          across /= 2;
          skips.push_back(at);
          at = b.take(batch * channels * across * across * 2);
          channels = std::min<std::uint64_t>(1280, channels * 2);
        }
      }
      while (!skips.empty()) {
        const std::uint64_t bytes = skips.back().bytes;
        const block both = b.take(bytes + std::min(at.bytes, 3 * bytes));
        b.give(at);
        b.give(skips.back());
        skips.pop_back();
        const block mixed = b.take(bytes);
        b.give(both);
        at = b.take(bytes);
        b.give(mixed);
      }
      b.give(at);
    }
    const block image = b.take(batch * 64 * side * side * 64),
                sharp = b.take(batch * 64 * side * side * 64);
    b.give(image);
    b.give(sharp);
    b.give(latent);
    b.end_request();
  }
  b.give(weights);
}

void experts(book& b, std::uint64_t requests) {
  constexpr std::uint64_t width = 1024, layers = 12;
  std::vector<block> weights = b.weights(layers, {6 * MiB, 2 * MiB, 8 * MiB, 8 * MiB, 8 * MiB,
                                                  8 * MiB, 8 * MiB, 8 * MiB, 8 * MiB, 8 * MiB});
  for (std::uint64_t r = 0; r < requests; ++r) {
    const std::uint64_t tokens = b.between(64, 8192);
    block hidden = b.take(tokens * width * 2);
    for (std::uint64_t l = 0; l < layers; ++l) {
      const block qkv = b.take(tokens * width * 6), mixed = b.take(tokens * width * 2);
      b.give(qkv);
      const block route = b.take(tokens * 32);
      std::vector<block> outs;
      std::uint64_t left = tokens * 2;
      for (int expert = 0; expert < 8 && left > 0; ++expert) {
        const std::uint64_t load = expert == 7 ? left : std::min(left, b.between(0, tokens / 2));
        if (load == 0) continue;
        left -= load;
        const block in = b.take(load * width * 2), up = b.take(load * width * 8);
        outs.push_back(b.take(load * width * 2));
        b.give(up);
        b.give(in);
      }
      const block next = b.take(tokens * width * 2);
      b.give(outs);
      b.give(route);
      b.give(mixed);
      b.give(hidden);
      hidden = next;
    }
    b.give(hidden);
    b.end_request();
  }
  b.give(weights);
}

void streams(book& b, std::uint64_t requests) {
  constexpr std::uint64_t count = 4;
  std::vector<block> weights;
  weights.reserve(60);
  for (int i = 0; i < 60; ++i) weights.push_back(b.take(b.one_of<5>({1, 2, 4, 9, 18}) * MiB / 4));
  struct running {
    std::vector<std::pair<bool, std::uint64_t>> script;
    std::vector<block> blocks;  // by place in the script
    std::size_t next = 0;
  };
  std::array<running, count> all;
  std::uint64_t started = 0;
  for (std::uint64_t done = 0; done < requests;) {
    const std::uint64_t s = b.numbers.below(count);
    running& one = all[s];
    if (one.next == one.script.size()) {
      if (started == requests) {  // nothing more for this stream: let the others end
        const auto busy = std::find_if(all.begin(), all.end(),
                                       [](const running& r) { return r.next < r.script.size(); });
        if (busy == all.end()) break;
        continue;
      }
      one = {};
      pyramid(b, one.script);
      one.blocks.resize(one.script.size());
      ++started;
    }
    const auto& [takes, what] = one.script[one.next];
    if (takes) {
      one.blocks[one.next] = b.take(what, s + 1);
    } else {
      const bool last = one.next + 1 == one.script.size();
      if (last) b.use(one.blocks[what], (s + 1) % count + 1);  // the result is read elsewhere
      b.give(one.blocks[what]);
    }
    if (++one.next == one.script.size()) {
      ++done;
      b.end_request(s + 1);
    }
  }
  b.give(weights);
}

}  // namespace

std::span<const std::string_view> shape_names() noexcept {
  return names;
}
bool is_shape(std::string_view name) noexcept {
  return std::find(names.begin(), names.end(), name) != names.end();
}

result<trace_data> make_shape(std::string_view name, std::uint64_t seed, std::uint64_t length) {
  book b(name, seed);
  const auto so_many = [length](std::uint64_t own) {
    return length != 0 ? std::min<std::uint64_t>(length, 100'000) : own;
  };
  if (name == "llm")
    llm(b, so_many(12));
  else if (name == "recompute")
    recompute(b, so_many(6));
  else if (name == "detection")
    detection(b, so_many(100));
  else if (name == "diffusion")
    diffusion(b, so_many(15));
  else if (name == "experts")
    experts(b, so_many(30));
  else if (name == "streams")
    streams(b, so_many(200));
  else
    return error{error_code::invalid_argument,
                 fmt::format("no shape is named '{}': there are {}", name, fmt::join(names, ", "))};
  return b.finish();
}

}  // namespace millpond::trace
