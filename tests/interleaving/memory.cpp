// What the threads of an execution see of each other's stores.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "interleaving/execution.hpp"

namespace interleaving {
namespace {

bool acquires(std::memory_order order) noexcept {
  return order != std::memory_order_relaxed && order != std::memory_order_release;
}
bool releases(std::memory_order order) noexcept {
  return order == std::memory_order_release || order == std::memory_order_acq_rel ||
         order == std::memory_order_seq_cst;
}

// What a failed exchange may have where its success has a weaker order than was written.
std::memory_order failure_of(std::memory_order failure, std::memory_order success) noexcept {
  if (!acquires(success)) return std::memory_order_relaxed;
  if (success != std::memory_order_seq_cst && failure == std::memory_order_seq_cst)
    return std::memory_order_acquire;
  return failure;
}

}  // namespace

void knowledge::join(const knowledge& other) noexcept {
  for (std::size_t i = 0; i < seen.size(); ++i) {
    seen[i] = std::max(seen[i], other.seen[i]);
    past[i] = std::max(past[i], other.past[i]);
  }
  join_oldest(other);
}

void knowledge::join_oldest(const knowledge& other) noexcept {
  for (std::size_t i = 0; i < oldest.size(); ++i) oldest[i] = std::max(oldest[i], other.oldest[i]);
}

void execution::make(location& of) {
  of.maker = static_cast<std::uint32_t>(&self() - threads_.data());
  of.made = self().now.seen[of.maker];
}

execution::history& execution::history_of(location& of) {
  if (of.run != run_) {
    if (histories_.size() == most_locations) {
      fail("more atomics than the model has places for");
      std::abort();  // in the set-up, from where fail() comes back
    }
    of.run = run_;
    of.index = static_cast<std::uint32_t>(histories_.size());
    histories_.push_back({{stored{of.value, {}}}, {}});
  }
  if (self().now.seen[of.maker] < of.made)
    fail("an atomic is used, and nothing orders that behind its making");
  return histories_[of.index];
}

// Any store that is not older than one that the thread knows of.
std::uint32_t execution::pick_store(location& of, std::memory_order order) {
  const auto newest = static_cast<std::uint32_t>(history_of(of).stores.size() - 1);
  std::uint32_t oldest = self().now.oldest[of.index];
  if (order == std::memory_order_seq_cst)
    oldest = std::max<std::uint32_t>(oldest, total_.oldest[of.index]);
  if (stale_ >= options_.stale_reads || oldest >= newest) return newest;
  const unsigned back = choose(newest - oldest + 1);
  if (back != 0) ++stale_;
  return newest - back;
}

std::uint64_t execution::take_in(location& of, std::uint32_t index, std::memory_order order) {
  const stored& from = history_of(of).stores[index];
  thread_state& me = self();
  auto& oldest = me.now.oldest[of.index];
  oldest = std::max(oldest, static_cast<std::uint16_t>(index));
  (acquires(order) ? me.now : me.to_acquire).join(from.carried);
  for (std::size_t i = 0; i < most_threads; ++i)
    me.now.past[i] = std::max(me.now.past[i], from.carried.past[i]);
  if (order == std::memory_order_seq_cst)
    total_.oldest[of.index] = std::max(total_.oldest[of.index], oldest);
  return from.value;
}

// A load may answer a store that is made later, where neither happens before the other: processors
// with a weak order do so when the load is slow. The model cannot play that, since a thread would
// run on with a value that is not there yet. Where nothing led from the load to the store, the
// execution with the two the other way round is the same. Where something did, by orders too weak
// to forbid it, there is an execution that is not explored.
void execution::look_for_later_store(const history& of, const site& at) {
  if (!options_.later_stores_fail) return;
  const knowledge& now = self().now;
  for (const loaded& each : of.loads) {
    if (now.past[each.thread] < each.when || now.seen[each.thread] >= each.when) continue;
    if (site_table::is_one_of(options_.hints, each.at)) continue;
    fail(name_of(each.at, std::memory_order_relaxed) +
         " may answer what is stored later, in a way that the model cannot play, by " +
         name_of(at, std::memory_order_relaxed));
  }
}

void execution::put(location& to, std::uint64_t value, std::memory_order order,
                    const knowledge* continued, const site& at) {
  history& all = history_of(to);
  thread_state& me = self();
  const auto number = static_cast<std::uint32_t>(&me - threads_.data());
  std::erase_if(all.loads, [&](const loaded& each) { return each.thread == number; });
  look_for_later_store(all, at);
  const auto index = static_cast<std::uint16_t>(all.stores.size());
  me.now.oldest[to.index] = index;
  stored out{value, releases(order) ? me.now : me.released};
  if (!site_table::is_one_of(options_.counts, at)) out.carried.past = me.now.past;
  // A release sequence: who reads this acquires what the store before it released.
  if (continued != nullptr) out.carried.join(*continued);
  all.stores.push_back(out);
  if (order == std::memory_order_seq_cst) total_.oldest[to.index] = index;
  to.value = value;
}

void execution::end_of_step() noexcept {
  const auto number = static_cast<std::size_t>(&self() - threads_.data());
  self().now.past[number] = ++self().now.seen[number];
}

std::uint64_t execution::load(location& of, std::memory_order order, const site& at) {
  step();
  order = sites_.order_of(at, order);
  const std::uint32_t index = pick_store(of, order);
  const std::uint64_t value = take_in(of, index, order);
  note_load(of, index, at);
  log(at, order, &of, value, history_of(of).stores.size() - 1 - index);
  end_of_step();
  return value;
}

void execution::note_load(location& of, std::uint32_t index, const site& at) {
  thread_state& me = self();
  me.last_location = of.index;
  me.last_store = index;
  if (!scheduling_) return;
  const auto number = static_cast<std::uint32_t>(&me - threads_.data());
  history_of(of).loads.push_back({number, me.now.seen[number], at});
}

void execution::store(location& to, std::uint64_t value, std::memory_order order, const site& at) {
  step();
  order = sites_.order_of(at, order);
  put(to, value, order, nullptr, at);
  log(at, order, &to, value);
  end_of_step();
}

std::uint64_t execution::modify(location& of, std::memory_order order, const site& at,
                                const std::function<std::uint64_t(std::uint64_t)>& change) {
  step();
  order = sites_.order_of(at, order);
  const auto newest = static_cast<std::uint32_t>(history_of(of).stores.size() - 1);
  const std::uint64_t old = take_in(of, newest, order);
  const knowledge continued = history_of(of).stores[newest].carried;
  put(of, change(old), order, &continued, at);
  log(at, order, &of, of.value);
  end_of_step();
  return old;
}

bool execution::compare_exchange(location& of, std::uint64_t* expected, std::uint64_t desired,
                                 std::memory_order success, std::memory_order failure, strength how,
                                 const site& at) {
  step();
  success = sites_.order_of(at, success);
  failure = failure_of(failure, success);
  const history& all = history_of(of);
  const auto newest = static_cast<std::uint32_t>(all.stores.size() - 1);
  const bool equal = all.stores[newest].value == *expected;
  // What it may do: first what it does where nothing is stale; then fail by an older store; then,
  // weak, fail for no reason.
  std::vector<std::uint32_t> may_read{newest};
  std::uint32_t oldest = self().now.oldest[of.index];
  if (failure == std::memory_order_seq_cst)
    oldest = std::max<std::uint32_t>(oldest, total_.oldest[of.index]);
  for (std::uint32_t i = newest; stale_ < options_.stale_reads && i-- > oldest;) {
    if (all.stores[i].value != *expected) may_read.push_back(i);
  }
  const bool may_be_spurious =
      equal && how == strength::weak && spurious_ < options_.spurious_failures;
  const std::size_t ways = may_read.size() + (may_be_spurious ? 1 : 0);
  const unsigned way = scheduling_ ? choose(ways) : 0;
  const bool spurious = way == may_read.size();
  if (spurious) ++spurious_;
  if (way == 0 && equal) {
    take_in(of, newest, success);
    const knowledge continued = history_of(of).stores[newest].carried;
    put(of, desired, success, &continued, at);
    log(at, success, &of, desired);
    end_of_step();
    return true;
  }
  if (way != 0 && !spurious) ++stale_;
  const std::uint32_t read = spurious ? newest : may_read[way];
  *expected = take_in(of, read, failure);
  const site failed{"compare_exchange fails and reads", at.at};
  note_load(of, read, failed);
  log(failed, failure, &of, *expected, newest - read);
  end_of_step();
  return false;
}

void execution::wait(location& on, std::uint64_t old, std::memory_order order, const site& at) {
  for (;;) {
    if (load(on, order, at) != old) return;
    thread_state& me = self();
    // The kernel compares the newest value before it lets a thread sleep.
    if (on.value == old) {
      me.notified = false;
      me.waits_on = &on;
      block([&me] { return me.notified; });
      me.waits_on = nullptr;
    }
    me.now.oldest[on.index] = static_cast<std::uint16_t>(history_of(on).stores.size() - 1);
  }
}

void execution::notify(location& on, std::size_t most, const site& at) {
  step();
  log(at, std::memory_order_relaxed, nullptr, 0);
  std::vector<thread_state*> waiting;
  for (thread_state& each : threads_) {
    if (each.waits_on == &on && !each.notified) waiting.push_back(&each);
  }
  for (; most > 0 && !waiting.empty(); --most) {
    const unsigned which = choose(waiting.size());
    waiting[which]->notified = true;
    waiting.erase(waiting.begin() + which);
  }
  end_of_step();
}

void execution::fence(std::memory_order order, const site& at) {
  step();
  order = sites_.order_of(at, order);
  log(at, order, nullptr, 0);
  thread_state& me = self();
  if (acquires(order)) me.now.join(me.to_acquire);
  if (order == std::memory_order_seq_cst) {
    me.now.join_oldest(total_);
    total_.join_oldest(me.now);
  }
  if (releases(order)) me.released = me.now;
  end_of_step();
}

// A full fence of this thread, then of each of the others, then of this thread. The others' fences
// come in no known order, so that none of them is taken to see what another one's stored.
void execution::see_all() {
  thread_state& me = self();
  me.now.join_oldest(total_);
  total_.join_oldest(me.now);
  const knowledge before = total_;
  for (unsigned t = 1; t <= count_; ++t) {
    if (&threads_[t] == &me) continue;
    threads_[t].now.join_oldest(before);
    total_.join_oldest(threads_[t].now);
  }
  me.now.join_oldest(total_);
}

void execution::barrier_of_all() {
  step();
  log({"barrier of all threads", std::source_location::current()}, std::memory_order_seq_cst,
      nullptr, 0);
  see_all();
  end_of_step();
}

void execution::let_pass(unsigned steps) {
  step();
  thread_state& me = self();
  std::array<std::uint64_t, most_threads> until{};
  for (unsigned t = 1; t <= count_; ++t) until[t] = threads_[t].steps + steps;
  block([this, &me, until] {
    for (unsigned t = 1; t <= count_; ++t) {
      const thread_state& other = threads_[t];
      if (&other != &me && !other.done && !other.waits_for && other.steps < until[t]) return false;
    }
    return true;
  });
  see_all();
  end_of_step();
}

void execution::read_plain(plain_field& of) {
  if (of.run != run_) of = {run_, 0, 0, {}};
  const thread_state& me = self();
  const auto number = static_cast<std::uint32_t>(&me - threads_.data());
  if (of.written != 0 && of.writer != number && me.now.seen[of.writer] < of.written)
    return fail("thread " + std::to_string(number) + " reads a plain field that thread " +
                std::to_string(of.writer) + " writes, and nothing orders the two");
  of.read[number] = me.now.seen[number];
}

void execution::write_plain(plain_field& of) {
  if (of.run != run_) of = {run_, 0, 0, {}};
  const thread_state& me = self();
  const auto number = static_cast<std::uint32_t>(&me - threads_.data());
  for (std::uint32_t t = 0; t < most_threads; ++t) {
    if (t == number) continue;
    const bool wrote = of.written != 0 && of.writer == t && me.now.seen[t] < of.written;
    if (wrote || me.now.seen[t] < of.read[t])
      return fail("thread " + std::to_string(number) + " writes a plain field that thread " +
                  std::to_string(t) + (wrote ? " writes" : " reads") +
                  ", and nothing orders the two");
  }
  of.writer = number;
  of.written = me.now.seen[number];
}

void execution::lock(mutex_state& of) {
  step();
  if (of.run != run_) of = {run_, false, {}};
  while (of.held) block([&of] { return !of.held; });
  of.held = true;
  self().now.join(of.released);
  end_of_step();
}

bool execution::try_lock(mutex_state& of) {
  step();
  if (of.run != run_) of = {run_, false, {}};
  if (of.held) return false;
  of.held = true;
  self().now.join(of.released);
  end_of_step();
  return true;
}

void execution::unlock(mutex_state& of) {
  of.held = false;
  of.released = self().now;
  end_of_step();
}

}  // namespace interleaving
