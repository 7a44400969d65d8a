// Who runs: a thread goes on until it waits or ends, or is put aside before one of its steps.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "interleaving/execution.hpp"

namespace interleaving {
namespace {

execution* running = nullptr;
std::uint64_t runs = 0;
constinit thread_local int this_thread = -1;  // 0: explores; from 1: of the program

constexpr std::size_t most_ways = 60;  // of a choice: one letter says which

}  // namespace

execution::execution(const options& given, site_table& sites, std::vector<std::uint8_t> prefix,
                     bool logs)
    : options_(given), sites_(sites), prefix_(std::move(prefix)), run_(++runs), logs_(logs) {
  for (unsigned t = 0; t < most_threads; ++t) threads_[t].now.seen[t] = 1;
}

execution* execution::current() noexcept {
  return this_thread < 0 ? nullptr : running;
}

execution::thread_state& execution::self() noexcept {
  return threads_[static_cast<unsigned>(this_thread)];
}

void execution::begin_setup() noexcept {
  this_thread = 0;
  running = this;
}

void execution::run_threads(unsigned count, batons& theirs, baton& ended) {
  count_ = count;
  batons_ = &theirs;
  ended_ = &ended;
  for (unsigned t = 1; t <= count; ++t) threads_[t].now.join(threads_[0].now);
  ++threads_[0].now.seen[0];
  scheduling_ = true;
  theirs[1 + choose(count)].give();
  ended.take();
  scheduling_ = false;
  for (unsigned t = 1; t <= count; ++t) threads_[0].now.join(threads_[t].now);
}

void execution::end() noexcept {
  running = nullptr;
  this_thread = -1;
}

void execution::run_thread(unsigned me, const std::function<void()>& body) {
  this_thread = static_cast<int>(me);
  body();
  threads_[me].done = true;
  bool all = true;
  for (unsigned t = 1; t <= count_; ++t) all = all && threads_[t].done;
  if (all) return ended_->give();
  const std::vector<unsigned> next = others();
  if (next.empty()) fail("the threads that have not ended wait for ever");
  (*batons_)[next[choose(next.size())]].give();
}

void execution::fail(const std::string& why) {
  if (!failed_) message_ = why;
  failed_ = true;
  if (this_thread == 0) return;
  ended_->give();
  baton never;
  for (;;) never.take();
}

// The number of the way that is taken here: what the choices so far say, then the first.
unsigned execution::choose(std::size_t count) {
  if (count > most_ways) fail("a choice has more ways than the model can name");
  if (count <= 1 || !scheduling_) return 0;
  const std::size_t at = choices_.size();
  const std::uint8_t picked = at < prefix_.size() ? prefix_[at] : std::uint8_t{0};
  if (picked >= count) fail("the choices are not of this program: it has fewer ways here");
  choices_.push_back({picked, static_cast<std::uint8_t>(count)});
  return picked;
}

std::vector<unsigned> execution::others() const {
  std::vector<unsigned> out;
  for (unsigned t = 1; t <= count_; ++t) {
    const thread_state& each = threads_[t];
    if (static_cast<int>(t) == this_thread || each.done) continue;
    if (!each.waits_for || each.waits_for()) out.push_back(t);
  }
  return out;
}

void execution::hand_over(unsigned to) {
  const auto me = static_cast<unsigned>(this_thread);
  (*batons_)[to].give();
  (*batons_)[me].take();
}

void execution::step() {
  if (!scheduling_) return;
  ++self().steps;
  if (++steps_ > most_steps) fail("the execution does not end");
  if (preemptions_ >= options_.preemptions) return;
  const std::vector<unsigned> next = others();
  const unsigned picked = choose(next.size() + 1);
  if (picked == 0) return;
  ++preemptions_;
  hand_over(next[picked - 1]);
}

void execution::block(std::function<bool()> until) {
  if (until()) return;
  if (!scheduling_) return fail("the set-up or the end waits for a thread");
  thread_state& me = self();
  me.waits_for = std::move(until);
  const std::vector<unsigned> next = others();
  if (next.empty()) fail("every thread waits");
  hand_over(next[choose(next.size())]);
  me.waits_for = nullptr;
}

// Where a loop waits for a store, its thread comes back when what it read last is not the newest
// any more, and does not read that again: so that each turn of the loop sees something new.
void execution::yield() {
  if (!scheduling_) return;
  thread_state& me = self();
  const std::vector<unsigned> next = others();
  if (me.last_location == none) {
    if (!next.empty()) hand_over(next[choose(next.size())]);
    return;
  }
  const std::uint32_t location = me.last_location, store = me.last_store;
  const auto is_newer = [this, location, store] {
    return histories_[location].stores.size() - 1 > store;
  };
  if (!is_newer()) {
    block(is_newer);
  } else if (!next.empty()) {
    const unsigned picked = choose(next.size() + 1);
    if (picked != next.size()) hand_over(next[picked]);
  }
  auto& oldest = me.now.oldest[location];
  oldest = std::max(oldest, static_cast<std::uint16_t>(store + 1));
}

void execution::log(const site& at, std::memory_order order, const location* of,
                    std::uint64_t value, std::size_t newer) {
  if (!logs_ || !scheduling_) return;
  log_ += "thread " + std::to_string(this_thread) + ": " + name_of(at, order);
  if (of != nullptr)
    log_ += ", atomic " + std::to_string(of->index) + " = " + std::to_string(value);
  if (newer != 0) log_ += " (" + std::to_string(newer) + " newer)";
  log_ += '\n';
}

}  // namespace interleaving
