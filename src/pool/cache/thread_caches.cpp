#include "pool/cache/thread_caches.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "pool/core.hpp"

namespace millpond {

thread_local constinit thread_caches* thread_caches::mine_ = nullptr;

namespace {
// Ends with the thread; the table itself is reached through the plain pointer.
thread_local constinit bool table_ended = false;
struct holder {
  std::unique_ptr<thread_caches> table;
  ~holder() { table_ended = true; }
};
thread_local holder this_thread;

// Whether the cache served no call since it was last asked.
bool idle_since_last_look(thread_cache& of) noexcept {
  const std::uint64_t calls = of.counts.allocations.get() + of.counts.deallocations.get();
  return calls == std::exchange(of.calls_seen, calls);
}
}  // namespace

thread_caches::thread_caches() {
  make_room();
}

void thread_caches::enter(const owned& of) noexcept {
  std::size_t at = slot_of(of.core.get(), of.handle);
  while (slots_[at].core != nullptr) at = (at + 1) & mask_;
  slots_[at] = {of.core.get(), of.handle, of.in.get()};
}

// Slots for one cache more, at most half of them used.
void thread_caches::make_room() {
  if (2 * (all_.size() + 1) <= mask_ + 1) return;
  unsigned power = 6;
  while ((std::size_t{1} << power) < 2 * (all_.size() + 1)) ++power;
  slots_ = std::make_unique<entry[]>(std::size_t{1} << power);
  mask_ = (std::size_t{1} << power) - 1;
  shift_ = 64 - power;
  for (const owned& o : all_) enter(o);
}

// Needs no host memory.
template <class Goes>
void thread_caches::drop_if(Goes&& goes) noexcept {
  const auto first_gone =
      std::partition(all_.begin(), all_.end(), [&](const owned& o) { return !goes(o); });
  auto left = static_cast<std::size_t>(all_.end() - first_gone);
  if (left == 0) return;
  std::fill_n(slots_.get(), mask_ + 1, entry{});
  for (std::size_t i = 0; i + left < all_.size(); ++i) enter(all_[i]);
  // Dropping one may end its pool, and with it whatever that kept.
  for (; left > 0; --left) {
    const owned gone = std::move(all_.back());
    all_.pop_back();
    drop(gone);
  }
}

void thread_caches::drop(const owned& of) noexcept {
  of.core->drop_cache(*of.in);
}

std::unique_ptr<thread_cache> thread_caches::put(const std::shared_ptr<pool::core>& core,
                                                 stream_handle handle,
                                                 std::unique_ptr<thread_cache> made) noexcept {
  if (table_ended) return made;
  try {
    if (mine_ == nullptr) {
      this_thread.table = std::make_unique<thread_caches>();
      mine_ = this_thread.table.get();
    }
  } catch (const std::bad_alloc&) {
    return made;
  }
  thread_caches& mine = *mine_;
  // Caches of pools that are closed go first, caches of dead streams, and a cache that this one
  // replaces. Where there are many, those that served no call since the last look: streams that
  // were destroyed say nothing of it. A long table is looked through once in as many puts as it has
  // caches.
  const bool contended = mine.all_.size() >= mine.look_at_;
  if (contended || mine.all_.size() < first_look || ++mine.puts_ >= mine.all_.size() ||
      find(core.get(), handle) != nullptr) {
    mine.puts_ = 0;
    mine.drop_if([&](const owned& o) {
      if (o.in->in_call != 0) return false;
      const bool replaced = o.core == core && o.handle == handle;
      const bool idle = contended && idle_since_last_look(*o.in);
      return replaced || idle || o.core->closed() || o.in->has(thread_cache::is_dead);
    });
  }
  if (contended) mine.look_at_ = std::min(2 * mine.look_at_, most_caches);
  try {
    mine.all_.reserve(mine.all_.size() + 1);
    mine.make_room();
  } catch (const std::bad_alloc&) {
    return made;
  }
  mine.all_.push_back({core, handle, std::move(made)});
  mine.enter(mine.all_.back());
  return nullptr;
}

void thread_caches::drop_idle(const pool::core* core) noexcept {
  if (mine_ == nullptr) return;
  mine_->drop_if([core](const owned& o) {
    return o.core.get() == core && o.in->in_call == 0 && idle_since_last_look(*o.in);
  });
}

void thread_caches::drop_all(const pool::core* core) noexcept {
  if (mine_ == nullptr) return;
  mine_->drop_if([core](const owned& o) { return o.core.get() == core && o.in->in_call == 0; });
}

thread_caches::~thread_caches() {
  mine_ = nullptr;
  for (const owned& o : all_) drop(o);
}

}  // namespace millpond
