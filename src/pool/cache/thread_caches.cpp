#include "pool/cache/thread_caches.hpp"

#include <algorithm>
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
  rebuild();
}

void thread_caches::enter(const owned& of) noexcept {
  std::size_t at = slot_of(of.core.get(), of.handle);
  while (slots_[at].core != nullptr) at = (at + 1) & mask_;
  slots_[at] = {of.core.get(), of.handle, of.in.get()};
}

void thread_caches::rebuild() {
  unsigned power = 6;
  while ((std::size_t{1} << power) < 2 * (all_.size() + 1)) ++power;
  slots_ = std::make_unique<entry[]>(std::size_t{1} << power);
  mask_ = (std::size_t{1} << power) - 1;
  shift_ = 64 - power;
  for (const owned& o : all_) enter(o);
}

template <class Goes>
void thread_caches::drop_if(Goes&& goes) {
  std::vector<owned> dropped;
  std::erase_if(all_, [&](owned& o) {
    if (!goes(o)) return false;
    dropped.push_back(std::move(o));
    return true;
  });
  if (dropped.empty()) return;
  rebuild();
  for (owned& o : dropped) o.core->drop_cache(*o.in);
}

std::unique_ptr<thread_cache> thread_caches::put(const std::shared_ptr<pool::core>& core,
                                                 stream_handle handle,
                                                 std::unique_ptr<thread_cache> made) {
  if (table_ended) return made;
  if (mine_ == nullptr) {
    this_thread.table = std::make_unique<thread_caches>();
    mine_ = this_thread.table.get();
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
    mine.drop_if([&](owned& o) {
      if (o.in->in_call != 0) return false;
      const bool replaced = o.core == core && o.handle == handle;
      const bool idle = contended && idle_since_last_look(*o.in);
      return replaced || idle || o.core->closed() || o.in->dead.load(std::memory_order_relaxed);
    });
  }
  if (contended) mine.look_at_ = std::min(2 * mine.look_at_, most_caches);
  mine.all_.push_back({core, handle, std::move(made)});
  if (2 * mine.all_.size() > mine.mask_)
    mine.rebuild();
  else
    mine.enter(mine.all_.back());
  return nullptr;
}

void thread_caches::drop_idle(const pool::core* core) {
  if (mine_ == nullptr) return;
  mine_->drop_if([core](owned& o) {
    return o.core.get() == core && o.in->in_call == 0 && idle_since_last_look(*o.in);
  });
}

void thread_caches::drop_all(const pool::core* core) {
  if (mine_ == nullptr) return;
  mine_->drop_if([core](owned& o) { return o.core.get() == core && o.in->in_call == 0; });
}

thread_caches::~thread_caches() {
  mine_ = nullptr;
  for (owned& o : all_) o.core->drop_cache(*o.in);
}

}  // namespace millpond
