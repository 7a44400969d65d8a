#include "support/pool_model.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <optional>
#include <set>

#include "millpond/base/units.hpp"

namespace millpond::model {
namespace {

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
    // Spills what the program can spare. Called with no lock of the pool held, or its own free
    // would never return.
    of.on_pressure = [this](std::uint64_t) {
      const device_address at = capturing_ == nullptr ? choose(0, false) : 0;
      if (at == 0 || live_.at(at).stream == per_thread_stream) return false;
      count(rule::locks);
      const std::uint32_t who = thread_;
      give(at, live_.at(at).stream, live_.at(at).thread);
      become(who);
      return true;
    };
    pool_ = *pool::create(how.wrap ? how.wrap(gpu_) : gpu_, of);
    pool_->set_error_sink([this](const error& e) {
      if (expected_ == 0) return fail("a free was refused: " + e.message);
      --expected_;
    });
    arena_ = pool_->make_graph_arena();
    for (named& s : streams_) static_cast<void>(gpu_->stream_create(&s.handle));
  }

  void step(const operation& op) {
    become(1 + op.thread % threads);
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
      case action::launch: return launch(op);
      case action::drop_graph:
        if (!graphs_.empty()) {
          const auto at = graphs_.begin() + op.other % graphs_.size();
          static_cast<void>(gpu_->graph_exec_destroy(at->exec));
          graphs_.erase(at);
        }
        return;
      case action::abort_capture: return abort_capture();
      case action::renew_arena:
        if (capturing_ == nullptr) {
          arena_ = pool_->make_graph_arena();
          arena_captures_.clear();
        }
        return;
      case action::nothing: return nothing(op);
      case action::wrong_call: return wrong_call(op);
      case action::fail_growth: return fail_growth(op);
      case action::fork: return fork();
      case action::count_: return;
    }
  }
  [[nodiscard]] const std::string& look() {
    if (failure_.empty() && gpu_->violation_count() > 0) {
      const violation v = gpu_->violations().front();
      fail(v.rule + ": " + v.text);
    }
    if (failure_.empty() && gpu_->device_waits() != 0)
      fail("a call of the pool waited for the whole device");
    return failure_;
  }
  [[nodiscard]] const coverage& covered() const noexcept { return covered_; }
  const std::string& finish() {
    end_capture();
    caches_.clear();
    for (const captured& g : graphs_) static_cast<void>(gpu_->graph_exec_destroy(g.exec));
    if (last_launch_ != nullptr) static_cast<void>(gpu_->event_destroy(last_launch_));
    arena_ = {};
    while (!live_.empty())
      give(live_.begin()->first, live_.begin()->second.stream, live_.begin()->second.thread);
    const pool_statistics end = pool_->statistics();
    if (end.live_blocks != 0)
      fail(std::to_string(end.live_blocks) + " blocks count as live when all are freed");
    gpu_->advance(10'000'000'000);
    for (int i = 0; i < 4; ++i) {
      for (const named& s : streams_) give_take(s.handle);
      trim(0);
    }
    if (pool_->statistics().reserved_bytes != 0)
      fail("a trim with all freed and done leaves " +
           format_bytes(pool_->statistics().reserved_bytes));
    pool_->check();
    {
      const simulated_gpu::library_scope library;
      pool_.reset();
    }
    for (named& s : streams_) static_cast<void>(gpu_->stream_destroy(s.handle));
    if (gpu_->violation_count() > 0 && failure_.empty()) fail(gpu_->violations().front().text);
    if (failure_.empty() && gpu_->leaks().total() != 0)
      fail("left at the end: " + to_string(gpu_->leaks()));
    count(rule::ends);
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
  struct captured {
    graph_exec_handle exec = nullptr;
    bool shares = false;  // the arena
  };
  // What the reference remembers of freed memory: who freed it, and whether the pool may still owe
  // it a fence.
  struct past {
    std::uint64_t end = 0;
    stream_handle stream = nullptr;
    std::uint64_t freed_ns = 0;
  };

  void count(rule which, std::uint64_t times = 1) {
    covered_[static_cast<std::size_t>(which)] += times;
  }

  void become(std::uint32_t thread) {
    thread_ = thread;
    simulated_gpu::set_thread(thread);
  }
  void fail(std::string text) {
    if (failure_.empty()) failure_ = std::move(text);
  }
  [[nodiscard]] bool captures(stream_handle s) const noexcept {
    return capturing_ != nullptr && s == capturing_;
  }
  // The null and legacy streams may not be named while a capture runs on a stream that waits for
  // them.
  stream_handle pick(std::uint32_t n) const {
    const std::uint32_t which = n % (streams + 3);
    if (which < streams) return streams_[which].handle;
    if (which == streams || capturing_ != nullptr) return per_thread_stream;
    return which == streams + 1 ? nullptr : legacy_stream;
  }
  // A live block that is the program's own, or the capture's where `in_capture`.
  device_address choose(std::uint32_t n, bool in_capture) const {
    std::vector<device_address> all;
    for (const auto& [at, h] : live_) {
      if (h.captured == in_capture) all.push_back(at);
    }
    return all.empty() ? 0 : all[n % all.size()];
  }

  // By the plain call, by a cache handle of the stream, or inside a capture by a cache of that.
  result<void*> ask(const operation& op, stream_handle s) {
    const std::uint64_t alignment = op.other % 16 == 0 ? max_alignment : 512;
    const bool by_cache =
        op.other % 4 == 1 && s != per_thread_stream && s != nullptr && s != legacy_stream;
    try {
      if (by_cache && captures(s)) {
        if (!inside_) inside_.emplace(pool_->capture_cache(s));
        return inside_->allocate(op.amount);
      }
      if (by_cache && capturing_ == nullptr) {
        auto at = caches_.find(s);
        if (at == caches_.end()) at = caches_.emplace(s, pool_->cache(s)).first;
        return at->second.allocate(op.amount);
      }
    } catch (const out_of_memory& e) {
      return error{error_code::out_of_memory, e.what()};
    } catch (const memory_error& e) {
      return error{e.code(), e.what()};
    }
    return pool_->try_allocate(op.amount, alignment, s);
  }
  void allocate(const operation& op) {
    const stream_handle s = pick(op.stream);
    result<void*> got = nullptr;
    {
      const simulated_gpu::library_scope library;
      got = ask(op, s);
    }
    if (capturing_ != nullptr && s != capturing_) count(rule::capture_calls);
    if (!got) {
      if (got.error().code != error_code::out_of_memory)
        fail("an allocation was refused: " + got.error().message);
      ++refused;
      return;
    }
    ++operations;
    count(rule::no_device_waits);
    if (reinterpret_cast<std::uintptr_t>(s) <= 2) count(rule::special_handles);
    const auto at = reinterpret_cast<device_address>(*got);
    if (at % 512 != 0 || (op.other % 16 == 0 && at % max_alignment != 0))
      fail("a block is not aligned");
    // The reference: no two live blocks share a byte, and the block is as large as was asked.
    const auto next = live_.lower_bound(at);
    if (next != live_.end() && next->first < at + op.amount) fail("a block reaches into the next");
    if (next != live_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > at)
      fail("a block begins in another");
    count(rule::no_overlap);
    note_reuse(at, at + op.amount, s);
    gpu_->note_allocate(at, op.amount, s, "allocate");
    live_[at] = {op.amount, s, 1 + op.thread % threads, captures(s), {}};
  }
  // Asking a fence costs 200 ns; the audit build's questions at a cache handle some 30 each.
  static constexpr std::uint64_t too_soon_for_a_fence_ns = 200;
  // Who had the memory before: by address, which is most of it (pages that moved are the
  // checker's).
  void note_reuse(device_address begin, device_address end, stream_handle s) {
    auto at = past_.lower_bound(begin);
    if (at != past_.begin() && std::prev(at)->second.end > begin) --at;
    bool other = false, own = false;
    while (at != past_.end() && at->first < end) {
      other = other || at->second.stream != s;
      own = own || (at->second.stream == s &&
                    gpu_->now_ns() - at->second.freed_ns < too_soon_for_a_fence_ns);
      at = past_.erase(at);
    }
    if (other) count(rule::order);
    if (own) count(rule::own_order);
  }
  void give(device_address at, stream_handle on, std::uint32_t thread, bool by_cache = false) {
    become(thread);
    // One real thread speaks for all, and its cache for the per-thread handle is that of whoever
    // allocated last: a real thread has its own, so let this one meet its stream first.
    if (on == per_thread_stream) give_take(on);
    const held was = live_.at(at);
    live_.erase(at);
    if (!was.used.empty()) count(rule::other_uses);
    if (reinterpret_cast<std::uintptr_t>(on) <= 2) count(rule::special_handles);
    if (capturing_ != nullptr && on != capturing_) count(rule::capture_calls);
    gpu_->note_free(at, was.bytes, on, "free");
    const simulated_gpu::library_scope library;
    const auto cache = caches_.find(on);
    if (by_cache && captures(on) && inside_) {
      inside_->deallocate(reinterpret_cast<void*>(at), was.bytes);
    } else if (by_cache && capturing_ == nullptr && cache != caches_.end()) {
      cache->second.deallocate(reinterpret_cast<void*>(at), was.bytes);
    } else {
      pool_->deallocate(reinterpret_cast<void*>(at), was.bytes, on);
    }
    past_[at] = {at + was.bytes, on, gpu_->now_ns()};
    ++operations;
    count(rule::no_device_waits);
  }
  void give_take(stream_handle s) {
    const simulated_gpu::library_scope library;
    if (const auto x = pool_->try_allocate(512, 512, s)) pool_->deallocate(*x, 512, s);
  }
  // `after` is put behind all of `before` so far. False in a capture.
  bool order(stream_handle before, stream_handle after) {
    if (captures(before) || captures(after)) return false;
    if (capturing_ != nullptr && (before == nullptr || before == legacy_stream)) return false;
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
    become(h.thread);
    stream_handle on = h.stream;
    const stream_handle wanted = streams_[op.stream % streams].handle;
    if (elsewhere && !in_capture && wanted != on && order(on, wanted)) on = wanted;
    if (!in_capture && captures(on))
      return;  // the program keeps its own blocks out of its captures
    if (capturing_ != nullptr && (on == nullptr || on == legacy_stream)) return;
    give(at, on, h.thread, op.amount % 3 == 0);
  }
  void kernel(const operation& op) {
    const device_address at = choose(op.other, capturing_ != nullptr && op.thread % 2 == 0);
    if (at == 0) return;
    const held h = live_.at(at);
    if (!h.captured && (captures(h.stream) || (capturing_ != nullptr &&
                                               (h.stream == nullptr || h.stream == legacy_stream))))
      return;
    become(h.thread);
    kernel_description k;
    k.name = "kernel";
    k.duration_ns = op.amount;
    // With others of the same stream: no kernel may meet one page by two addresses.
    for (const auto& [a, other] : live_) {
      if (other.stream == h.stream && other.thread == h.thread && other.captured == h.captured &&
          k.accesses.size() < 4) {
        k.accesses.push_back({a, other.bytes, access_kind::write});
      }
    }
    static_cast<void>(gpu_->launch(std::move(k), h.stream));
  }
  void use(const operation& op) {
    const device_address at = choose(op.other, false);
    const stream_handle on = streams_[op.stream % streams].handle;
    if (at == 0 || captures(on) || captures(live_.at(at).stream)) return;
    held& h = live_.at(at);
    if (capturing_ != nullptr && (h.stream == nullptr || h.stream == legacy_stream)) return;
    become(h.thread);
    if (h.stream != on) order(h.stream, on);
    gpu_->note_use(at, on, "use");
    {
      const simulated_gpu::library_scope library;
      if (const auto reported = pool_->record_use(reinterpret_cast<void*>(at), on); !reported)
        fail("a use was refused: " + reported.error().message);
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
    if (pool_->trim(keep) > 0 && !live_.empty()) count(rule::mappings);
  }
  // The stream is destroyed with its work pending, and its handle comes back; blocks go on on the
  // new one, in order.
  void renew(const operation& op) {
    named& s = streams_[op.stream % streams];
    if (captures(s.handle)) return;
    for (const auto& [at, h] : live_) {
      if (h.used.contains(s.handle)) return;  // the stream of a reported use lives until the free
    }
    const stream_handle old = s.handle;
    {
      // A cache handle promises that its stream lives.
      const simulated_gpu::library_scope library;
      caches_.erase(old);
    }
    const bool owed = std::any_of(past_.begin(), past_.end(),
                                  [&](const auto& p) { return p.second.stream == old; });
    event_handle e = nullptr;
    static_cast<void>(gpu_->event_create(&e));
    static_cast<void>(gpu_->event_record(e, old));
    static_cast<void>(gpu_->stream_destroy(old));
    static_cast<void>(gpu_->stream_create(&s.handle));
    if (s.handle == old) count(rule::identity);
    if (owed) count(rule::dead_streams);
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
    become(capture_thread_);
    give_take(s);
    if (!gpu_->capture_begin(s, op.other % 2 == 0 ? capture_mode::global : capture_mode::relaxed)
             .ok())
      return;
    capturing_ = s;
    shares_ = op.other % 3 != 0;
    if (shares_) {
      capture_info info;
      static_cast<void>(gpu_->stream_capture(s, &info));
      const simulated_gpu::library_scope library;
      if (const auto attached = pool_->capture_into(arena_, s); !attached)
        fail("a capture was not attached: " + attached.error().message);
      gpu_->note_shared_captures(info.id, info.id);  // its results outlive it: the arena is held
      for (const std::uint64_t before : arena_captures_)
        gpu_->note_shared_captures(before, info.id);
      if (!arena_captures_.empty()) count(rule::shared_arena);
      arena_captures_.push_back(info.id);
    }
    give_take(s);  // the pool knows of the captures that ask it for memory
  }
  // What the capture allocated goes back in it, before its end.
  void free_captured() {
    for (device_address at = choose(0, true); at != 0; at = choose(0, true))
      give(at, capturing_, capture_thread_, at % 1024 == 0);
    const simulated_gpu::library_scope library;
    inside_.reset();
  }
  void end_capture() {
    if (capturing_ == nullptr) return;
    become(capture_thread_);
    free_captured();
    graph_handle graph = nullptr;
    const call_result ended = gpu_->capture_end(capturing_, &graph);
    capturing_ = nullptr;
    if (!ended.ok()) return fail("the capture was broken: " + to_string(ended));
    captured made{nullptr, shares_};
    static_cast<void>(gpu_->graph_instantiate(&made.exec, graph));
    static_cast<void>(gpu_->graph_destroy(graph));
    graphs_.push_back(made);
  }
  // The program breaks its own capture by a call that it forbids. Of a private capture's blocks it
  // keeps none; those of a shared arena are the program's until it frees them.
  void abort_capture() {
    if (capturing_ == nullptr) return;
    become(capture_thread_);
    if (shares_) free_captured();
    const std::uint64_t broken = gpu_->violation_count();
    static_cast<void>(gpu_->stream_query(capturing_));
    graph_handle graph = nullptr;
    static_cast<void>(gpu_->capture_end(capturing_, &graph));
    if (broken == 0) gpu_->clear_violations();
    for (auto at = live_.begin(); at != live_.end();) {
      if (!at->second.captured) {
        ++at;
        continue;
      }
      gpu_->note_free(at->first, at->second.bytes, capturing_, "capture broken");
      past_[at->first] = {at->first + at->second.bytes, capturing_, gpu_->now_ns()};
      at = live_.erase(at);
    }
    capturing_ = nullptr;
    const simulated_gpu::library_scope library;
    inside_.reset();
    count(rule::aborted);
  }
  // Graphs of the arena one after another, as the program has promised.
  void launch(const operation& op) {
    if (graphs_.empty()) return;
    const stream_handle s = streams_[op.stream % streams].handle;
    const captured& of = graphs_[op.other % graphs_.size()];
    if (captures(s)) return;
    if (of.shares && last_launch_ != nullptr)
      static_cast<void>(gpu_->stream_wait_event(s, last_launch_));
    static_cast<void>(gpu_->graph_launch(of.exec, s));
    if (of.shares) {
      if (last_launch_ == nullptr) static_cast<void>(gpu_->event_create(&last_launch_));
      static_cast<void>(gpu_->event_record(last_launch_, s));
    }
    if (!live_.empty()) count(rule::capture_memory);
  }
  void nothing(const operation& op) {
    const stream_handle s = pick(op.stream);
    const simulated_gpu::library_scope library;
    const auto none = pool_->try_allocate(0, 512, s);
    if (!none || *none != nullptr) fail("zero bytes gave something");
    pool_->deallocate(nullptr, op.amount, s);
    const auto wrong = pool_->try_allocate(512, 3 * (1 + op.other), s);
    if (wrong || wrong.error().code != error_code::invalid_argument)
      fail("a wrong alignment was served");
    count(rule::zero_and_null);
  }
  // A free with a wrong size, of an inner address or of foreign memory: refused, and the block is
  // as it was.
  void wrong_call(const operation& op) {
    const device_address at = choose(op.other, false);
    if (at == 0 || captures(live_.at(at).stream)) return;
    const held& h = live_.at(at);
    if (capturing_ != nullptr && (h.stream == nullptr || h.stream == legacy_stream)) return;
    become(h.thread);
    const simulated_gpu::library_scope library;
    expected_ = 1;
    switch (op.amount % 3) {
      case 0: pool_->deallocate(reinterpret_cast<void*>(at), h.bytes + 1, h.stream); break;
      case 1: pool_->deallocate(reinterpret_cast<void*>(at + 1), 0, h.stream); break;
      default: pool_->deallocate(reinterpret_cast<void*>(std::uintptr_t{4096}), 0, h.stream); break;
    }
    if (expected_ != 0) fail("a wrong free was taken");
    expected_ = 0;
    const auto found = pool_->find(reinterpret_cast<void*>(at));
    if (!found || found->bytes < h.bytes) fail("a wrong free harmed its block");
    count(rule::kinds);
  }
  // The next calls that would give memory fail.
  void fail_growth(const operation& op) {
    fault_plan plan;
    plan.faults.push_back({.call = op.amount % 2 == 0 ? "cuMemCreate" : "cuMemMap",
                           .at = 1,
                           .count = 1 + op.other % 3});
    gpu_->set_faults(plan);
    operation large = op;
    large.amount = 48 * MiB;
    const auto before = gpu_->calls(plan.faults[0].call);
    allocate(large);
    if (gpu_->calls(plan.faults[0].call) != before) count(rule::failure);
    gpu_->set_faults({});
  }
  // In a child every call refuses, and it touches nothing.
  void fork() {
    if (forks_++ > 0) return;  // one a program: a process is dear
    std::fflush(stdout);       // or the child may print it again
    const pid_t child = ::fork();
    if (child == 0) {
      const auto got = pool_->try_allocate(512, 512, streams_[0].handle);
      const bool refused_here = !got && got.error().code == error_code::not_permitted;
      _exit(refused_here ? 0 : 1);
    }
    int status = 1;
    if (child < 0 || ::waitpid(child, &status, 0) != child || status != 0)
      return fail("a forked child was served");
    count(rule::forks);
  }

  std::shared_ptr<simulated_gpu> gpu_;
  std::shared_ptr<pool> pool_;
  std::array<named, streams> streams_;
  std::map<device_address, held> live_;
  std::map<device_address, past> past_;
  std::map<stream_handle, pool::cache_handle> caches_;
  std::optional<pool::capture_cache_handle> inside_;  // of the capture that runs
  std::vector<captured> graphs_;
  graph_arena arena_;
  std::vector<std::uint64_t> arena_captures_;
  event_handle last_launch_ = nullptr;  // of a graph of the arena
  bool shares_ = false;                 // the capture that runs, the arena
  int expected_ = 0;                    // errors of frees
  int forks_ = 0;
  coverage covered_{};
  stream_handle capturing_ = nullptr;
  std::uint32_t capture_thread_ = 1;
  std::uint32_t thread_ = 0;  // whose calls these are
  std::string failure_;
};

}  // namespace

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
  out.covered = m.covered();
  simulated_gpu::set_thread(0);
  return out;
}

}  // namespace millpond::model
