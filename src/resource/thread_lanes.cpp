#include "resource/thread_lanes.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "resource/pool_core.hpp"

namespace millpond {

thread_local constinit thread_lanes* thread_lanes::mine_ = nullptr;

namespace {
// Ends with the thread; the table itself is reached through the plain pointer.
thread_local constinit bool table_ended = false;
struct holder {
  std::unique_ptr<thread_lanes> table;
  ~holder() { table_ended = true; }
};
thread_local holder this_thread;
}  // namespace

stream_lane* thread_lanes::find_behind(const pool::core* core, stream_handle handle) noexcept {
  const auto at = std::lower_bound(all_.begin(), all_.end(), std::tuple(core, handle),
                                   [](const owned& o, const auto& key) { return std::tuple<const pool::core*, stream_handle>(o.core.get(), o.handle) < key; });
  if (at == all_.end() || at->core.get() != core || at->handle != handle) return nullptr;
  front_[slot_of(core, handle)] = {core, handle, at->in.get()};
  return at->in.get();
}

std::unique_ptr<stream_lane> thread_lanes::put(const std::shared_ptr<pool::core>& core, stream_handle handle,
                                               std::unique_ptr<stream_lane> made) {
  if (table_ended) return made;
  if (mine_ == nullptr) {
    this_thread.table = std::make_unique<thread_lanes>();
    mine_ = this_thread.table.get();
  }
  thread_lanes& mine = *mine_;
  // Lanes of pools that are closed go first, lanes of dead streams, and a lane that this one replaces. Where there are
  // many, those that served no call since the last look: streams that were destroyed say nothing of it.
  const bool crowded = mine.all_.size() >= mine.look_at_;
  std::vector<owned> dropped;
  std::erase_if(mine.all_, [&](owned& o) {
    const bool replaced = o.core == core && o.handle == handle;
    const std::uint64_t calls = o.in->counts.allocations.get() + o.in->counts.deallocations.get();
    const bool idle = crowded && calls == std::exchange(o.in->calls_seen, calls);
    if (!o.core->closed() && !o.in->dead.load(std::memory_order_relaxed) && !replaced && !idle) return false;
    dropped.push_back(std::move(o));
    return true;
  });
  mine.front_ = {};
  if (crowded) mine.look_at_ = std::min(2 * mine.look_at_, most_lanes);
  for (owned& o : dropped) o.core->drop_lane(*o.in);
  const auto at = std::lower_bound(mine.all_.begin(), mine.all_.end(), std::tuple(static_cast<const pool::core*>(core.get()), handle),
                                   [](const owned& o, const auto& key) { return std::tuple<const pool::core*, stream_handle>(o.core.get(), o.handle) < key; });
  mine.front_[slot_of(core.get(), handle)] = {core.get(), handle, made.get()};
  mine.all_.insert(at, owned{core, handle, std::move(made)});
  return nullptr;
}

void thread_lanes::drop_idle(const pool::core* core) {
  if (mine_ == nullptr) return;
  std::vector<owned> dropped;
  std::erase_if(mine_->all_, [&](owned& o) {
    if (o.core.get() != core) return false;
    const std::uint64_t calls = o.in->counts.allocations.get() + o.in->counts.deallocations.get();
    if (calls != std::exchange(o.in->calls_seen, calls)) return false;
    dropped.push_back(std::move(o));
    return true;
  });
  mine_->front_ = {};
  for (owned& o : dropped) o.core->drop_lane(*o.in);
}

thread_lanes::~thread_lanes() {
  mine_ = nullptr;
  for (owned& o : all_) o.core->drop_lane(*o.in);
}

}  // namespace millpond
