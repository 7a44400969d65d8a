#include "bindings/torch/history.hpp"

#include <chrono>
#include <cstdio>

#include "base/json_text.hpp"

namespace millpond::torch {
namespace {

std::atomic<history::frame_source> frames_of_caller{nullptr};

std::uint64_t wall_clock_us() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                        std::chrono::system_clock::now().time_since_epoch())
                                        .count());
}

void append_entry(std::string& out, const history::entry& e) {
  char text[160];
  std::snprintf(text, sizeof text, "[%d,%llu,%llu,%llu,%llu,%u]", static_cast<int>(e.what),
                static_cast<unsigned long long>(e.address),
                static_cast<unsigned long long>(e.bytes), static_cast<unsigned long long>(e.stream),
                static_cast<unsigned long long>(e.time_us), e.stack);
  out += text;
}

}  // namespace

void history::set_frame_source(frame_source source) noexcept {
  frames_of_caller.store(source, std::memory_order_release);
}

void history::start(std::uint64_t most_entries) {
  const std::lock_guard lock(mutex_);
  entries_.clear();
  stacks_.clear();
  live_.clear();
  most_ = most_entries;
  on_.store(true, std::memory_order_relaxed);
}

void history::note(action what, std::uint64_t address, std::uint64_t bytes, stream_handle stream) {
  std::string frames;
  if (const frame_source source = frames_of_caller.load(std::memory_order_acquire)) {
    frames.resize(4096);
    frames.resize(source(frames.data(), frames.size()));
  }
  const std::lock_guard lock(mutex_);
  entry e{what, address, bytes, reinterpret_cast<std::uint64_t>(stream), wall_clock_us(), 0};
  if (!frames.empty())
    e.stack = stacks_.emplace(std::move(frames), static_cast<std::uint32_t>(stacks_.size()) + 1)
                  .first->second;
  if (what == action::alloc) live_[address] = e;
  if (what == action::free_requested) live_.erase(address);
  if (entries_.size() >= most_ && !entries_.empty()) entries_.pop_front();
  if (most_ > 0) entries_.push_back(e);
}

std::string history::json() const {
  const std::lock_guard lock(mutex_);
  std::string out = "{\"entries\":[";
  bool first = true;
  const auto comma = [&] {
    if (!first) out += ',';
    first = false;
  };
  for (const entry& e : entries_) comma(), append_entry(out, e);
  out += "],\"live\":[";
  first = true;
  for (const auto& [address, e] : live_) comma(), append_entry(out, e);
  out += "],\"stacks\":[";
  std::vector<const std::string*> by_number(stacks_.size());
  for (const auto& [text, number] : stacks_) by_number[number - 1] = &text;
  first = true;
  for (const std::string* const text : by_number) comma(), append_json_string(out, *text);
  return out + "]}";
}

}  // namespace millpond::torch
