#include "millpond/growable.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "base/bits.hpp"
#include "driver/relaxed_capture.hpp"
#include "millpond/units.hpp"

namespace millpond {

struct growable_memory::state {
  struct piece {
    physical_handle handle = 0;
    std::uint64_t bytes = 0;
  };
  struct block {
    std::uint64_t mapped = 0;
    std::vector<piece> pieces;  // from the start, without gaps
  };

  std::shared_ptr<driver> gpu;
  growable_options options;
  std::uint64_t granularity = 0;
  mutable std::mutex mutex;  // held over calls that create and map, none of which waits
  std::map<device_address, block> live;
  std::multimap<std::uint64_t, std::pair<device_address, block>> kept;  // by mapped bytes
  std::uint64_t reserved = 0;

  result<void> extend(device_address at, block& to, std::uint64_t bytes);
  void unmap(device_address at, const block& gone);
  std::uint64_t trim_locked();
};

// One more piece at the end; where memory is too broken up for it, the smallest that will do, then several.
result<void> growable_memory::state::extend(device_address at, block& to, std::uint64_t bytes) {
  if (bytes > options.reserve_bytes) {
    return error{error_code::out_of_memory, "the block cannot grow to " + format_bytes(bytes) + ": its addresses end at " +
                                                format_bytes(options.reserve_bytes)};
  }
  const relaxed_capture_scope relaxed(*gpu);
  const auto wish = align_up(static_cast<std::uint64_t>(static_cast<double>(to.mapped) * options.step), granularity);
  std::uint64_t size = std::min(std::max(align_up(bytes - to.mapped, granularity), wish), options.reserve_bytes - to.mapped);
  const std::size_t pieces_before = to.pieces.size();
  const std::uint64_t mapped_before = to.mapped;
  call_result failed;
  while (to.mapped < bytes) {
    const std::uint64_t least = align_up(bytes - to.mapped, granularity);
    piece next{0, to.pieces.size() == pieces_before ? size : std::min(size, least)};
    failed = gpu->physical_create(&next.handle, next.bytes, memory_place::device, driver::shareable::no);
    if (!failed.ok()) {
      if (trim_locked() > 0) continue;
      if (size <= granularity) break;
      size = size > least ? least : align_up(size / 2, granularity);
      continue;
    }
    failed = gpu->map(at + to.mapped, next.bytes, next.handle);
    if (failed.ok()) {
      failed = gpu->set_access(at + to.mapped, next.bytes, memory_place::device);
      if (!failed.ok()) static_cast<void>(gpu->unmap(at + to.mapped, next.bytes));
    }
    if (!failed.ok()) {
      static_cast<void>(gpu->physical_release(next.handle));
      break;
    }
    to.pieces.push_back(next);
    to.mapped += next.bytes;
    reserved += next.bytes;
  }
  if (to.mapped >= bytes) return {};
  while (to.pieces.size() > pieces_before) {  // as it was
    const piece last = to.pieces.back();
    to.pieces.pop_back();
    to.mapped -= last.bytes;
    reserved -= last.bytes;
    static_cast<void>(gpu->unmap(at + to.mapped, last.bytes));
    static_cast<void>(gpu->physical_release(last.handle));
  }
  return error{error_code::out_of_memory, "a growable block of " + format_bytes(mapped_before) + " cannot grow to " +
                                              format_bytes(bytes) + ": " + to_string(failed)};
}

void growable_memory::state::unmap(device_address at, const block& gone) {
  std::uint64_t offset = 0;
  for (const piece& p : gone.pieces) {
    static_cast<void>(gpu->unmap(at + offset, p.bytes));
    static_cast<void>(gpu->physical_release(p.handle));
    offset += p.bytes;
    reserved -= p.bytes;
  }
  static_cast<void>(gpu->address_free(at, options.reserve_bytes));
}

// What is kept was done when it was freed, so that nothing runs on it.
std::uint64_t growable_memory::state::trim_locked() {
  const relaxed_capture_scope relaxed(*gpu);
  std::uint64_t given = 0;
  for (const auto& [bytes, entry] : kept) {
    given += bytes;
    unmap(entry.first, entry.second);
  }
  kept.clear();
  return given;
}

growable_memory::growable_memory(std::unique_ptr<state> inside) : state_(std::move(inside)) {}

result<std::shared_ptr<growable_memory>> growable_memory::create(std::shared_ptr<driver> gpu, growable_options options) {
  if (gpu == nullptr) return error{error_code::invalid_argument, "growable_memory: no driver"};
  if (gpu->info().granularity == 0) {
    return error{error_code::not_supported, "growable_memory: " + gpu->info().name + " has no virtual memory management"};
  }
  auto inside = std::make_unique<state>();
  inside->granularity = gpu->info().granularity;
  if (options.reserve_bytes == 0) options.reserve_bytes = gpu->info().total_bytes / 4;
  options.reserve_bytes = align_up(options.reserve_bytes, inside->granularity);
  inside->options = options;
  inside->gpu = std::move(gpu);
  return std::shared_ptr<growable_memory>(new growable_memory(std::move(inside)));
}

growable_memory::~growable_memory() {
  state& s = *state_;
  if (!s.gpu->alive()) return;
  const std::lock_guard lock(s.mutex);
  if (!s.live.empty()) static_cast<void>(s.gpu->context_synchronize());
  static_cast<void>(s.trim_locked());
  for (const auto& [at, block] : s.live) s.unmap(at, block);
}

result<void*> growable_memory::allocate(std::uint64_t bytes) {
  if (bytes == 0) return nullptr;
  state& s = *state_;
  const std::lock_guard lock(s.mutex);
  device_address at = 0;
  state::block block;
  if (!s.kept.empty()) {  // the smallest that is large enough, or else the largest, which grows
    auto found = s.kept.lower_bound(bytes);
    if (found == s.kept.end()) --found;
    at = found->second.first;
    block = std::move(found->second.second);
    s.kept.erase(found);
  } else if (const call_result answer = s.gpu->address_reserve(&at, s.options.reserve_bytes, s.granularity); !answer.ok()) {
    return to_error(answer, "reserving addresses for a growable block");
  }
  if (bytes > block.mapped) {
    if (auto grown = s.extend(at, block, bytes); !grown) {
      s.unmap(at, block);
      return grown.error();
    }
  }
  s.live.emplace(at, std::move(block));
  return reinterpret_cast<void*>(at);
}

result<void> growable_memory::grow(void* ptr, std::uint64_t bytes) {
  state& s = *state_;
  const std::lock_guard lock(s.mutex);
  const auto found = s.live.find(reinterpret_cast<device_address>(ptr));
  if (found == s.live.end()) return error{error_code::foreign_pointer, "growable_memory::grow: no block of this memory starts there"};
  return bytes <= found->second.mapped ? result<void>() : s.extend(found->first, found->second, bytes);
}

result<void> growable_memory::deallocate(void* ptr) {
  if (ptr == nullptr) return {};
  state& s = *state_;
  const std::lock_guard lock(s.mutex);
  const auto found = s.live.find(reinterpret_cast<device_address>(ptr));
  if (found == s.live.end()) return error{error_code::foreign_pointer, "growable_memory::deallocate: no block of this memory starts there"};
  s.kept.emplace(found->second.mapped, std::pair(found->first, std::move(found->second)));
  s.live.erase(found);
  return {};
}

std::uint64_t growable_memory::capacity(const void* ptr) const {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->live.find(reinterpret_cast<device_address>(ptr));
  return found == state_->live.end() ? 0 : found->second.mapped;
}
std::uint64_t growable_memory::reserved_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->reserved;
}
std::uint64_t growable_memory::trim() {
  const std::lock_guard lock(state_->mutex);
  return state_->trim_locked();
}
driver& growable_memory::gpu() const noexcept { return *state_->gpu; }

}  // namespace millpond
