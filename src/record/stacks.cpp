#include "record/stacks.hpp"

#include <unwind.h>

#include <algorithm>
#include <array>

namespace millpond::record {
namespace {

// A stack that was unwound, with where in memory each return address lay. All these places are above the stack
// pointer of the call that looks, in frames that are still there.
struct remembered {
  std::uintptr_t stack_pointer = 0;
  const stack_store* store = nullptr;
  std::uint32_t id = 0;
  std::uint32_t count = 0;
  std::array<const std::uintptr_t*, stack_store::most_frames> places{};
  std::array<std::uintptr_t, stack_store::most_frames> values{};
};

constexpr std::size_t remembered_stacks = 64;
constinit thread_local std::array<remembered, remembered_stacks>* cache __attribute__((tls_model("initial-exec"))) = nullptr;

struct walk {
  std::size_t most = 0;
  std::size_t count = 0;
  std::uintptr_t floor = 0;          // addresses below it are frames of our own
  bool placed = true;                // every return address was found where it should lie
  std::array<const std::uintptr_t*, stack_store::most_frames> places{};
  std::array<std::uintptr_t, stack_store::most_frames> values{};
};

_Unwind_Reason_Code step(_Unwind_Context* context, void* data) {
  walk& to = *static_cast<walk*>(data);
  const std::uintptr_t pc = _Unwind_GetIP(context);
  // On x86-64 the return address into a frame lies right under the frame's own canonical address.
  const std::uintptr_t top = _Unwind_GetCFA(context);
  if (pc == 0) return _URC_END_OF_STACK;
  if (top <= to.floor) return _URC_NO_REASON;
  const auto* place = reinterpret_cast<const std::uintptr_t*>(top - sizeof(std::uintptr_t));
  if (*place != pc) to.placed = false;
  to.places[to.count] = place;
  to.values[to.count] = pc;
  return ++to.count == to.most ? _URC_END_OF_STACK : _URC_NO_REASON;
}

std::uint64_t hash_of(std::span<const std::uintptr_t> stack) {
  std::uint64_t made = 0xcbf29ce484222325ULL;
  for (const std::uintptr_t each : stack) made = (made ^ each) * 0x9e3779b97f4a7c15ULL;
  return made ^ (made >> 29);
}

}  // namespace

std::uint32_t stack_store::intern(std::span<const std::uintptr_t> stack) noexcept {
  try {
    const std::uint64_t hash = hash_of(stack);
    const std::lock_guard lock(mutex_);
    ++unwound_;
    const auto [from, to] = by_hash_.equal_range(hash);
    for (auto at = from; at != to; ++at) {
      if (std::ranges::equal(stacks_[at->second - 1], stack)) return at->second;
    }
    if (stacks_.size() >= most_stacks) return 0;
    stacks_.emplace_back(stack.begin(), stack.end());
    const auto id = static_cast<std::uint32_t>(stacks_.size());
    by_hash_.emplace(hash, id);
    return id;
  } catch (...) {
    return 0;  // no memory for it: the event goes without
  }
}

// Not inlined, so that its frame is the floor of the walk.
__attribute__((noinline)) std::uint32_t stack_store::capture(std::size_t frames) noexcept {
  const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  const auto caller = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  if (cache == nullptr) {
    cache = new (std::nothrow) std::array<remembered, remembered_stacks>();  // lives as long as the process
    if (cache == nullptr) return 0;
  }
  remembered& known = (*cache)[((here >> 4) ^ (caller >> 3)) % remembered_stacks];
  if (known.stack_pointer == here && known.store == this && known.count > 0) {
    bool same = true;
    for (std::uint32_t n = 0; n < known.count && same; ++n) same = *known.places[n] == known.values[n];
    if (same) return known.id;
  }
  walk to;
  to.most = std::min(frames, most_frames);
  to.floor = here;
  if (to.most == 0) return 0;
  _Unwind_Backtrace(step, &to);
  if (to.count == 0) return 0;
  const std::uint32_t id = intern(std::span(to.values).first(to.count));
  if (to.placed && id != 0) {
    known.stack_pointer = here;
    known.store = this;
    known.id = id;
    known.count = static_cast<std::uint32_t>(to.count);
    known.places = to.places;
    known.values = to.values;
  }
  return id;
}

}  // namespace millpond::record
