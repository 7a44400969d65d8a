// What src/base/atomic.hpp is where the interleavings are tested: the same names, each operation a
// step of the exploration.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <type_traits>

#include "interleaving/execution.hpp"

namespace interleaving {

template <class T>
class checked_atomic {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  using source = std::source_location;
  using order = std::memory_order;
  static constexpr order total = std::memory_order_seq_cst;

 public:
  using value_type = T;
  checked_atomic() noexcept : checked_atomic(T{}) {}
  checked_atomic(T value) noexcept {
    at_.value = bits(value);
    if (auto* const run = execution::current()) run->make(at_);
  }
  checked_atomic(const checked_atomic&) = delete;
  checked_atomic& operator=(const checked_atomic&) = delete;

  T load(order how = total, source at = source::current()) const noexcept {
    if (auto* const run = execution::current()) return value(run->load(at_, how, {"load", at}));
    return value(at_.value);
  }
  void store(T to, order how = total, source at = source::current()) noexcept {
    if (auto* const run = execution::current())
      run->store(at_, bits(to), how, {"store", at});
    else
      at_.value = bits(to);
  }
  T exchange(T to, order how = total, source at = source::current()) noexcept {
    return modify(how, {"exchange", at}, [&](T) { return to; });
  }
  T fetch_add(T n, order how = total, source at = source::current()) noexcept {
    return modify(how, {"fetch_add", at}, [&](T old) { return static_cast<T>(old + n); });
  }
  T fetch_sub(T n, order how = total, source at = source::current()) noexcept {
    return modify(how, {"fetch_sub", at}, [&](T old) { return static_cast<T>(old - n); });
  }
  bool compare_exchange_strong(T& expected, T to, order success, order failure,
                               source at = source::current()) noexcept {
    return swap(expected, to, success, failure, execution::strength::strong, at);
  }
  bool compare_exchange_strong(T& expected, T to, order how = total,
                               source at = source::current()) noexcept {
    return swap(expected, to, how, of_failure(how), execution::strength::strong, at);
  }
  bool compare_exchange_weak(T& expected, T to, order success, order failure,
                             source at = source::current()) noexcept {
    return swap(expected, to, success, failure, execution::strength::weak, at);
  }
  bool compare_exchange_weak(T& expected, T to, order how = total,
                             source at = source::current()) noexcept {
    return swap(expected, to, how, of_failure(how), execution::strength::weak, at);
  }
  void wait(T old, order how = total, source at = source::current()) const noexcept {
    execution::current()->wait(at_, bits(old), how, {"wait", at});
  }
  void notify_one(source at = source::current()) noexcept {
    if (auto* const run = execution::current()) run->notify(at_, 1, {"notify_one", at});
  }
  void notify_all(source at = source::current()) noexcept {
    if (auto* const run = execution::current())
      run->notify(at_, ~std::size_t{0}, {"notify_all", at});
  }

 private:
  static std::uint64_t bits(T value) noexcept {
    std::uint64_t out = 0;
    std::memcpy(&out, &value, sizeof value);
    return out;
  }
  static T value(std::uint64_t bits) noexcept {
    T out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
  }
  static order of_failure(order success) noexcept {
    if (success == std::memory_order_acq_rel) return std::memory_order_acquire;
    return success == std::memory_order_release ? std::memory_order_relaxed : success;
  }
  template <class Change>
  T modify(order how, const site& at, const Change& change) noexcept {
    const auto changed = [&](std::uint64_t old) { return bits(change(value(old))); };
    if (auto* const run = execution::current()) return value(run->modify(at_, how, at, changed));
    const std::uint64_t old = at_.value;
    at_.value = changed(old);
    return value(old);
  }
  bool swap(T& expected, T to, order success, order failure, execution::strength how,
            source at) noexcept {
    std::uint64_t wanted = bits(expected);
    bool done = at_.value == wanted;
    if (auto* const run = execution::current()) {
      done = run->compare_exchange(at_, &wanted, bits(to), success, failure, how,
                                   {"compare_exchange", at});
    } else if (done) {
      at_.value = bits(to);
    } else {
      wanted = at_.value;
    }
    expected = value(wanted);
    return done;
  }

  mutable location at_;
};

// A field that is no atomic: two accesses, one of them a write, that nothing orders are a failure.
template <class T>
class checked_plain {
 public:
  checked_plain() noexcept = default;
  checked_plain(T value) noexcept : value_(value) {}
  checked_plain(const checked_plain& other) noexcept : value_(other.read()) {}
  checked_plain& operator=(const checked_plain& other) noexcept { return *this = other.read(); }
  checked_plain& operator=(T value) noexcept {
    if (auto* const run = execution::current()) run->write_plain(field_);
    value_ = value;
    return *this;
  }
  checked_plain& operator+=(T n) noexcept { return *this = static_cast<T>(read() + n); }
  checked_plain& operator-=(T n) noexcept { return *this = static_cast<T>(read() - n); }
  operator T() const noexcept { return read(); }
  T operator->() const noexcept
    requires std::is_pointer_v<T>
  {
    return read();
  }

 private:
  T read() const noexcept {
    if (auto* const run = execution::current()) run->read_plain(field_);
    return value_;
  }
  T value_{};
  mutable plain_field field_;
};

class checked_mutex {
 public:
  checked_mutex() = default;
  checked_mutex(const checked_mutex&) = delete;
  checked_mutex& operator=(const checked_mutex&) = delete;
  void lock() {
    if (auto* const run = execution::current()) run->lock(state_);
  }
  bool try_lock() {
    auto* const run = execution::current();
    return run == nullptr || run->try_lock(state_);
  }
  void unlock() {
    if (auto* const run = execution::current()) run->unlock(state_);
  }

 private:
  execution::mutex_state state_;
};

}  // namespace interleaving

namespace millpond {

template <class T>
using atomic = interleaving::checked_atomic<T>;
template <class T>
using plain = interleaving::checked_plain<T>;
using usual_mutex = interleaving::checked_mutex;

inline void thread_fence(std::memory_order order,
                         std::source_location at = std::source_location::current()) noexcept {
  if (auto* const run = interleaving::execution::current()) run->fence(order, {"fence", at});
}
// For the compiler alone, which the exploration does not play.
inline void signal_fence(std::memory_order) noexcept {}
inline void yield_thread() noexcept {
  if (auto* const run = interleaving::execution::current()) run->yield();
}
inline constexpr bool interleaved = true;

}  // namespace millpond
