#include "millpond/growable/growable_blocks.hpp"

#include <algorithm>
#include <map>
#include <mutex>

#include "driver/own_calls.hpp"
#include "millpond/base/units.hpp"
#include "millpond/growable/growable_buffer.hpp"
#include "resource/wait.hpp"

namespace millpond {

struct growable_blocks::state {
  std::shared_ptr<driver> gpu;
  growable_blocks_options options;
  // Without limits: it counts what the driver has out, also where it refused to take that back.
  std::shared_ptr<memory_budget> books = memory_budget::create({});
  stream_handle quiet = nullptr;  // never has work: the order of growth is the callers' own
  mutable std::mutex mutex;       // held over calls that create and map, none of which waits
  std::map<device_address, growable_memory> live;
  std::multimap<std::uint64_t, growable_memory> kept;  // by mapped bytes

  result<void> extend(growable_memory& block, std::uint64_t bytes);
  std::multimap<std::uint64_t, growable_memory>::iterator kept_for(std::uint64_t bytes);
  std::uint64_t trim_locked();
};

// With room to spare where there is memory; to the byte, and without what is kept, where there is
// little.
result<void> growable_blocks::state::extend(growable_memory& block, std::uint64_t bytes) {
  if (bytes > block.max_bytes()) {
    return error{error_code::out_of_memory, "the block cannot grow to " + format_bytes(bytes) +
                                                ": its addresses end at " +
                                                format_bytes(block.max_bytes())};
  }
  // A step of any size means all addresses at most.
  const double most = static_cast<double>(block.max_bytes() - block.bytes());
  const auto spare =
      static_cast<std::uint64_t>(std::min(static_cast<double>(block.bytes()) * options.step, most));
  auto grown = block.grow(std::min(std::max(bytes, block.bytes() + spare), block.max_bytes()));
  if (!grown) grown = block.grow(bytes);
  if (!grown && trim_locked() > 0) grown = block.grow(bytes);
  return grown;
}

// The smallest that is large enough, or else the largest whose addresses are enough, which grows.
std::multimap<std::uint64_t, growable_memory>::iterator growable_blocks::state::kept_for(
    std::uint64_t bytes) {
  const auto enough = kept.lower_bound(bytes);
  if (enough != kept.end()) return enough;
  for (auto at = kept.end(); at != kept.begin();) {
    if ((--at)->second.max_bytes() >= bytes) return at;
  }
  return kept.end();
}

// What is kept was done when it was freed, so that nothing runs on it.
std::uint64_t growable_blocks::state::trim_locked() {
  const std::uint64_t before = books->used_bytes();
  kept.clear();
  return before - books->used_bytes();
}

growable_blocks::growable_blocks(std::unique_ptr<state> inside) : state_(std::move(inside)) {}

result<std::shared_ptr<growable_blocks>> growable_blocks::create(std::shared_ptr<driver> gpu,
                                                                 growable_blocks_options options) {
  if (gpu == nullptr) return error{error_code::invalid_argument, "growable_blocks: no driver"};
  if (gpu->info().granularity == 0) {
    return error{error_code::not_supported,
                 "growable_blocks: " + gpu->info().name + " has no virtual memory management"};
  }
  if (!(options.step >= 0)) {
    return error{error_code::invalid_argument,
                 "growable_blocks: step is " + std::to_string(options.step) +
                     ", expected a share of the block that is 0 or more"};
  }
  if (options.reserve_bytes > max_bytes) {
    return error{error_code::invalid_argument,
                 "growable_blocks: reserve_bytes is " + std::to_string(options.reserve_bytes) +
                     ", more than any device has; 0 for a quarter of this one's memory"};
  }
  auto inside = std::make_unique<state>();
  if (options.reserve_bytes == 0) options.reserve_bytes = gpu->info().total_bytes / 4;
  inside->options = options;
  inside->gpu = std::move(gpu);
  const own_calls_scope own_calls(*inside->gpu);
  if (const call_result answer = inside->gpu->stream_create(&inside->quiet); !answer.ok())
    return to_error(answer, "making a stream");
  return std::shared_ptr<growable_blocks>(new growable_blocks(std::move(inside)));
}

growable_blocks::~growable_blocks() {
  state& s = *state_;
  if (!s.live.empty()) static_cast<void>(wait_for_device(*s.gpu));
  s.live.clear();
  s.kept.clear();
  const own_calls_scope own_calls(*s.gpu);
  static_cast<void>(s.gpu->stream_destroy(s.quiet));
}

result<void*> growable_blocks::allocate(std::uint64_t bytes) {
  if (bytes == 0) return nullptr;
  state& s = *state_;
  const std::lock_guard lock(s.mutex);
  if (const auto found = s.kept_for(bytes); found != s.kept.end()) {
    // Out of what is kept meanwhile: growing may have to give that back.
    growable_memory block = std::move(found->second);
    s.kept.erase(found);
    result<void> grown;
    if (bytes > block.bytes()) grown = s.extend(block, bytes);
    if (!grown) {
      s.kept.emplace(block.bytes(), std::move(block));
      return grown.error();
    }
    const device_address at = block.address();
    s.live.emplace(at, std::move(block));
    return reinterpret_cast<void*>(at);
  }
  growable_options each;
  each.step_bytes = s.gpu->info().granularity;
  each.budget = s.books;
  each.name = "growable block";
  auto made = growable_memory::create(s.gpu, std::max(s.options.reserve_bytes, bytes), s.quiet,
                                      std::move(each));
  if (!made) return made.error();
  if (auto grown = s.extend(*made, bytes); !grown) return grown.error();
  const device_address at = made->address();
  s.live.emplace(at, std::move(*made));
  return reinterpret_cast<void*>(at);
}

result<void> growable_blocks::grow(void* ptr, std::uint64_t bytes) {
  state& s = *state_;
  const std::lock_guard lock(s.mutex);
  const auto found = s.live.find(reinterpret_cast<device_address>(ptr));
  if (found == s.live.end())
    return error{error_code::foreign_pointer,
                 "growable_blocks::grow: no block of this memory starts there"};
  return bytes <= found->second.bytes() ? result<void>() : s.extend(found->second, bytes);
}

result<void> growable_blocks::deallocate(void* ptr) {
  if (ptr == nullptr) return {};
  state& s = *state_;
  const std::lock_guard lock(s.mutex);
  const auto found = s.live.find(reinterpret_cast<device_address>(ptr));
  if (found == s.live.end()) {
    return error{error_code::foreign_pointer,
                 "growable_blocks::deallocate: no block of this memory starts there"};
  }
  const std::uint64_t bytes = found->second.bytes();
  s.kept.emplace(bytes, std::move(found->second));
  s.live.erase(found);
  return {};
}

std::uint64_t growable_blocks::capacity(const void* ptr) const {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->live.find(reinterpret_cast<device_address>(ptr));
  return found == state_->live.end() ? 0 : found->second.bytes();
}
std::uint64_t growable_blocks::reserved_bytes() const {
  return state_->books->used_bytes();
}
std::uint64_t growable_blocks::trim() {
  const std::lock_guard lock(state_->mutex);
  return state_->trim_locked();
}
driver& growable_blocks::gpu() const noexcept {
  return *state_->gpu;
}

}  // namespace millpond
