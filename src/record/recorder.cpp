#include "record/recorder.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <new>

#include "base/threads.hpp"
#include "record/frame_rules.hpp"
#include "record/symbols.hpp"

namespace millpond::record {
namespace {

// How long the background thread sleeps when there is nothing to write, and how often the file is
// made readable up to now: what a killed program can lose.
constexpr std::chrono::milliseconds nap{2};
constexpr std::uint64_t flush_every_ns = 25'000'000, window_every_ns = 2'000'000'000,
                        tick_every_ns = 100'000'000;

}  // namespace

recorder::recorder(const settings& how, std::unique_ptr<trace_builder> to)
    : how_(how),
      builder_(std::move(to)),
      ring_(how.ring_cells),
      stacks_(stack_store::unwinding::by_rules,
              how.python ? stack_store::python::seen : stack_store::python::left_out) {}

result<std::unique_ptr<recorder>> recorder::start(const settings& how,
                                                  const trace::metadata& meta) {
  trace_builder_options options;
  options.path = how.path;
  options.file_mode = static_cast<unsigned>(how.file_mode);
  options.meta = meta;
  options.last_events = how.last_events;
  // Stacks come when there is a recorder.
  auto store = std::make_shared<const stack_store*>(nullptr);
  options.frames = [most = how.frames, store](std::span<const std::uintptr_t> stack,
                                              trace::string_table& strings) {
    return frames_of(stack, most, strings, **store);
  };
  auto to = trace_builder::create(std::move(options));
  if (!to) return to.error();
  std::unique_ptr<recorder> made(new recorder(how, std::move(*to)));
  *store = &made->stacks_;
  made->say("clock", made->clock_.is_counter() ? "the processor's counter" : "the system's");
  // The program's signals are for its own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  made->worker_ = thread_or_none([at = made.get()] { at->work(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!made->worker_.joinable()) {
    return error{error_code::not_permitted,
                 "recording: the system has no thread to give to write the trace with (ulimit -u, "
                 "or the control group's pids.max): raise the limit"};
  }
  return made;
}

recorder::~recorder() {
  finish("");
}

std::uint32_t recorder::captured() noexcept {
  // Frames of CUDA, CUPTI and ours are taken off later: room for them too.
  constexpr std::size_t foreign_frames = 24;
  return stacks_.capture(
      std::min<std::size_t>(how_.frames + foreign_frames, stack_store::most_frames));
}

const char* recorder::keep(const char* text) {
  if (text == nullptr) return nullptr;
  const std::lock_guard lock(text_mutex_);
  auto& kept = texts_[text];
  if (!kept) kept = std::make_unique<std::string>(text);
  return kept->c_str();
}

void recorder::say(const std::string& name, const std::string& value) {
  const std::lock_guard lock(said_mutex_);
  said_[name] = value;
}

void recorder::set_device_name(const std::string& name) {
  const std::lock_guard lock(said_mutex_);
  device_name_ = name;
}

void recorder::failed(const error& why) {
  recording_.store(false, std::memory_order_relaxed);
  if (!failure_.empty()) return;
  failure_ = why.message;
  std::fprintf(stderr, "millpond record: %s; what was written before is kept\n",
               why.message.c_str());
}

void recorder::write(note& next, std::uint64_t position) {
  // From ticks to nanoseconds: what reads the notes knows no clock.
  if (next.form == note_form::launch) {
    next.kernel.time = clock_.to_ns(next.kernel.time);
    next.took = clock_.span_ns(next.took);
  } else if (!next.in_ns && next.form != note_form::arguments) {
    next.at.time_ns = clock_.to_ns(next.at.time_ns);
    next.at.duration_ns = saturated(clock_.span_ns(next.took));
  }
  if (auto done = builder_->add(next, position); !done) failed(done.error());
}

bool recorder::drain() {
  note next;
  std::uint64_t position = 0;
  bool any = false;
  clock_.look();
  // Stacks are stored before the notes that name them, so that they are taken after a note was
  // seen. A busy program must not keep us from the file and the limits.
  for (int left = 16384; left > 0 && ring_.pop(next, position); --left) {
    any = true;
    if (!failure_.empty()) continue;
    stacks_.take_new([this](std::uint32_t id, std::span<const std::uintptr_t> stack) {
      builder_->add_stack(id, stack);
    });
    write(next, position);
  }
  return any;
}

void recorder::work() {
  std::uint64_t flushed = 0, ticked = 0, dropped = 0;
  bool dirty = false, paused = false;
  const std::uint64_t every = how_.last_events == 0 ? flush_every_ns : window_every_ns;
  while (!stop_.load(std::memory_order_acquire)) {
    const bool any = drain();
    dirty = dirty || any;
    const std::uint64_t time = now();
    if (dropped != dropped_.load(std::memory_order_relaxed)) {
      dropped = dropped_.load(std::memory_order_relaxed);
      builder_->set_dropped(dropped);
    }
    if (dirty && failure_.empty() && time - flushed > every) {
      if (auto done = builder_->flush(); !done) failed(done.error());
      flushed = time;
      dirty = false;
    }
    if (time - ticked > tick_every_ns) {
      ticked = time;
      stacks_.set_unloaded(count_unloaded());
      if (auto* tick = tick_.load(std::memory_order_acquire)) tick();
    }
    if (!whole_.load(std::memory_order_relaxed) && !paused) {
      paused = true;
      builder_->set_note("paused", "the program left out parts of itself");
      dirty = true;
    }
    const char* limit = nullptr;
    if (how_.most_ns != 0 && time > how_.most_ns) limit = "the time limit was reached";
    if (how_.most_bytes != 0 && builder_->written_bytes() > how_.most_bytes)
      limit = "the size limit was reached";
    if (recording() && limit != nullptr) {
      recording_.store(false, std::memory_order_relaxed);
      builder_->set_note("limit", limit);
      dirty = true;  // also where the program makes no call any more, or is killed later
      flushed = 0;
    }
    if (!any) std::this_thread::sleep_for(nap);
  }
  while (drain()) {
  }
}

void recorder::finish(const char* ended) noexcept {
  if (finished_ || abandoned_.load(std::memory_order_relaxed)) return;
  finished_ = true;
  const bool whole = recording() && whole_.load(std::memory_order_relaxed);
  recording_.store(false, std::memory_order_relaxed);
  stop_.store(true, std::memory_order_release);
  if (worker_.joinable()) worker_.join();
  try {
    if (!failure_.empty()) return;
    {
      const std::lock_guard lock(said_mutex_);
      for (const auto& [name, value] : said_) builder_->set_note(name, value);
      if (!device_name_.empty()) builder_->set_device_name(device_name_);
    }
    builder_->set_dropped(dropped());
    if (!whole_.load(std::memory_order_relaxed))
      builder_->set_note("paused", "the program left out parts of itself");
    // Only a recording of the whole run can say what was never freed.
    if (whole && dropped() == 0 && *ended != '\0') builder_->set_note("ended", ended);
    if (auto done = builder_->close(); !done) failed(done.error());
  } catch (...) {
    // No memory at the very end: the file reads as cut.
  }
}

void recorder::abandon() noexcept {
  abandoned_.store(true, std::memory_order_relaxed);
  recording_.store(false, std::memory_order_relaxed);
  worker_.detach();  // it did not come along
}

}  // namespace millpond::record
