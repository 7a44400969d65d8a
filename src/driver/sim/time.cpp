// Virtual time: what calls cost, how the host waits, and when effects happen.
#include <algorithm>
#include <cmath>
#include <optional>

#include "base/thread_number.hpp"
#include "driver/sim/state.hpp"

namespace millpond {
namespace sim {
namespace {

// Threads that the program gave no number come behind all that it may give one.
constexpr std::uint64_t first_not_given = std::uint64_t{1} << 32;
thread_local std::optional<std::uint64_t> given_number;
thread_local int library_depth = 0;

}  // namespace

std::uint64_t thread_number() noexcept {
  return given_number ? *given_number : first_not_given + millpond::thread_number();
}

bool in_library() noexcept {
  return library_depth > 0;
}

call_scope::call_scope(simulated_gpu::state& gpu, call which, std::uint64_t bytes)
    : gpu_(gpu), which_(which) {
  // CUDA forbids driver calls in a host function; in a kernel's body this thread even holds the
  // lock.
  if (simulated_gpu::state::callback_thread ||
      gpu.body_thread.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
    status_ = driver_status::not_permitted;
    return;
  }
  lock_ = std::unique_lock(gpu.mutex);
  entered_ns_ = gpu.now_ns;
  ++gpu.counters[static_cast<std::size_t>(which)].count;
  const faults::verdict verdict = gpu.faults.ask(which);
  gpu.now_ns += verdict.slow_ns;
  if (bytes != later) gpu.charge(which, bytes);
  gpu.settle();
  if (verdict.loses_device) gpu.lose_device(verdict.status);
  if (gpu.lost != driver_status::success) {
    status_ = gpu.lost;
  } else if (verdict.fails) {
    status_ = verdict.status;
  } else if (needs_context(which) && gpu.refusal_of_context() != driver_status::success) {
    status_ = gpu.refusal_of_context();
  } else if (call_table[static_cast<std::size_t>(which)].unsafe && !gpu.captures.empty() &&
             gpu.capture_forbids(thread_number(), name_of(which))) {
    status_ = driver_status::capture_unsupported;
  }
}

call_scope::~call_scope() {
  if (!lock_.owns_lock()) return;
  gpu_.finish_callbacks(lock_);
  gpu_.counters[static_cast<std::size_t>(which_)].ns += gpu_.now_ns - entered_ns_;
}

}  // namespace sim

thread_local bool simulated_gpu::state::callback_thread = false;

void simulated_gpu::set_thread(std::uint64_t number) noexcept {
  sim::given_number = number;
}
std::uint64_t simulated_gpu::thread_number() noexcept {
  return sim::thread_number();
}
simulated_gpu::library_scope::library_scope() noexcept {
  ++sim::library_depth;
}
simulated_gpu::library_scope::~library_scope() {
  --sim::library_depth;
}

// Below the ninth decile a call takes its median give or take a twentieth; from there to the 99th
// percentile it climbs evenly on a logarithmic scale, and the last hundredth goes a fifth beyond.
std::uint64_t simulated_gpu::state::sample(const cost_table& table, std::uint64_t bytes) {
  const double p50 = table.p50_ns(bytes);
  if (options.times == simulated_gpu_options::call_times::median)
    return static_cast<std::uint64_t>(std::llround(p50));
  const double p99 = std::max(table.p99_ns(bytes), 1.05 * p50);
  const double u = numbers.unit();
  double ns = 0;
  if (u < 0.9) {
    ns = p50 * (u < 0.5 ? 0.95 + 0.1 * u : 1 + (u - 0.5) * 0.125);
  } else if (u < 0.99) {
    ns = 1.05 * p50 * std::exp(std::log(p99 / (1.05 * p50)) * (u - 0.9) / 0.09);
  } else {
    ns = p99 * (1 + (u - 0.99) * 20);
  }
  return static_cast<std::uint64_t>(std::llround(ns));
}

void simulated_gpu::state::charge(sim::call which, std::uint64_t bytes) {
  now_ns += sample(*costs_[static_cast<std::size_t>(which)], bytes);
}

void simulated_gpu::state::charge_named(std::initializer_list<std::string_view> tables,
                                        sim::call otherwise, std::uint64_t bytes) {
  for (const std::string_view table : tables) {
    const auto found = options.profile.calls.find(table);
    if (found != options.profile.calls.end()) return charge_table(found->second, bytes);
  }
  charge(otherwise, bytes);
}

void simulated_gpu::state::charge_table(const cost_table& table, std::uint64_t bytes) {
  now_ns += sample(table, bytes);
}

void simulated_gpu::state::charge_pool_table(const cost_table& table, std::uint64_t bytes) {
  const double factor = cold_calls > 0 ? options.profile.after_pageable_factor : 1;
  now_ns +=
      static_cast<std::uint64_t>(std::llround(static_cast<double>(sample(table, bytes)) * factor));
}

void simulated_gpu::state::charge_pool(std::string_view table, sim::call which,
                                       std::uint64_t bytes) {
  const auto& calls = options.profile.calls;
  if (which == sim::call::pool_allocate && !pools_used) {
    pools_used = true;
    const auto first = calls.find("cuMemAllocFromPoolAsync.first");
    if (first != calls.end()) charge_table(first->second, bytes);
  }
  if (cold_calls > 0) --cold_calls;
  const auto found = calls.find(table);
  charge_pool_table(found != calls.end() ? found->second : *costs_[static_cast<std::size_t>(which)],
                    bytes);
}

// Effects happen in the order of their ends. A host function stops everything behind it until it
// has been run, with the lock released, by the thread that came upon it.
void simulated_gpu::state::settle() {
  while (!callback_running_ && !agenda.empty() && agenda.first_end_ns() <= now_ns) {
    agenda.take_first([&](std::uint64_t end_ns, std::uint64_t number, sim::work& what) {
      if (const auto* host = std::get_if<sim::host_work>(&what)) {
        callback_ = *host;
        callback_end_ns_ = end_ns;
        callback_running_ = true;
        callback_taken_ = false;
      } else if (lost == driver_status::success) {
        apply(what, number);
      }
    });
  }
}

void simulated_gpu::state::finish_callbacks(std::unique_lock<std::mutex>& lock) {
  while ((callback_running_ && !callback_taken_) || !retired.empty()) {
    if (callback_running_ && !callback_taken_) {
      callback_taken_ = true;
      const sim::host_work host = callback_;
      lock.unlock();
      callback_thread = true;
      host.function(host.data);
      callback_thread = false;
      lock.lock();
      callback_running_ = false;
      callback_done_.notify_all();
      settle();
      continue;
    }
    const std::vector<sim::user_object> objects = std::move(retired);
    retired.clear();
    lock.unlock();
    callback_thread = true;
    for (const sim::user_object& object : objects) object.destroy(object.data);
    callback_thread = false;
    lock.lock();
  }
}

void simulated_gpu::state::wait_until(std::unique_lock<std::mutex>& lock, std::uint64_t time_ns) {
  now_ns = std::max(now_ns, time_ns);
  settle();
  while (settled_ns() < time_ns) {
    if (callback_running_ && !callback_taken_) {
      finish_callbacks(lock);
    } else {
      callback_done_.wait(lock);
    }
    settle();
  }
}

void simulated_gpu::state::wait_for_device(std::unique_lock<std::mutex>& lock) {
  ++waits;
  wait_until(lock, device_end_ns);
  order.observe_all();
}

void simulated_gpu::state::wait_for_context(std::unique_lock<std::mutex>& lock,
                                            const sim::context_record& which) {
  ++waits;
  wait_until(lock, end_of(which));
  order.observe_all([&](std::uint64_t number) { return which.covers(*contexts[number]); });
}

void simulated_gpu::state::pools_after_synchronize() {
  std::uint64_t given = 0;
  pools.visit([&](sim::pool& pool) { given += pool.trim_to_threshold(now_ns); });
  if (given > 0) charge_table(options.profile.pool_shrink, given);
}

std::uint64_t simulated_gpu::now_ns() const {
  const std::lock_guard lock(state_->mutex);
  return state_->now_ns;
}

void simulated_gpu::advance(std::uint64_t nanoseconds) {
  std::unique_lock lock(state_->mutex);
  state_->now_ns += nanoseconds;
  state_->settle();
  state_->finish_callbacks(lock);
}

void simulated_gpu::drain() {
  std::unique_lock lock(state_->mutex);
  state_->wait_until(lock, state_->device_end_ns);
  state_->finish_callbacks(lock);
}

}  // namespace millpond
