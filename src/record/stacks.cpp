#include "record/stacks.hpp"

#include <pthread.h>
#include <unwind.h>

#include <algorithm>
#include <array>

#include "record/frame_rules.hpp"
#include "record/thread_blocks.hpp"

namespace millpond::record {
namespace {

// A stack that was unwound, with where in memory each return address lay. All these places are
// above the stack pointer of the call that looks, in frames that are still there.
struct remembered {
  std::uintptr_t stack_pointer = 0;
  const stack_store* store = nullptr;
  std::uint32_t id = 0;
  std::uint32_t count = 0;
  std::uint64_t python = 0;  // hash of the frames of Python
  std::array<const std::uintptr_t*, stack_store::most_frames> call_sites{};
  std::array<std::uintptr_t, stack_store::most_frames> values{};
};

constexpr std::size_t remembered_stacks = 64, remembered_rules = 1024;

struct known_rule {
  std::uintptr_t return_address = 0;
  frame_rule rule;
};

// What a thread keeps from its first stack on.
struct thread_memory {
  std::array<remembered, remembered_stacks> stacks;
  std::array<known_rule, remembered_rules> rules;
  std::uint64_t unloaded = 0;  // of the count of unloaded libraries when the rules were found
  // The stack of the thread that has this memory now: nothing is read beyond it, whatever the rules
  // say.
  pthread_t owner{};
  std::uintptr_t stack_begin = 0, stack_end = 0;

  void look_at_stack() noexcept {
    const pthread_t self = pthread_self();
    if (stack_end != 0 && pthread_equal(owner, self) != 0) return;
    pthread_attr_t about;
    void* begin = nullptr;
    std::size_t bytes = 0;
    stack_begin = stack_end = 0;
    if (pthread_getattr_np(self, &about) != 0) return;
    if (pthread_attr_getstack(&about, &begin, &bytes) == 0) {
      stack_begin = reinterpret_cast<std::uintptr_t>(begin);
      stack_end = stack_begin + bytes;
      owner = self;
    }
    pthread_attr_destroy(&about);
  }
};
constinit thread_local thread_memory* memory_of_thread __attribute__((tls_model("initial-exec"))) =
    nullptr;
thread_memory*& memory_slot() noexcept {
  return memory_of_thread;
}

struct walk {
  std::size_t most = 0;
  std::size_t count = 0;
  std::uintptr_t floor = 0;  // addresses below it are frames of our own
  bool placed = true;        // every return address was found where it should lie
  std::array<const std::uintptr_t*, stack_store::most_frames> call_sites;  // of `count` frames
  std::array<std::uintptr_t, stack_store::most_frames> values;
};

_Unwind_Reason_Code step(_Unwind_Context* context, void* data) {
  walk& to = *static_cast<walk*>(data);
  const std::uintptr_t pc = _Unwind_GetIP(context);
  // On x86-64 the return address into a frame lies right under the frame's own canonical address.
  const std::uintptr_t top = _Unwind_GetCFA(context);
  if (pc == 0) return _URC_END_OF_STACK;
  if (top <= to.floor) return _URC_NO_REASON;
  const auto* call_site = reinterpret_cast<const std::uintptr_t*>(top - sizeof(std::uintptr_t));
  if (*call_site != pc) to.placed = false;
  to.call_sites[to.count] = call_site;
  to.values[to.count] = pc;
  return ++to.count == to.most ? _URC_END_OF_STACK : _URC_NO_REASON;
}

#if defined(__x86_64__)
// From a function whose frame pointer is `frame`: its return address and the caller's frame pointer
// lie there. False where a rule is not known; then what was found so far is not to be used.
bool walk_by_rules(walk& to, std::uintptr_t frame, thread_memory& mine) {
  mine.look_at_stack();
  // A stack of a program's own making, such as a coroutine's, is left to the runtime.
  if (frame < mine.stack_begin || frame >= mine.stack_end) return false;
  const std::uintptr_t last = mine.stack_end - sizeof(std::uintptr_t);
  const auto word = [](std::uintptr_t at) { return *reinterpret_cast<const std::uintptr_t*>(at); };
  std::uintptr_t base = word(frame), stack = frame + 2 * sizeof(std::uintptr_t);
  while (to.count < to.most) {
    const std::uintptr_t call_site = stack - sizeof(std::uintptr_t), pc = word(call_site);
    if (pc == 0) break;
    to.call_sites[to.count] = reinterpret_cast<const std::uintptr_t*>(call_site);
    to.values[to.count] = pc;
    ++to.count;
    known_rule& known = mine.rules[(pc ^ pc >> 10) % remembered_rules];
    if (known.return_address != pc) known = {pc, find_frame_rule(pc)};
    const frame_rule& rule = known.rule;
    std::uintptr_t top = 0;
    switch (rule.from) {
      case frame_rule::base::stack: top = stack; break;
      case frame_rule::base::frame:
      case frame_rule::base::frame_load:
        // A frame pointer that is none would lead anywhere.
        if (base < stack || base > last || base % sizeof base != 0) return false;
        top = base;
        break;
      case frame_rule::base::end: return true;
      case frame_rule::base::unknown: return false;
    }
    top += static_cast<std::uintptr_t>(static_cast<std::intptr_t>(rule.offset));
    if (rule.from == frame_rule::base::frame_load) {
      if (top < stack || top > last) return false;
      top = word(top);
    }
    if (top <= stack || top > last || top % sizeof top != 0) return false;
    if (rule.frame_pointer != frame_rule::saved::same) {
      const std::uintptr_t from =
          (rule.frame_pointer == frame_rule::saved::at_top ? top : base) +
          static_cast<std::uintptr_t>(static_cast<std::intptr_t>(rule.saved_offset));
      if (from < frame || from > last) return false;
      base = word(from);
    }
    stack = top;
  }
  return true;
}
#else
bool walk_by_rules(walk&, std::uintptr_t, thread_memory&) {
  return false;
}
#endif

std::uint64_t hash_of(std::span<const std::uintptr_t> stack) {
  std::uint64_t made = 0xcbf29ce484222325ULL;
  for (const std::uintptr_t each : stack) made = (made ^ each) * 0x9e3779b97f4a7c15ULL;
  return made ^ (made >> 29);
}

}  // namespace

std::uint64_t hash_of(std::span<const python_call_site> call_sites) {
  std::uint64_t made = 0;
  for (const python_call_site& each : call_sites) {
    made = (made ^ each.code) * 0x9e3779b97f4a7c15ULL;
    made = (made ^ each.instruction ^ made >> 31) * 0x9e3779b97f4a7c15ULL;
  }
  return made;
}

std::size_t stack_store::python_call_sites(std::span<python_call_site> into) noexcept {
  if (python_ == python::left_out) return 0;
  std::call_once(looked_, [this] { interpreter_ = python_frames::find(); });
  return interpreter_ ? interpreter_->walk(into) : 0;
}

std::size_t stack_store::number_python(std::span<const python_call_site> call_sites,
                                       std::span<std::uintptr_t> into) noexcept {
  std::size_t count = 0;
  try {
    for (const python_call_site& each : call_sites) {
      const std::uint64_t key = interpreter_->identity(each);
      const std::lock_guard lock(mutex_);
      auto [found, is_new] = line_numbers_.try_emplace(key, 0);
      if (is_new) {
        if (auto made = interpreter_->describe(each)) {
          lines_.push_back(std::move(*made));
          found->second = static_cast<std::uint32_t>(lines_.size());
        }
      }
      if (found->second != 0) into[count++] = python_mark | found->second;
    }
  } catch (...) {
    // No memory for more: the stack has the frames that were numbered.
  }
  return count;
}

python_line stack_store::python_at(std::uintptr_t frame) const {
  const std::lock_guard lock(mutex_);
  const std::uintptr_t number = frame & ~python_mark;
  return number == 0 || number > lines_.size() ? python_line{"?", "", 0} : lines_[number - 1];
}

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
  thread_memory* const memory = thread_blocks<thread_memory, memory_slot>::mine();
  if (memory == nullptr) return 0;
  std::array<python_call_site, most_python_frames> call_sites;
  const auto running = std::span(call_sites).first(python_call_sites(call_sites));
  const std::uint64_t python_hash = hash_of(running);
  remembered& known = memory->stacks[((here >> 4) ^ (caller >> 3)) % remembered_stacks];
  if (known.stack_pointer == here && known.store == this && known.count > 0 &&
      known.python == python_hash) {
    bool same = true;
    for (std::uint32_t n = 0; n < known.count && same; ++n)
      same = *known.call_sites[n] == known.values[n];
    if (same) return known.id;
  }
  if (const std::uint64_t unloaded = unloaded_.load(std::memory_order_relaxed);
      memory->unloaded != unloaded) {
    memory->rules = {};
    memory->unloaded = unloaded;
  }
  walk to;
  to.most = std::min(frames, most_frames);
  to.floor = here;
  if (to.most == 0) return 0;
  if (how_ == unwinding::by_runtime || !walk_by_rules(to, here, *memory)) {
    to.count = 0;
    _Unwind_Backtrace(step, &to);
    by_runtime_.fetch_add(1, std::memory_order_relaxed);
  }
  if (to.count == 0) return 0;
  std::array<std::uintptr_t, most_frames + most_python_frames> whole;
  std::copy_n(to.values.begin(), to.count, whole.begin());
  const std::size_t numbered = number_python(running, std::span(whole).subspan(to.count));
  const std::uint32_t id = intern(std::span(whole).first(to.count + numbered));
  if (to.placed && id != 0) {
    known.stack_pointer = here;
    known.store = this;
    known.id = id;
    known.python = python_hash;
    known.count = static_cast<std::uint32_t>(to.count);
    std::copy_n(to.call_sites.begin(), to.count, known.call_sites.begin());
    std::copy_n(to.values.begin(), to.count, known.values.begin());
  }
  return id;
}

}  // namespace millpond::record
