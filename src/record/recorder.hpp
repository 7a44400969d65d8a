// The recorder of one process: the ring that callbacks write to, and the thread that empties it
// into the trace.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>

#include "record/note.hpp"
#include "record/ring.hpp"
#include "record/settings.hpp"
#include "record/stacks.hpp"
#include "record/tick_clock.hpp"
#include "record/trace_builder.hpp"

namespace millpond::record {

// Callbacks call the noting functions from any thread; they take no lock that another thread holds
// for long and never wait. The background thread alone touches the file.
class recorder {
 public:
  // Opens the file and starts the thread. output_failure where the file cannot be made.
  static result<std::unique_ptr<recorder>> start(const settings& how, const trace::metadata& meta);
  ~recorder();

  // False once a limit was reached, the file failed, or the recording is over: then callbacks need
  // do nothing.
  [[nodiscard]] bool recording() const noexcept {
    return recording_.load(std::memory_order_relaxed);
  }
  // The time for a note: a few nanoseconds to ask for.
  [[nodiscard]] std::uint64_t ticks() const noexcept { return clock_.ticks(); }
  // Host nanoseconds since the recording began, as events have them.
  [[nodiscard]] std::uint64_t now() const noexcept { return monotonic_ns() - clock_.start_ns(); }

  // The position, or nothing where the ring is full: counted as dropped.
  std::optional<std::uint64_t> put(std::span<const note> notes) noexcept {
    return put(notes.size(), [&](note& to, std::size_t n) { to = notes[n]; });
  }
  std::optional<std::uint64_t> put(const note& one) noexcept {
    return put(1, [&](note& to, std::size_t) { to = one; });
  }
  // The notes written in their places: fill(note, number) sets every field that it means.
  template <class Fill>
  std::optional<std::uint64_t> put(std::uint64_t count, Fill&& fill) noexcept {
    const auto at = ring_.push(count, fill);
    if (!at) dropped_.fetch_add(count, std::memory_order_relaxed);
    return at;
  }
  enum class call_sort : std::uint8_t { memory, kernel };
  // The caller's call stack as the settings ask for such calls; 0 where they ask for none.
  std::uint32_t stack(call_sort of) noexcept {
    if (how_.stacks == stack_choice::none ||
        (of == call_sort::kernel && how_.stacks == stack_choice::memory))
      return 0;
    return captured();
  }
  // A stack of one address, known by other means than unwinding.
  std::uint32_t stack_at(std::uintptr_t address) noexcept {
    return stacks_.add(std::span(&address, 1));
  }
  // A copy of the text that is never freed, the same for the same text.
  const char* keep(const char* text);

  // A note of the trace's metadata; from any thread.
  void say(const std::string& name, const std::string& value);
  // Calls that the recording does not see from now on: it cannot say what was never freed.
  void leave_out() noexcept { whole_.store(false, std::memory_order_relaxed); }
  void set_device_name(const std::string& name);
  // Called on the background thread some ten times a second.
  void set_tick(void (*tick)()) noexcept { tick_.store(tick, std::memory_order_release); }

  // Empties the ring and completes the file, with the note `ended`. Once; later calls do nothing.
  void finish(const char* ended) noexcept;
  // In a forked child, which has no background thread: nothing is recorded or written from now on.
  void abandon() noexcept;

  [[nodiscard]] const settings& how() const noexcept { return how_; }
  [[nodiscard]] std::uint64_t dropped() const noexcept {
    return dropped_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] const stack_store& stacks() const noexcept { return stacks_; }

 private:
  recorder(const settings& how, std::unique_ptr<trace_builder> to);
  void work();
  std::uint32_t captured() noexcept;
  bool drain();  // false where there was nothing
  void write(note& next, std::uint64_t position);
  void failed(const error& why);

  settings how_;
  std::unique_ptr<trace_builder> builder_;
  ring<note> ring_;
  stack_store stacks_;
  tick_clock clock_;  // but for ticks, the background thread's
  std::atomic<bool> recording_{true};
  std::atomic<bool> whole_{true};
  std::atomic<bool> stop_{false};
  std::atomic<bool> abandoned_{false};
  std::atomic<std::uint64_t> dropped_{0};
  std::atomic<void (*)()> tick_{nullptr};
  std::mutex said_mutex_;
  std::unordered_map<std::string, std::string> said_;
  std::string device_name_;
  std::mutex text_mutex_;
  std::unordered_map<std::string, std::unique_ptr<std::string>> texts_;
  bool finished_ = false;
  std::string failure_;
  std::thread worker_;
};

}  // namespace millpond::record
