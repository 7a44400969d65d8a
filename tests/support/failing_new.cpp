#include "support/failing_new.hpp"

#include <cstdlib>
#include <new>

namespace {

struct failures {
  bool on = false;
  bool all = false;
  bool failed = false;
  std::uint64_t left = 0;  // allocations that succeed before
};
thread_local failures mine;

struct delete_step {
  void (*step)(void*) = nullptr;
  void* with = nullptr;
};
thread_local delete_step at_delete;

void give_back(void* at) noexcept {
  if (const delete_step now = at_delete; now.step != nullptr) {
    at_delete = {};
    now.step(now.with);
    at_delete = now;
  }
  std::free(at);
}

[[nodiscard]] bool fails() noexcept {
  if (!mine.on) return false;
  if (mine.left > 0) {
    --mine.left;
    return false;
  }
  if (mine.failed && !mine.all) return false;
  mine.failed = true;
  return true;
}

[[nodiscard]] void* get(std::size_t bytes) {
  void* const out = fails() ? nullptr : std::malloc(bytes > 0 ? bytes : 1);
  if (out == nullptr) throw std::bad_alloc();
  return out;
}

[[nodiscard]] void* get(std::size_t bytes, std::align_val_t alignment) {
  void* out = nullptr;
  const auto at = static_cast<std::size_t>(alignment);
  if (fails() || ::posix_memalign(&out, at < sizeof(void*) ? sizeof(void*) : at, bytes) != 0)
    throw std::bad_alloc();
  return out;
}

}  // namespace

void* operator new(std::size_t bytes) {
  return get(bytes);
}
void* operator new[](std::size_t bytes) {
  return get(bytes);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return get(bytes, alignment);
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return get(bytes, alignment);
}
// A sanitizer's own would not come through those above.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return fails() ? nullptr : std::malloc(bytes > 0 ? bytes : 1);
}
void* operator new[](std::size_t bytes, const std::nothrow_t& none) noexcept {
  return operator new(bytes, none);
}
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  void* out = nullptr;
  const auto at = static_cast<std::size_t>(alignment);
  if (fails() || ::posix_memalign(&out, at < sizeof(void*) ? sizeof(void*) : at, bytes) != 0)
    return nullptr;
  return out;
}
void* operator new[](std::size_t bytes, std::align_val_t alignment,
                     const std::nothrow_t& none) noexcept {
  return operator new(bytes, alignment, none);
}
void operator delete(void* at) noexcept {
  give_back(at);
}
void operator delete[](void* at) noexcept {
  give_back(at);
}
void operator delete(void* at, std::size_t) noexcept {
  give_back(at);
}
void operator delete[](void* at, std::size_t) noexcept {
  give_back(at);
}
void operator delete(void* at, std::align_val_t) noexcept {
  give_back(at);
}
void operator delete[](void* at, std::align_val_t) noexcept {
  give_back(at);
}
void operator delete(void* at, std::size_t, std::align_val_t) noexcept {
  give_back(at);
}
void operator delete[](void* at, std::size_t, std::align_val_t) noexcept {
  give_back(at);
}

namespace millpond {

failing_new::failing_new(std::uint64_t number, which those) noexcept {
  mine = {true, those == which::all_from_there, false, number};
}
failing_new::~failing_new() {
  mine = {};
}
bool failing_new::failed() const noexcept {
  return mine.failed;
}
before_each_delete::before_each_delete(void (*step)(void*), void* with) noexcept {
  at_delete = {step, with};
}
before_each_delete::~before_each_delete() {
  at_delete = {};
}
failing_new::pause::pause() noexcept : was_(mine.on) {
  mine.on = false;
}
failing_new::pause::~pause() {
  mine.on = was_;
}

}  // namespace millpond
