// The caches of one thread: a small hash table in thread-local storage, asked on every plain call.
//
// A table entry keeps its pool's core alive, so a core's address never comes back for another pool
// while an entry names it; a core that is closed keeps its books alone, and no driver. When the
// thread ends its caches are emptied into their pools; when a pool ends first, its caches are
// dropped here the next time the thread takes the slow path.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "millpond/pool/pool.hpp"
#include "pool/cache/thread_cache.hpp"

namespace millpond {

class thread_caches {
 public:
  thread_caches();
  // The calling thread's cache of this core and handle, or nullptr. No lock, no allocation.
  [[nodiscard]] static thread_cache* find(const pool::core* core, stream_handle handle) noexcept {
    const thread_caches* const mine = mine_;
    if (__builtin_expect(mine == nullptr, 0)) return nullptr;
    for (std::size_t at = mine->slot_of(core, handle);; at = (at + 1) & mine->mask_) {
      const entry& e = mine->slots_[at];
      if (e.handle == handle && e.core == core) return e.in;
      if (e.core == nullptr) return nullptr;
    }
  }
  // Puts a cache in the table, in place of one with the same key (which is then retired and
  // deleted). Answers the cache back where the thread's table has ended already, since a destructor
  // of another thread_local object calls, or there is no host memory for the entry.
  [[nodiscard]] static std::unique_ptr<thread_cache> put(
      const std::shared_ptr<pool::core>& core, stream_handle handle,
      std::unique_ptr<thread_cache> made) noexcept;
  // Drops the calling thread's caches of this core that served no call since they were last looked
  // at.
  static void drop_idle(const pool::core* core) noexcept;
  // All of them, except one whose call is under way.
  static void drop_all(const pool::core* core) noexcept;
  ~thread_caches();

 private:
  struct entry {
    const pool::core* core = nullptr;  // nullptr: free
    stream_handle handle = nullptr;
    thread_cache* in = nullptr;
  };
  struct owned {
    std::shared_ptr<pool::core> core;
    stream_handle handle = nullptr;
    std::unique_ptr<thread_cache> in;
  };

  [[nodiscard]] std::size_t slot_of(const pool::core* core, stream_handle handle) const noexcept {
    const auto key =
        (reinterpret_cast<std::uintptr_t>(core) >> 6) ^ reinterpret_cast<std::uintptr_t>(handle);
    return static_cast<std::size_t>((key * 0x9e3779b97f4a7c15ULL) >> shift_);
  }
  void enter(const owned& of) noexcept;
  void make_room();
  static void drop(const owned& of) noexcept;
  // Drops the caches that `goes` says.
  template <class Goes>
  void drop_if(Goes&& goes) noexcept;

  // initial-exec: one instruction to reach it, in an executable and in a library loaded at start.
  [[gnu::tls_model("initial-exec")]] static thread_local constinit thread_caches* mine_;

  // At most half full: a key that is not there ends at a free slot soon.
  std::unique_ptr<entry[]> slots_;
  std::size_t mask_ = 0;
  unsigned shift_ = 64;  // 64 - log2 of the slots
  std::vector<owned> all_;
  // Idle caches are looked for when so many are kept; twice as many the next time, so that a thread
  // that goes round a thousand streams soon keeps them all, and never more than most_caches.
  static constexpr std::size_t first_look = 64;
  static constexpr std::size_t most_caches = 4096;
  std::size_t look_at_ = first_look;
  std::size_t puts_ = 0;  // since all caches were last looked through
};

}  // namespace millpond
