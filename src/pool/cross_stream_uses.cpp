#include "pool/cross_stream_uses.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace millpond {

std::vector<cross_stream_uses::recorded_use> cross_stream_uses::take(heap::extent* block) noexcept {
  const mutex_lock lock(mutex_);
  const auto found = records_.find(block);
  if (found == records_.end()) return {};
  std::vector<recorded_use> out = std::move(found->second.uses);
  records_.erase(found);
  return out;
}

std::unordered_map<const heap::extent*, bool> cross_stream_uses::tagged(
    const std::vector<std::string>& drop) {
  std::unordered_map<const heap::extent*, bool> out;
  const mutex_lock lock(mutex_);
  for (const auto& [block, of] : records_) {
    if (of.tagged) out[block] = std::find(drop.begin(), drop.end(), of.tag) != drop.end();
  }
  return out;
}

void cross_stream_uses::wait(std::list<waiting>& one) noexcept {
  const mutex_lock lock(mutex_);
  for (const waiting& w : one) waiting_bytes_ += w.block->bytes;
  waiting_.splice(waiting_.end(), one);
}

std::uint64_t cross_stream_uses::waiting_bytes() noexcept {
  const mutex_lock lock(mutex_);
  return waiting_bytes_;
}

std::list<cross_stream_uses::waiting> cross_stream_uses::poll(driver& gpu,
                                                              order::event_cache& events) noexcept {
  std::list<waiting> passed;
  const mutex_lock lock(mutex_);
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    while (!at->events.empty() && gpu.event_query(at->events.back()).ok()) {
      events.put(at->events.back());
      at->events.pop_back();
    }
    const auto next = std::next(at);
    if (at->events.empty()) {
      waiting_bytes_ -= at->block->bytes;
      passed.splice(passed.end(), waiting_, at);
    }
    at = next;
  }
  return passed;
}

event_handle cross_stream_uses::nearest() noexcept {
  const mutex_lock lock(mutex_);
  for (const waiting& w : waiting_) {
    if (!w.events.empty()) return w.events.back();
  }
  return nullptr;
}

void cross_stream_uses::drain(order::event_cache& events) noexcept {
  const mutex_lock lock(mutex_);
  for (const waiting& w : waiting_) {
    for (const event_handle e : w.events) events.put(e);
  }
  waiting_.clear();
  waiting_bytes_ = 0;
}

}  // namespace millpond
