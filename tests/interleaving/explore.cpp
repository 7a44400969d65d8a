// All executions of a program: each is a row of choices, and the next one differs in the last
// choice that has another way left.
#include "interleaving/explore.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "base/process_barrier.hpp"
#include "interleaving/checked_atomic.hpp"
#include "interleaving/execution.hpp"

namespace interleaving {
namespace {

constexpr std::string_view letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWX";

// The threads that run the programs, for all executions. Where one fails they stay where they are,
// and the next has others.
struct crew {
  batons theirs;
  baton ended;
  execution* run = nullptr;
  const std::vector<std::function<void()>>* bodies = nullptr;

  crew() {
    for (unsigned t = 1; t < most_threads; ++t) {
      std::thread([this, t] {
        for (;;) {
          theirs[t].take();
          run->run_thread(t, (*bodies)[t - 1]);
        }
      }).detach();
    }
  }
};

// What a failed execution holds is never given back: its threads are in the middle of it.
std::vector<std::shared_ptr<void>>& kept() {
  static auto* const all = new std::vector<std::shared_ptr<void>>;
  return *all;
}

std::shared_ptr<execution> run_once(const options& how, site_table& sites,
                                    std::vector<std::uint8_t> prefix, bool logs,
                                    const std::function<program()>& make) {
  static auto* const all = new std::shared_ptr<crew>;
  if (*all == nullptr) *all = std::make_shared<crew>();
  crew& with = **all;
  const auto run = std::make_shared<execution>(how, sites, std::move(prefix), logs);
  run->begin_setup();
  const auto what = std::make_shared<program>(make());
  if (what->threads.empty() || what->threads.size() >= most_threads)
    throw std::invalid_argument("a program has one to three threads");
  with.run = run.get();
  with.bodies = &what->threads;
  run->run_threads(static_cast<unsigned>(what->threads.size()), with.theirs, with.ended);
  if (!run->failed() && what->at_end) what->at_end();
  run->end();
  if (run->failed()) {
    kept().insert(kept().end(), {run, what, *all});
    all->reset();
  }
  return run;
}

std::vector<std::uint8_t> read(std::string_view choices) {
  std::vector<std::uint8_t> out;
  for (const char c : choices) out.push_back(static_cast<std::uint8_t>(letters.find(c)));
  return out;
}

std::string text_of(const std::vector<execution::choice>& choices) {
  std::string out;
  for (const execution::choice& each : choices) out += letters[each.picked];
  out.erase(out.find_last_not_of('0') + 1);
  return out.empty() ? "0" : out;
}

// The name of a function without what it answers, takes and lies in.
std::string_view short_name(std::string_view name) {
  name = name.substr(0, name.find('('));
  if (const auto space = name.rfind(' '); space != name.npos) name.remove_prefix(space + 1);
  for (const std::string_view space : {"millpond::", "order::"}) {
    if (name.starts_with(space)) name.remove_prefix(space.size());
  }
  return name;
}

std::atomic<barrier> barrier_now{barrier::of_all};
// Made anew with each program: an atomic that its threads read.
struct barrier_state {
  millpond::atomic<bool> reaches_all;
  checked_mutex while_time_passes;
  explicit barrier_state(bool reaches) : reaches_all(reaches) {}
};
std::unique_ptr<barrier_state> barrier_here;

}  // namespace

std::string_view name_of(std::memory_order order) noexcept {
  switch (order) {
    case std::memory_order_relaxed: return "relaxed";
    case std::memory_order_release: return "release";
    case std::memory_order_acq_rel: return "acq_rel";
    case std::memory_order_seq_cst: return "seq_cst";
    default: return "acquire";
  }
}

std::string name_of(const site& at, std::memory_order order) {
  return std::string(short_name(at.at.function_name())) + ' ' + at.operation + ' ' +
         std::string(name_of(order));
}

std::memory_order site_table::order_of(const site& at, std::memory_order order) {
  const auto number = [](const void* ptr) { return reinterpret_cast<std::uintptr_t>(ptr); };
  const std::uint64_t key =
      (number(at.at.file_name()) * 0x9e3779b97f4a7c15ULL) ^
      (number(at.operation) * 0xd6e8feb86659fd93ULL) ^
      ((std::uint64_t{at.at.line()} << 20 | at.at.column() << 4 | static_cast<unsigned>(order)) *
       0xca5a826395121157ULL);
  if (const auto known = orders_.find(key); known != orders_.end()) return known->second;
  std::memory_order out = order;
  if (order != std::memory_order_relaxed) {
    const std::string name = name_of(at, order);
    names_.insert(name);
    if (const auto other = how_.weakened.find(name); other != how_.weakened.end())
      out = other->second;
  }
  return orders_[key] = out;
}

bool site_table::is_one_of(const std::vector<std::string>& names, const site& at) {
  if (names.empty()) return false;
  std::string name = name_of(at, std::memory_order_relaxed);
  name.erase(name.rfind(' '));
  return std::find(names.begin(), names.end(), name) != names.end();
}

outcome explore(const options& how, const std::function<program()>& make) {
  outcome out;
  site_table sites(how);
  std::string only = how.replay;
  if (const char* const given = std::getenv("MILLPOND_REPLAY"); only.empty() && given != nullptr)
    only = given;
  std::vector<std::uint8_t> prefix = read(only);
  for (;;) {
    auto run = run_once(how, sites, prefix, false, make);
    ++out.executions;
    if (run->failed()) {
      out.failed = true;
      out.message = run->message();
      out.choices = text_of(run->choices());
      std::vector<std::uint8_t> same;
      for (const auto& each : run->choices()) same.push_back(each.picked);
      run = run_once(how, sites, same, true, make);
      out.steps = run->steps();
      if (run->message() != out.message)
        out.message += "; the same choices again gave: " + run->message();
      break;
    }
    if (!only.empty()) break;
    std::vector<execution::choice> next = run->choices();
    while (!next.empty() && next.back().picked + 1 == next.back().count) next.pop_back();
    out.complete = next.empty();
    if (out.complete || out.executions == how.most_executions) break;
    ++next.back().picked;
    prefix.clear();
    for (const auto& each : next) prefix.push_back(each.picked);
  }
  out.sites = sites.names();
  return out;
}

void require(bool holds, std::string_view what) {
  if (!holds) execution::current()->fail(std::string(what));
}

namespace {

std::vector<std::memory_order> weaker_than(std::string_view name) {
  using enum std::memory_order;
  const bool loads = name.find(" load ") != name.npos;
  const bool stores = name.find(" store ") != name.npos;
  std::vector<std::memory_order> out;
  if (name.ends_with("seq_cst"))
    out.push_back(loads ? acquire : stores ? release : acq_rel);
  else if (name.ends_with("acq_rel"))
    out = {acquire, release};
  out.push_back(relaxed);
  return out;
}

}  // namespace

order_report weaken_each(const options& how, const std::vector<std::string>& prefixes,
                         const std::vector<std::function<program()>>& makes) {
  order_report out;
  std::set<std::string> sites;
  for (const auto& make : makes) {
    const outcome as_it_is = explore(how, make);
    out.executions += as_it_is.executions;
    if (as_it_is.failed || !as_it_is.complete)
      out.needed.push_back("a program as it is fails or is too large: " + as_it_is.message);
    sites.insert(as_it_is.sites.begin(), as_it_is.sites.end());
  }
  for (const std::string& name : sites) {
    bool ours = false;
    for (const std::string& prefix : prefixes) ours = ours || name.starts_with(prefix);
    if (!ours) continue;
    for (const std::memory_order order : weaker_than(name)) {
      options weakened = how;
      weakened.weakened[name] = order;
      bool failed = false;
      for (const auto& make : makes) {
        if (failed) break;
        const outcome seen = explore(weakened, make);
        out.executions += seen.executions;
        failed = seen.failed;
      }
      (failed ? out.needed : out.not_needed).push_back(name + " as " + std::string(name_of(order)));
    }
  }
  return out;
}

void set_barrier(barrier what) noexcept {
  barrier_now = what;
  barrier_here = std::make_unique<barrier_state>(what != barrier::of_this_thread);
}

}  // namespace interleaving

// The library's own of a process that is explored.
namespace millpond {

bool process_barrier_available() noexcept {
  return interleaving::barrier_now.load() != interleaving::barrier::of_this_thread;
}

bool process_barrier_reaches_all() noexcept {
  using namespace interleaving;
  // What never changes is no step.
  if (barrier_now.load() != barrier::refused_later) return process_barrier_available();
  return barrier_here->reaches_all.load(std::memory_order_relaxed);
}

void process_barrier() noexcept {
  using namespace interleaving;
  if (barrier_now.load() == barrier::of_all) return execution::current()->barrier_of_all();
  if (barrier_now.load() == barrier::refused_later) {
    // Longer than any owner takes for the steps of owner_lock. Others wait for it too.
    const std::lock_guard lock(barrier_here->while_time_passes);
    if (barrier_here->reaches_all.exchange(false, std::memory_order_relaxed))
      execution::current()->let_pass(4);
  }
  thread_fence(std::memory_order_seq_cst);
}

}  // namespace millpond
