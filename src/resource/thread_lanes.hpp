// The lanes of one thread: a small table in thread-local storage, asked on every plain call.
//
// A table entry keeps its pool's core alive, so a core's address never comes back for another pool while an
// entry names it. When the thread ends its lanes are emptied into their pools; when a pool ends first, its
// lanes are dropped here the next time the thread takes the slow path.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "millpond/pool.hpp"
#include "resource/lane.hpp"

namespace millpond {

class thread_lanes {
 public:
  // The calling thread's lane of this core and handle, or nullptr. No lock, no allocation.
  [[nodiscard]] static stream_lane* find(const pool::core* core, stream_handle handle) noexcept {
    thread_lanes* const mine = mine_;
    if (mine == nullptr) return nullptr;
    const entry& e = mine->front_[slot_of(core, handle)];
    if (e.core == core && e.handle == handle) return e.in;
    return mine->find_behind(core, handle);
  }
  // Puts a lane in the table, in place of one with the same key (which is then retired and deleted). Answers the lane
  // back where the thread's table has ended already: a destructor of another thread_local object calls.
  [[nodiscard]] static std::unique_ptr<stream_lane> put(const std::shared_ptr<pool::core>& core, stream_handle handle,
                                                        std::unique_ptr<stream_lane> made);
  // Drops the calling thread's lanes of this core that served no call since they were last looked at.
  static void drop_idle(const pool::core* core);
  ~thread_lanes();

 private:
  struct entry {
    const pool::core* core = nullptr;
    stream_handle handle = nullptr;
    stream_lane* in = nullptr;
  };
  struct owned {
    std::shared_ptr<pool::core> core;
    stream_handle handle;
    std::unique_ptr<stream_lane> in;
  };
  static constexpr std::size_t front_size = 64;

  [[nodiscard]] static std::size_t slot_of(const pool::core* core, stream_handle handle) noexcept {
    const auto a = reinterpret_cast<std::uintptr_t>(core);
    const auto b = reinterpret_cast<std::uintptr_t>(handle);
    return ((a >> 6) ^ b ^ (b >> 4) ^ (b >> 10)) % front_size;
  }
  stream_lane* find_behind(const pool::core* core, stream_handle handle) noexcept;

  // initial-exec: one instruction to reach it, in an executable and in a library loaded at start.
  [[gnu::tls_model("initial-exec")]] static thread_local constinit thread_lanes* mine_;

  std::array<entry, front_size> front_{};
  std::vector<owned> all_;  // sorted by core and handle
  // Idle lanes are looked for when so many are kept; twice as many the next time, so that a thread that goes round a
  // thousand streams soon keeps them all, and never more than most_lanes.
  static constexpr std::size_t first_look = 64;
  static constexpr std::size_t most_lanes = 4096;
  std::size_t look_at_ = first_look;
};

}  // namespace millpond
