// Random programs. The checker against plain reachability in a graph of everything that happened,
// and the two ways of keeping contents against each other.
#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "base/random.hpp"
#include "driver/sim_fixture.hpp"
#include "millpond/base/units.hpp"

namespace millpond {
namespace {

// What happened, as a graph: an edge says "before". The reference for vector clocks.
class history {
 public:
  using node = int;
  static constexpr node none = -1;
  node add(std::vector<node> before) {
    std::erase(before, none);
    before_.push_back(std::move(before));
    return static_cast<node>(before_.size()) - 1;
  }
  [[nodiscard]] bool comes_before(node first, node last) const {
    if (first == none) return true;
    std::vector<node> open{last};
    std::set<node> seen;
    while (!open.empty()) {
      const node n = open.back();
      open.pop_back();
      if (n == none || !seen.insert(n).second) continue;
      if (n == first) return true;
      open.insert(open.end(), before_[static_cast<std::size_t>(n)].begin(),
                  before_[static_cast<std::size_t>(n)].end());
    }
    return false;
  }

 private:
  std::vector<std::vector<node>> before_;
};

class sim_model : public sim_test {};

// One random program of work, events, waits, questions, dying streams, recorded uses and reuse.
class order_program {
 public:
  order_program(simulated_gpu& gpu, std::uint64_t seed) : gpu_(gpu), numbers_(seed) {
    ok(gpu_.memory_allocate(&memory_, slots * 4096));
    for (auto& s : streams_) ok(gpu_.stream_create(&s.handle));
    for (auto& e : events_) ok(gpu_.event_create(&e.handle));
  }
  void run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) step(i);
  }
  void finish() {
    ok(gpu_.context_synchronize());
    for (const slot& each : slots_) {
      if (each.live) gpu_.note_free(at(each), 4096, streams_[each.owner].handle, "end");
    }
    for (auto& s : streams_) ok(gpu_.stream_destroy(s.handle));
    for (auto& e : events_) ok(gpu_.event_destroy(e.handle));
    ok(gpu_.memory_free(memory_));
  }
  int broken = 0, kept = 0;

 private:
  static constexpr std::size_t slots = 6;
  struct stream_state {
    stream_handle handle = nullptr;
    history::node tail = history::none;
  };
  struct event_state {
    event_handle handle = nullptr;
    std::vector<history::node> covers;
  };
  struct slot {
    std::size_t number = 0;
    bool live = false;
    std::size_t owner = 0;
    std::vector<std::size_t> users = {};
    // Timelines that a reuse must follow, as (stream birth, node): the node of its tail at the
    // free.
    std::vector<std::pair<std::uint64_t, history::node>> must_follow = {};
  };

  static void ok(call_result answer) { ASSERT_TRUE(answer.ok()) << to_string(answer); }
  [[nodiscard]] device_address at(const slot& s) const { return memory_ + s.number * 4096; }
  // A node on a stream: after its tail and after all that the host had seen when it was queued.
  void add(stream_state& s, std::vector<history::node> also = {}) {
    also.push_back(s.tail);
    also.push_back(host_);
    s.tail = past_.add(std::move(also));
  }
  // A wait for what the stream comes after anyway is no event in its history.
  void wait(stream_state& s, const std::vector<history::node>& nodes) {
    const history::node now = past_.add({s.tail, host_});
    const bool nothing_new = std::all_of(
        nodes.begin(), nodes.end(), [&](history::node n) { return past_.comes_before(n, now); });
    if (!nothing_new) add(s, nodes);
  }
  std::uint64_t id(const stream_state& s) {
    std::uint64_t number = 0;
    ok(gpu_.stream_id(s.handle, &number));
    return number;
  }
  void see(const std::vector<history::node>& nodes) {
    std::vector<history::node> all = nodes;
    all.push_back(host_);
    host_ = past_.add(std::move(all));
  }

  void step(int number) {
    const std::size_t which = numbers_.below(streams_.size());
    stream_state& s = streams_[which];
    event_state& e = events_[numbers_.below(events_.size())];
    switch (numbers_.below(12)) {
      case 0:
      case 1:
        ok(gpu_.spin(numbers_.below(50'000), s.handle));
        add(s);
        return;
      case 2:
      case 3:
        ok(gpu_.event_record(e.handle, s.handle));
        e.covers = {s.tail, host_};
        return;
      case 4:
        ok(gpu_.stream_wait_event(s.handle, e.handle));
        wait(s, e.covers);
        return;
      case 5:
        if (gpu_.event_query(e.handle).ok()) see(e.covers);
        return;
      case 6:
        if (gpu_.stream_query(s.handle).ok()) see({s.tail});
        return;
      case 7: gpu_.advance(numbers_.below(60'000)); return;
      case 8: {
        if (numbers_.chance(0.7)) return;
        dead_.push_back(s.tail);
        for (slot& each : slots_) {
          const bool used =
              std::find(each.users.begin(), each.users.end(), which) != each.users.end();
          if (each.live && (each.owner == which || used)) free(each, number);
        }
        ok(gpu_.stream_destroy(s.handle));
        s = {};
        ok(gpu_.stream_create(&s.handle));
        return;
      }
      case 9: {
        if (numbers_.chance(0.5)) return;
        ok(gpu_.context_record_event(e.handle));
        e.covers = dead_;
        for (const stream_state& each : streams_) e.covers.push_back(each.tail);
        e.covers.push_back(host_);
        return;
      }
      default: {
        slot& each = slots_[numbers_.below(slots)];
        if (!each.live) {
          allocate(each, which, number);
        } else if (numbers_.chance(0.3)) {
          gpu_.note_use(at(each), s.handle, "use");
          each.users.push_back(which);
        } else {
          free(each, number);
        }
      }
    }
  }
  void free(slot& each, int number) {
    stream_state& owner = streams_[each.owner];
    gpu_.note_free(at(each), 4096, owner.handle, "free " + std::to_string(number));
    each.must_follow = {{id(owner), owner.tail}};
    for (const std::size_t user : each.users)
      each.must_follow.emplace_back(id(streams_[user]), streams_[user].tail);
    each.users.clear();
    each.live = false;
  }
  void allocate(slot& each, std::size_t which, int number) {
    stream_state& s = streams_[which];
    bool ordered = true;
    const history::node now = past_.add({s.tail, host_});
    for (const auto& [timeline, node] : each.must_follow) {
      ordered = ordered && (timeline == id(s) || past_.comes_before(node, now));
    }
    const std::uint64_t before = gpu_.violation_count();
    gpu_.note_allocate(at(each), 4096, s.handle, "allocate " + std::to_string(number));
    const bool reported = gpu_.violation_count() > before;
    EXPECT_EQ(reported, !ordered) << "step " << number << ' '
                                  << (reported ? gpu_.violations().back().text : "");
    (ordered ? kept : broken) += 1;
    each.live = true;
    each.owner = which;
    each.must_follow.clear();
  }

  simulated_gpu& gpu_;
  random numbers_;
  history past_;
  history::node host_ = history::none;
  device_address memory_ = 0;
  std::array<stream_state, 4> streams_;
  std::array<event_state, 4> events_;
  std::vector<history::node> dead_;
  std::array<slot, slots> slots_{slot{0}, slot{1}, slot{2}, slot{3}, slot{4}, slot{5}};
};

TEST_F(sim_model, the_checker_agrees_with_reachability) {
  int broken = 0, kept = 0;
  for (std::uint64_t seed = 1; seed <= 60 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    simulated_gpu_options options;
    options.seed = seed;
    make(options);
    order_program program(*gpu, seed);
    program.run(400);
    program.finish();
    broken += program.broken;
    kept += program.kept;
    gpu->clear_violations();
  }
  std::printf("%d reuses in order, %d out of order\n", kept, broken);
  EXPECT_GT(broken, 100);  // the programs are worth something
  EXPECT_GT(kept, 100);
}

// --- Contents: tags and bytes
// ------------------------------------------------------------------------

// Runs one random program and notes everything that can be seen of it.
std::vector<std::string> seen_of(simulated_gpu_options::contents mode, std::uint64_t seed) {
  std::vector<std::string> out;
  simulated_gpu_options options;
  options.mode = mode;
  options.seed = seed;
  options.memory_bytes = 64 * MiB;
  auto gpu = simulated_gpu::create(options).value();
  random numbers(seed);
  const auto note = [&](call_result answer) {
    out.push_back(to_string(answer) + " at " + std::to_string(gpu->now_ns()));
    return answer.ok();
  };
  std::array<stream_handle, 3> streams{};
  for (auto& s : streams) note(gpu->stream_create(&s));
  struct mapping {
    std::size_t slot;
    physical_handle handle;
  };
  constexpr std::uint64_t page = 2 * MiB;
  constexpr std::size_t slots = 8;
  device_address window = 0;
  note(gpu->address_reserve(&window, slots * page, 0));
  std::array<bool, slots> mapped{};
  std::vector<physical_handle> handles;
  const auto base = [&](device_address at) { return at - window; };
  for (int i = 0; i < 200; ++i) {
    stream_handle s = streams[numbers.below(streams.size())];
    const std::size_t slot = numbers.below(slots), other = numbers.below(slots);
    const std::uint64_t offset = numbers.below(page / 8 - 64) * 8,
                        bytes = (1 + numbers.below(63)) * 8;
    const device_address at = window + slot * page + offset,
                         to = window + other * page + numbers.below(1000) * 8;
    switch (numbers.below(9)) {
      case 0:
        if (mapped[slot]) break;
        if (handles.size() < 3) {
          handles.emplace_back();
          if (!note(gpu->physical_create(&handles.back(), page, memory_location::device,
                                         driver::shareable::no))) {
            handles.pop_back();
            break;
          }
        }
        // Often a second view of the same memory.
        mapped[slot] =
            note(gpu->map(window + slot * page, page, handles[numbers.below(handles.size())]));
        if (mapped[slot]) {
          note(gpu->set_access(window + slot * page, page, memory_location::device));
          const bool fresh = numbers.chance(0.5);
          if (fresh) note(gpu->set_async(window + slot * page, 0, page, s));
        }
        break;
      case 1:
        if (!mapped[slot] || numbers.chance(0.8)) break;
        note(gpu->context_synchronize());
        note(gpu->unmap(window + slot * page, page));
        mapped[slot] = false;
        break;
      case 2:
      case 3: {
        if (!mapped[slot]) break;
        const identity_block block{at, bytes, 1 + numbers.below(3)};
        note(gpu->identity_write({&block, 1}, s));
        break;
      }
      case 4:
        if (mapped[slot])
          note(gpu->set_async(at, static_cast<unsigned char>(numbers.below(256)), bytes, s));
        break;
      case 5:
      case 6:
        if (mapped[slot] && mapped[other]) note(gpu->copy_async(to, at, bytes, s));
        break;
      case 7: gpu->advance(numbers.below(20'000)); break;
      default: {
        if (!mapped[slot]) break;
        identity_report report;
        // Most often what was written last by this very step would be checked; here anything goes.
        const identity_block block{window + slot * page + offset / 512 * 512, 512,
                                   1 + numbers.below(3)};
        note(gpu->identity_check({&block, 1}, &report, s));
        note(gpu->context_synchronize());
        out.push_back(std::to_string(report.mismatches) + " differ, first at " +
                      (report.address == 0 ? "none" : std::to_string(base(report.address))) +
                      " word " + std::to_string(report.found_word));
      }
    }
  }
  note(gpu->context_synchronize());
  for (const violation& v : gpu->violations())
    out.push_back(v.rule + " at " + std::to_string(v.time_ns));
  return out;
}

TEST_F(sim_model, tags_and_bytes_tell_the_same) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const auto tags = seen_of(simulated_gpu_options::contents::tags, seed);
    const auto bytes = seen_of(simulated_gpu_options::contents::bytes, seed);
    ASSERT_EQ(tags.size(), bytes.size()) << "seed " << seed;
    for (std::size_t i = 0; i < tags.size(); ++i)
      ASSERT_EQ(tags[i], bytes[i]) << "seed " << seed << ", line " << i;
  }
}

}  // namespace
}  // namespace millpond
