#include "support/pool_model.hpp"

#include <algorithm>
#include <array>
#include <istream>
#include <map>
#include <ostream>
#include <set>

#include "base/random.hpp"
#include "millpond/units.hpp"

namespace millpond::model {
namespace {

constexpr std::uint32_t threads = 4;
constexpr std::uint32_t streams = 6;  // and the per-thread stream of each thread

class machine {
 public:
  explicit machine(const settings& how) {
    simulated_gpu_options options;
    options.times = simulated_gpu_options::call_times::median;
    options.memory_bytes = 8 * GiB;
    gpu_ = *simulated_gpu::create(options);
    pool_options of;
    of.reuse = how.reuse;
    of.limit_bytes = how.limit_bytes;
    of.max_wait_ns = 1'000'000;
    of.clock = [g = gpu_.get()] { return g->now_ns(); };
    pool_ = *pool::create(how.wrap ? how.wrap(gpu_) : gpu_, of);
    pool_->set_error_sink([this](const error& e) { fail("a free was refused: " + e.message); });
    for (named& s : streams_) static_cast<void>(gpu_->stream_create(&s.handle));
  }

  void step(const operation& op) {
    simulated_gpu::set_thread(1 + op.thread % threads);
    switch (op.what) {
      case action::allocate: return allocate(op);
      case action::free: return free(op, false);
      case action::free_elsewhere: return free(op, true);
      case action::kernel: return kernel(op);
      case action::use: return use(op);
      case action::advance: return gpu_->advance(op.amount);
      case action::trim: return trim(op.amount);
      case action::renew_stream: return renew(op);
      case action::begin_capture: return begin_capture(op);
      case action::end_capture: return end_capture();
      case action::launch:
        if (!graphs_.empty()) {
          const stream_handle s = streams_[op.stream % streams].handle;
          if (s != capturing_) static_cast<void>(gpu_->graph_launch(graphs_[op.other % graphs_.size()], s));
        }
        return;
      case action::drop_graph:
        if (!graphs_.empty()) {
          const auto at = graphs_.begin() + op.other % graphs_.size();
          static_cast<void>(gpu_->graph_exec_destroy(*at));
          graphs_.erase(at);
        }
        return;
      case action::count_: return;
    }
  }
  [[nodiscard]] const std::string& look() {
    if (failure_.empty() && gpu_->violation_count() > 0) {
      const violation v = gpu_->violations().front();
      fail(v.rule + ": " + v.text);
    }
    return failure_;
  }
  const std::string& finish() {
    end_capture();
    for (const graph_exec_handle g : graphs_) static_cast<void>(gpu_->graph_exec_destroy(g));
    while (!live_.empty()) give(live_.begin()->first, live_.begin()->second.stream, live_.begin()->second.thread);
    const pool_statistics end = pool_->statistics();
    if (end.live_blocks != 0) fail(std::to_string(end.live_blocks) + " blocks count as live when all are freed");
    gpu_->advance(10'000'000'000);
    for (int i = 0; i < 4; ++i) {
      for (const named& s : streams_) give_take(s.handle);
      trim(0);
    }
    if (pool_->statistics().reserved_bytes != 0) fail("a trim with all freed and done leaves " + format_bytes(pool_->statistics().reserved_bytes));
    pool_->check();
    {
      const simulated_gpu::library_scope library;
      pool_.reset();
    }
    for (named& s : streams_) static_cast<void>(gpu_->stream_destroy(s.handle));
    if (look().empty() && gpu_->leaks().total() != 0) fail("left at the end: " + to_string(gpu_->leaks()));
    return failure_;
  }
  std::uint64_t operations = 0;
  std::uint64_t refused = 0;

 private:
  struct named {
    stream_handle handle = nullptr;
  };
  struct held {
    std::uint64_t bytes = 0;
    stream_handle stream = nullptr;
    std::uint32_t thread = 0;
    bool captured = false;
    std::set<stream_handle> used;
  };

  void fail(std::string text) {
    if (failure_.empty()) failure_ = std::move(text);
  }
  stream_handle pick(std::uint32_t n) const { return n % (streams + 1) == streams ? per_thread_stream : streams_[n % (streams + 1)].handle; }
  // A live block that is the program's own, or the capture's where `in_capture`.
  device_address choose(std::uint32_t n, bool in_capture) const {
    std::vector<device_address> all;
    for (const auto& [at, h] : live_) {
      if (h.captured == in_capture) all.push_back(at);
    }
    return all.empty() ? 0 : all[n % all.size()];
  }

  void allocate(const operation& op) {
    const stream_handle s = pick(op.stream);
    const simulated_gpu::library_scope library;
    const auto got = pool_->try_allocate(op.amount, op.other % 16 == 0 ? max_alignment : 512, s);
    if (!got) {
      if (got.error().code != error_code::out_of_memory) fail("an allocation was refused: " + got.error().message);
      ++refused;
      return;
    }
    ++operations;
    const auto at = reinterpret_cast<device_address>(*got);
    // The reference: no two live blocks share a byte, and the block is as large as was asked.
    const auto next = live_.lower_bound(at);
    if (next != live_.end() && next->first < at + op.amount) fail("a block reaches into the next");
    if (next != live_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > at) fail("a block begins in another");
    gpu_->note_allocate(at, op.amount, s, "allocate");
    live_[at] = {op.amount, s, 1 + op.thread % threads, s == capturing_, {}};
  }
  void give(device_address at, stream_handle on, std::uint32_t thread) {
    simulated_gpu::set_thread(thread);
    // One real thread speaks for all, and its lane for the per-thread handle is that of whoever allocated last: a real
    // thread has its own, so let this one meet its stream first.
    if (on == per_thread_stream) give_take(on);
    const std::uint64_t bytes = live_.at(at).bytes;
    live_.erase(at);
    gpu_->note_free(at, bytes, on, "free");
    const simulated_gpu::library_scope library;
    pool_->deallocate(reinterpret_cast<void*>(at), bytes, on);
    ++operations;
  }
  void give_take(stream_handle s) {
    const simulated_gpu::library_scope library;
    if (const auto x = pool_->try_allocate(512, 512, s)) pool_->deallocate(*x, 512, s);
  }
  // `after` is put behind all of `before` so far. False in a capture.
  bool order(stream_handle before, stream_handle after) {
    if (before == capturing_ || after == capturing_) return false;
    event_handle e = nullptr;
    static_cast<void>(gpu_->event_create(&e));
    static_cast<void>(gpu_->event_record(e, before));
    static_cast<void>(gpu_->stream_wait_event(after, e));
    static_cast<void>(gpu_->event_destroy(e));
    return true;
  }
  void free(const operation& op, bool elsewhere) {
    const bool in_capture = capturing_ != nullptr && op.thread % 2 == 0;
    const device_address at = choose(op.other, in_capture);
    if (at == 0) return;
    const held h = live_.at(at);
    simulated_gpu::set_thread(h.thread);
    stream_handle on = h.stream;
    const stream_handle wanted = streams_[op.stream % streams].handle;
    if (elsewhere && !in_capture && wanted != on && order(on, wanted)) on = wanted;
    if (!in_capture && on == capturing_) return;  // the program keeps its own blocks out of its captures
    give(at, on, h.thread);
  }
  void kernel(const operation& op) {
    const device_address at = choose(op.other, capturing_ != nullptr && op.thread % 2 == 0);
    if (at == 0) return;
    const held h = live_.at(at);
    if (!h.captured && h.stream == capturing_) return;
    simulated_gpu::set_thread(h.thread);
    kernel_description k;
    k.name = "kernel";
    k.duration_ns = op.amount;
    // With others of the same stream: no kernel may meet one page by two addresses.
    for (const auto& [a, other] : live_) {
      if (other.stream == h.stream && other.thread == h.thread && other.captured == h.captured && k.accesses.size() < 4) {
        k.accesses.push_back({a, other.bytes, access_kind::write});
      }
    }
    static_cast<void>(gpu_->launch(std::move(k), h.stream));
  }
  void use(const operation& op) {
    const device_address at = choose(op.other, false);
    const stream_handle on = streams_[op.stream % streams].handle;
    if (at == 0 || on == capturing_ || live_.at(at).stream == capturing_) return;
    held& h = live_.at(at);
    simulated_gpu::set_thread(h.thread);
    if (h.stream != on) order(h.stream, on);
    gpu_->note_use(at, on, "use");
    {
      const simulated_gpu::library_scope library;
      if (const auto told = pool_->record_use(reinterpret_cast<void*>(at), on); !told) fail("a use was refused: " + told.error().message);
    }
    h.used.insert(on);
    kernel_description k;
    k.name = "use";
    k.duration_ns = op.amount;
    k.accesses.push_back({at, h.bytes, access_kind::write});
    static_cast<void>(gpu_->launch(std::move(k), on));
  }
  void trim(std::uint64_t keep) {
    const simulated_gpu::library_scope library;
    pool_->trim(keep);
  }
  // The stream is destroyed with its work pending, and its handle comes back; blocks go on on the new one, in order.
  void renew(const operation& op) {
    named& s = streams_[op.stream % streams];
    if (s.handle == capturing_) return;
    for (const auto& [at, h] : live_) {
      if (h.used.contains(s.handle)) return;  // the stream of a told use lives until the free
    }
    const stream_handle old = s.handle;
    event_handle e = nullptr;
    static_cast<void>(gpu_->event_create(&e));
    static_cast<void>(gpu_->event_record(e, old));
    static_cast<void>(gpu_->stream_destroy(old));
    static_cast<void>(gpu_->stream_create(&s.handle));
    bool continued = false;
    for (auto& [at, h] : live_) {
      if (h.stream != old || h.captured) continue;
      h.stream = s.handle;
      continued = true;
    }
    if (continued) static_cast<void>(gpu_->stream_wait_event(s.handle, e));
    static_cast<void>(gpu_->event_destroy(e));
  }
  void begin_capture(const operation& op) {
    if (capturing_ != nullptr || graphs_.size() > 4) return;
    const stream_handle s = streams_[op.stream % streams].handle;
    capture_thread_ = 1 + op.thread % threads;
    simulated_gpu::set_thread(capture_thread_);
    give_take(s);
    if (gpu_->capture_begin(s, op.other % 2 == 0 ? capture_mode::global : capture_mode::relaxed).ok()) {
      capturing_ = s;
      give_take(s);  // the pool knows of the captures that ask it for memory
    }
  }
  void end_capture() {
    if (capturing_ == nullptr) return;
    simulated_gpu::set_thread(capture_thread_);
    // What it allocated goes back in the capture, before its end.
    for (device_address at = choose(0, true); at != 0; at = choose(0, true)) give(at, capturing_, capture_thread_);
    graph_handle graph = nullptr;
    const call_result ended = gpu_->capture_end(capturing_, &graph);
    capturing_ = nullptr;
    if (!ended.ok()) return fail("the capture was broken: " + to_string(ended));
    graph_exec_handle exec = nullptr;
    static_cast<void>(gpu_->graph_instantiate(&exec, graph));
    static_cast<void>(gpu_->graph_destroy(graph));
    graphs_.push_back(exec);
  }

  std::shared_ptr<simulated_gpu> gpu_;
  std::shared_ptr<pool> pool_;
  std::array<named, streams> streams_;
  std::map<device_address, held> live_;
  std::vector<graph_exec_handle> graphs_;
  stream_handle capturing_ = nullptr;
  std::uint32_t capture_thread_ = 1;
  std::string failure_;
};

}  // namespace

settings settings_of(std::uint64_t seed) {
  settings out;
  out.reuse = seed % 5 == 0 ? reuse_policy::same_stream : seed % 5 == 1 ? reuse_policy::may_wait : reuse_policy::idle;
  if (seed % 3 == 0) out.limit_bytes = 512 * MiB;
  return out;
}

program generate(std::uint64_t seed, std::size_t length) {
  random numbers(seed);
  program out;
  const std::uint64_t largest = 10 + numbers.below(17);
  // Weights: mostly memory, then work, now and then what upsets everything.
  constexpr std::array<std::uint32_t, static_cast<std::size_t>(action::count_)> weights{40, 26, 6, 16, 4, 6, 1, 2, 1, 2, 2, 1};
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

outcome run(const program& of, const settings& how) {
  outcome out;
  machine m(how);
  for (std::size_t i = 0; i < of.size(); ++i) {
    m.step(of[i]);
    if (const std::string& failure = m.look(); !failure.empty()) {
      out.failure = failure;
      out.failed_at = i;
      break;
    }
  }
  if (out.failure.empty()) {
    out.failure = m.finish();
    out.failed_at = of.size();
  }
  out.operations = m.operations;
  out.refused = m.refused;
  simulated_gpu::set_thread(0);
  return out;
}

program shrink(program failing, const settings& how, int tries) {
  // Delta debugging: leave out ever smaller stretches while what remains still fails.
  std::size_t stretch = std::max<std::size_t>(1, failing.size() / 2);
  while (tries > 0) {
    bool shorter = false;
    for (std::size_t at = 0; at < failing.size() && tries > 0;) {
      program without = failing;
      without.erase(without.begin() + static_cast<std::ptrdiff_t>(at),
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
    to << static_cast<unsigned>(op.what) << ' ' << op.thread << ' ' << op.stream << ' ' << op.other << ' ' << op.amount << '\n';
  }
}

bool read(std::istream& from, std::uint64_t* seed, program* out) {
  std::string line;
  std::string word;
  if (!std::getline(from, line) || line != "millpond pool program 1" || !(from >> word >> *seed) || word != "seed") return false;
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
