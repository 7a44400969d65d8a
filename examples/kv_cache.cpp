// A KV cache for language models, three ways under one memory budget. Sequences come with a prompt
// and grow by a token a step; their cache must hold all of it, in one piece, so that kernels need
// no table of pages.
//
//   growable        each sequence has a growable_buffer: it grows by a block of 16 tokens where it
//   lies; a sequence that
//                   ends leaves its memory to the next, and the youngest is preempted (and computed
//                   again later) when the budget is used up
//   longest         cudaMalloc of the longest sequence that may come, for each sequence
//   doubling        cudaMalloc of twice as much, copy and cudaFree whenever a sequence outgrows its
//   cache; preempts too
//
//     kv_cache [sim|N] [--requests N|FILE] [--budget BYTES] [--batch N] [--step-us N] [--seed N]
//     [--json]
//
// Requests are drawn from log-normal distributions with the means that the vLLM paper (SOSP'23)
// gives for ShareGPT, 161 tokens in and 338 out, or read from a file with one "in,out" a line. A
// block is 2 MiB: 16 tokens of 128 KiB, as of a model of 32 layers with 8 key-value heads of 128
// numbers of 2 bytes. Every block's contents are checked in the end.
#include <millpond/growable/growable_buffer.hpp>
#include <millpond/millpond.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <fstream>
#include <memory>
#include <numbers>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mp = millpond;

namespace {

constexpr std::uint64_t tokens_per_block = 16;
constexpr std::uint64_t block_bytes = 2 * mp::MiB;
constexpr std::uint64_t longest_prompt = 2048, longest_output = 1024;
constexpr std::uint64_t longest_blocks = (longest_prompt + longest_output) / tokens_per_block;

struct request {
  std::uint64_t input = 0, output = 0;
};
struct settings {
  std::string gpu = "0";
  std::string requests = "200";
  std::uint64_t budget = 2 * mp::GiB;
  std::size_t batch = 64;
  std::uint64_t step_us = 5000;
  std::uint64_t seed = 1;
  bool json = false;
};

void must(mp::call_result answer) {
  if (!answer.ok()) throw mp::memory_error(mp::to_error(answer, "kv_cache"));
}
std::uint64_t blocks_of(std::uint64_t tokens) {
  return (tokens + tokens_per_block - 1) / tokens_per_block;
}

// The same numbers on every machine, which <random>'s distributions do not promise (splitmix64, and
// Box and Muller).
class dice {
 public:
  explicit dice(std::uint64_t seed) : state_(seed) {}
  double unit() {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return (static_cast<double>((z ^ (z >> 31)) >> 11) + 0.5) * 0x1p-53;
  }
  // Log-normal with this mean: exp(m + s n), where the mean is exp(m + s^2 / 2).
  std::uint64_t length(double mean, double sigma, std::uint64_t most) {
    const double normal =
        std::sqrt(-2 * std::log(unit())) * std::cos(2 * std::numbers::pi * unit());
    const double value = std::exp(std::log(mean) - sigma * sigma / 2 + sigma * normal);
    return std::clamp<std::uint64_t>(static_cast<std::uint64_t>(value), 1, most);
  }

 private:
  std::uint64_t state_;
};

std::vector<request> read_requests(const settings& how) {
  std::vector<request> out;
  std::uint64_t count = 0;
  const auto& text = how.requests;
  if (const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), count);
      failed == std::errc() && end == text.data() + text.size()) {
    dice of(how.seed);
    for (std::uint64_t i = 0; i < count; ++i)
      out.push_back({of.length(161, 1.1, longest_prompt), of.length(338, 0.9, longest_output)});
    return out;
  }
  std::ifstream file(text);
  if (!file) throw std::runtime_error(text + ": cannot be read");
  std::string line;
  for (std::size_t number = 1; std::getline(file, line); ++number) {
    request r;
    if (line.empty() || line[0] == '#') continue;
    if (std::sscanf(line.c_str(), "%lu,%lu", &r.input, &r.output) != 2 || r.input == 0 ||
        r.output == 0) {
      throw std::runtime_error(text + ":" + std::to_string(number) +
                               ": expected two numbers, tokens in and out, found '" + line + "'");
    }
    out.push_back({std::min(r.input, longest_prompt), std::min(r.output, longest_output)});
  }
  return out;
}

// One strategy: where the cache of the sequence in a slot lies. grow() is false where the budget is
// used up.
class cache {
 public:
  virtual ~cache() = default;
  virtual const char* name() const = 0;
  virtual bool grow(std::size_t slot, std::uint64_t blocks) = 0;
  virtual void end(std::size_t slot) = 0;
  virtual mp::device_address at(std::size_t slot) const = 0;
  virtual std::uint64_t held_bytes() const = 0;
  virtual std::uint64_t spare_bytes() const = 0;  // that no sequence has
  std::uint64_t copied = 0;
};

class growable_cache final : public cache {
 public:
  growable_cache(std::shared_ptr<mp::driver> gpu, mp::stream_handle stream, const settings& how)
      : gpu_(std::move(gpu)),
        stream_(stream),
        budget_(mp::memory_budget::create({.hard_bytes = how.budget})),
        slots_(how.batch) {}
  const char* name() const override { return "growable"; }
  bool grow(std::size_t slot, std::uint64_t blocks) override {
    auto& mine = slots_[slot];
    if (!mine.buffer) {
      mp::growable_options options;
      options.step_bytes = block_bytes;
      options.largest_handle_bytes =
          4 * block_bytes;  // a shorter sequence gives back what a longer one has left
      options.budget = budget_;
      options.name = "sequence slot " + std::to_string(slot);
      mine.buffer.emplace(gpu_, longest_blocks, stream_, options);
    }
    for (;;) {
      const auto grown = mine.buffer->try_resize(blocks);
      if (grown) return true;
      if (grown.error().code != mp::error_code::out_of_memory)
        throw mp::memory_error(grown.error());
      if (!take_from_idle()) return false;
    }
  }
  // The memory stays with the slot for its next sequence, until somebody else needs it.
  void end(std::size_t slot) override { slots_[slot].buffer->clear(); }
  mp::device_address at(std::size_t slot) const override { return slots_[slot].buffer->address(); }
  std::uint64_t held_bytes() const override { return budget_->used_bytes(); }
  std::uint64_t spare_bytes() const override {
    std::uint64_t used = 0;
    for (const auto& s : slots_) used += s.buffer ? s.buffer->size_bytes() : 0;
    return budget_->limits().hard_bytes - std::min(budget_->limits().hard_bytes, used);
  }

 private:
  struct state {
    std::optional<mp::growable_buffer<std::byte[block_bytes]>> buffer = {};
  };
  // Memory of an idle slot, or what a busy one has kept from a longer sequence. Work of this step
  // is behind us.
  bool take_from_idle() {
    const std::uint64_t before = budget_->used_bytes();
    for (auto& s : slots_) {
      if (!s.buffer || s.buffer->capacity() == s.buffer->size()) continue;
      s.buffer->shrink_to_fit();
      if (budget_->used_bytes() < before) return true;
    }
    return false;
  }
  std::shared_ptr<mp::driver> gpu_;
  mp::stream_handle stream_;
  std::shared_ptr<mp::memory_budget> budget_;
  std::vector<state> slots_;
};

// cudaMalloc, under the same limit.
class plain_cache : public cache {
 public:
  plain_cache(std::shared_ptr<mp::driver> gpu, mp::stream_handle stream, const settings& how)
      : gpu_(std::move(gpu)),
        memory_(gpu_),
        budget_(how.budget),
        stream_(stream),
        slots_(how.batch) {}
  ~plain_cache() override {
    for (std::size_t i = 0; i < slots_.size(); ++i) release(i);
  }
  void end(std::size_t slot) override { release(slot); }
  mp::device_address at(std::size_t slot) const override {
    return reinterpret_cast<mp::device_address>(slots_[slot].data);
  }
  std::uint64_t held_bytes() const override { return held_; }
  std::uint64_t spare_bytes() const override { return budget_ - held_; }

 protected:
  struct state {
    void* data = nullptr;
    std::uint64_t blocks = 0;
  };
  void* take(std::uint64_t blocks) {
    if (held_ + blocks * block_bytes > budget_) return nullptr;
    auto got = memory_.try_allocate(blocks * block_bytes, mp::default_alignment, stream_);
    if (!got) return nullptr;
    held_ += blocks * block_bytes;
    return *got;
  }
  void give(void* data, std::uint64_t blocks) {
    memory_.deallocate(data, blocks * block_bytes, stream_);
    held_ -= blocks * block_bytes;
  }
  void release(std::size_t slot) {
    if (slots_[slot].data != nullptr) give(slots_[slot].data, slots_[slot].blocks);
    slots_[slot] = {};
  }
  std::shared_ptr<mp::driver> gpu_;
  mp::device_resource memory_;
  std::uint64_t budget_, held_ = 0;
  mp::stream_handle stream_;
  std::vector<state> slots_;
};

class longest_cache final : public plain_cache {
 public:
  using plain_cache::plain_cache;
  const char* name() const override { return "longest"; }
  bool grow(std::size_t slot, std::uint64_t) override {
    auto& mine = slots_[slot];
    if (mine.data == nullptr) mine = {take(longest_blocks), longest_blocks};
    return mine.data != nullptr;
  }
};

class doubling_cache final : public plain_cache {
 public:
  using plain_cache::plain_cache;
  const char* name() const override { return "doubling"; }
  bool grow(std::size_t slot, std::uint64_t blocks) override {
    auto& mine = slots_[slot];
    if (mine.blocks >= blocks) return true;
    std::uint64_t more = std::max<std::uint64_t>(mine.blocks, 1);
    while (more < blocks) more *= 2;
    void* const data = take(more);
    if (data == nullptr) return false;
    if (mine.data != nullptr) {
      must(gpu_->copy_async(reinterpret_cast<mp::device_address>(data), at(slot),
                            mine.blocks * block_bytes, stream_));
      copied += mine.blocks * block_bytes;
      give(mine.data, mine.blocks);  // waits for the device
    }
    mine = {data, more};
    return true;
  }
};

struct outcome {
  std::string name;
  double seconds = 0, memory_seconds = 0, longest_call_us = 0;
  std::uint64_t steps = 0, tokens = 0, preemptions = 0, recomputed_tokens = 0, peak_bytes = 0,
                copied_bytes = 0, wrong_words = 0;
  double mean_batch = 0, used_share = 0;  // of the held memory, what tokens lie in
};

// The serving loop: admits, grows, runs a step, ends sequences; the youngest is preempted where
// memory is short.
class server {
 public:
  server(std::shared_ptr<mp::driver> gpu, const settings& how) : gpu_(std::move(gpu)), how_(how) {
    must(gpu_->stream_create(&stream_));
    void* host = nullptr;
    must(gpu_->host_allocate(&host, sizeof(mp::identity_report), mp::driver::host_flags::none));
    report_ = new (host) mp::identity_report;
  }
  ~server() {
    static_cast<void>(gpu_->host_free(report_));
    static_cast<void>(gpu_->stream_destroy(stream_));
  }
  template <class Cache>
  outcome run(const std::vector<request>& requests) {
    Cache of(gpu_, stream_, how_);
    return run(of, requests);
  }

 private:
  struct sequence {
    std::size_t number = 0;
    request wants;
    std::uint64_t tokens = 0;  // in the cache
    std::uint64_t done = 0;    // of the output
    std::size_t slot = 0;
    std::uint64_t written = 0;  // blocks with contents
  };
  std::uint64_t now_ns() const {
    if (const auto* const sim = dynamic_cast<const mp::simulated_gpu*>(gpu_.get()))
      return sim->now_ns();
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                                      std::chrono::nanoseconds(1));
  }
  static std::uint64_t mark(const sequence& s, std::uint64_t block) {
    return (s.number + 1) * 100'000 + block;
  }

  bool grow(cache& of, sequence& s, std::uint64_t tokens, outcome& out) {
    const std::uint64_t start = now_ns();
    const bool grown = of.grow(s.slot, blocks_of(tokens));
    const double us = static_cast<double>(now_ns() - start) / 1e3;
    out.memory_seconds += us / 1e6;
    out.longest_call_us = std::max(out.longest_call_us, us);
    if (!grown) return false;
    s.tokens = tokens;
    std::vector<mp::identity_block> fresh;
    for (; s.written < blocks_of(tokens); ++s.written)
      fresh.push_back({of.at(s.slot) + s.written * block_bytes, block_bytes, mark(s, s.written)});
    launch(fresh, [this](auto part) { must(gpu_->identity_write(part, stream_)); });
    return true;
  }
  // What the sequence's cache holds is what was written, wherever it has grown to; then its memory
  // is let go.
  void end(cache& of, sequence& s, outcome& out) {
    std::vector<mp::identity_block> all;
    for (std::uint64_t b = 0; b < s.written; ++b)
      all.push_back({of.at(s.slot) + b * block_bytes, block_bytes, mark(s, b)});
    launch(all, [this](auto part) { must(gpu_->identity_check(part, report_, stream_)); });
    const std::uint64_t start = now_ns();
    of.end(s.slot);
    out.memory_seconds += static_cast<double>(now_ns() - start) / 1e9;
    slots_.push_back(s.slot);
  }
  template <class Call>
  static void launch(const std::vector<mp::identity_block>& blocks, Call&& call) {
    for (std::size_t i = 0; i < blocks.size(); i += mp::max_identity_blocks) {
      call(std::span<const mp::identity_block>(blocks).subspan(
          i, std::min(mp::max_identity_blocks, blocks.size() - i)));
    }
  }

  outcome run(cache& of, const std::vector<request>& requests) {
    outcome out;
    out.name = of.name();
    *report_ = {};
    std::deque<sequence> waiting;
    for (std::size_t i = 0; i < requests.size(); ++i) waiting.push_back({i, requests[i]});
    std::vector<sequence> running;  // oldest first
    slots_.clear();
    for (std::size_t i = how_.batch; i-- > 0;) slots_.push_back(i);
    double used = 0, held = 0;
    const std::uint64_t start = now_ns();
    while (!waiting.empty() || !running.empty()) {
      // Admission: in order, as long as there is a slot, and memory for the prompt and a block more
      // for everyone.
      std::uint64_t prefill = 0;
      while (!waiting.empty() && !slots_.empty()) {
        sequence next = waiting.front();
        next.slot = slots_.back();
        if (of.spare_bytes() <
            (blocks_of(next.wants.input + next.done) + running.size()) * block_bytes)
          break;
        if (!grow(of, next, next.wants.input + next.done, out)) break;
        slots_.pop_back();
        prefill += next.tokens;
        running.push_back(next);
        waiting.pop_front();
      }
      if (running.empty()) throw std::runtime_error("the budget does not hold one sequence");
      // A token more for each; where there is no room the youngest gives its memory up and starts
      // again later.
      for (std::size_t i = 0; i < running.size(); ++i) {
        while (!grow(of, running[i], running[i].tokens + 1, out)) {
          if (running.size() == 1)
            throw std::runtime_error("the budget does not hold one sequence");
          sequence last = running.back();
          running.pop_back();
          end(of, last, out);
          must(gpu_->stream_synchronize(stream_));
          ++out.preemptions;
          out.recomputed_tokens += last.tokens;
          last.written = 0;
          last.tokens = 0;
          waiting.push_front(last);
          if (i == running.size()) break;
        }
      }
      must(gpu_->spin(how_.step_us * 1000 + prefill * 5000,
                      stream_));                // the forward pass: 200,000 prompt tokens a second
      must(gpu_->stream_synchronize(stream_));  // the program looks at the tokens
      ++out.steps;
      out.mean_batch += static_cast<double>(running.size());
      out.peak_bytes = std::max(out.peak_bytes, of.held_bytes());
      for (const sequence& s : running)
        used += static_cast<double>(s.tokens) * block_bytes / tokens_per_block;
      held += static_cast<double>(of.held_bytes());
      for (std::size_t i = 0; i < running.size();) {
        ++out.tokens;
        if (++running[i].done < running[i].wants.output) {
          ++i;
          continue;
        }
        end(of, running[i], out);
        running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    must(gpu_->stream_synchronize(stream_));
    out.seconds = static_cast<double>(now_ns() - start) / 1e9;
    out.mean_batch /= static_cast<double>(std::max<std::uint64_t>(out.steps, 1));
    out.used_share = held > 0 ? used / held : 0;
    out.copied_bytes = of.copied;
    out.wrong_words = report_->mismatches;
    return out;
  }

  std::shared_ptr<mp::driver> gpu_;
  const settings how_;
  mp::stream_handle stream_ = nullptr;
  mp::identity_report* report_ = nullptr;
  std::vector<std::size_t> slots_;
};

void print(const std::vector<outcome>& all, const settings& how, const mp::driver& gpu,
           std::size_t requests) {
  if (how.json) {
    std::printf("{\"gpu\":\"%s\",\"requests\":%zu,\"budget_bytes\":%lu,\"rows\":[",
                gpu.info().name.c_str(), requests, how.budget);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const outcome& o = all[i];
      std::printf(
          "%s{\"name\":\"%s\",\"seconds\":%.6f,\"tokens\":%lu,\"tokens_per_s\":%.1f,\"steps\":%lu,"
          "\"mean_batch\":%.2f,"
          "\"preemptions\":%lu,\"recomputed_tokens\":%lu,\"peak_bytes\":%lu,\"used_share\":%.4f,"
          "\"memory_seconds\":%.6f,"
          "\"longest_call_us\":%.1f,\"copied_bytes\":%lu,\"wrong_words\":%lu}",
          i == 0 ? "" : ",", o.name.c_str(), o.seconds, o.tokens,
          static_cast<double>(o.tokens) / o.seconds, o.steps, o.mean_batch, o.preemptions,
          o.recomputed_tokens, o.peak_bytes, o.used_share, o.memory_seconds, o.longest_call_us,
          o.copied_bytes, o.wrong_words);
    }
    std::printf("]}\n");
    return;
  }
  std::printf("GPU: %s; %zu requests, budget %s\n\n", gpu.info().name.c_str(), requests,
              mp::format_bytes(how.budget).c_str());
  std::printf("%-10s %9s %7s %7s %7s %10s %9s %6s %10s %10s %9s %6s\n", "cache", "tokens/s",
              "seconds", "batch", "preempt", "recomputed", "peak", "used", "in memory", "longest",
              "copied", "wrong");
  for (const outcome& o : all) {
    std::printf("%-10s %9.0f %7.2f %7.1f %7lu %10lu %9s %5.0f%% %7.1f ms %7.0f us %9s %6lu\n",
                o.name.c_str(), static_cast<double>(o.tokens) / o.seconds, o.seconds, o.mean_batch,
                o.preemptions, o.recomputed_tokens, mp::format_bytes(o.peak_bytes).c_str(),
                100 * o.used_share, 1e3 * o.memory_seconds, o.longest_call_us,
                mp::format_bytes(o.copied_bytes).c_str(), o.wrong_words);
  }
}

settings read_arguments(int count, char** arguments) {
  settings how;
  for (int i = 1; i < count; ++i) {
    const std::string_view word = arguments[i];
    const auto value = [&]() -> std::string {
      if (i + 1 >= count) throw std::invalid_argument(std::string(word) + " needs a value");
      return arguments[++i];
    };
    if (word == "--json")
      how.json = true;
    else if (word == "--gpu")
      how.gpu = value();
    else if (word == "--requests")
      how.requests = value();
    else if (word == "--seed")
      how.seed = std::stoull(value());
    else if (word == "--batch")
      how.batch = std::stoull(value());
    else if (word == "--step-us")
      how.step_us = std::stoull(value());
    else if (word == "--budget") {
      if (const std::string text = value(); !mp::parse_bytes(text, how.budget))
        throw std::invalid_argument("--budget " + text + ": expected bytes, as 4GiB");
    } else if (!word.starts_with("--"))
      how.gpu = word;
    else
      throw std::invalid_argument(std::string(word) + ": unknown");
  }
  return how;
}

}  // namespace

int main(int count, char** arguments) try {
  const settings how = read_arguments(count, arguments);
  std::shared_ptr<mp::driver> gpu;
  if (how.gpu != "sim") {
    auto card = mp::open_cuda_driver(std::atoi(how.gpu.c_str()));
    if (card)
      gpu = *card;
    else
      std::fprintf(stderr, "No card is used: %s\n", card.error().message.c_str());
  }
  if (gpu == nullptr) {
    auto simulated = mp::simulated_gpu::create();
    if (!simulated) throw mp::memory_error(simulated.error());
    gpu = *simulated;
  }
  if (const mp::call_result bound = gpu->bind_thread(); !bound.ok())
    throw mp::memory_error(mp::to_error(bound, "kv_cache"));
  const std::vector<request> requests = read_requests(how);
  std::vector<outcome> all;
  {
    server with(gpu, how);
    all.push_back(with.run<growable_cache>(requests));
    all.push_back(with.run<longest_cache>(requests));
    all.push_back(with.run<doubling_cache>(requests));
  }
  print(all, how, *gpu, requests.size());
  return std::any_of(all.begin(), all.end(), [](const outcome& o) { return o.wrong_words != 0; })
             ? 1
             : 0;
} catch (const std::invalid_argument& why) {
  std::fprintf(stderr, "kv_cache: %s\n", why.what());
  return 2;
} catch (const std::exception& why) {
  std::fprintf(stderr, "kv_cache: %s\n", why.what());
  return 4;
}
