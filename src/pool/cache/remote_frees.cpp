// Remote frees between the caches of a stream: blocks that one cache handed out and another frees
// go back to the first. So a program that allocates on one thread and frees on another passes each
// block through one line of a remote_free_queue, and through no lock, no stream cache and no heap.
// Caches of different streams never have a route: their frees are not in each other's order.
//
// Whether a block was freed as it should be is known from its record, which lies in the cache of
// the thread that handed it out. So it is looked at there, when the queue is opened; a free
// that is refused then is reported by the next call of the pool that is not quick.
#include <algorithm>
#include <new>

#include "pool/cache/cache_directory.hpp"
#include "pool/cache/large_limits.hpp"
#include "pool/fast_path.hpp"

namespace millpond {
// A free of a block whose owner is known: it goes there by its address, and its record is
// not touched. False where it does not go.
bool cache_directory::post(thread_cache& in, std::uint64_t address, std::uint64_t bytes) noexcept {
  const std::uint32_t number = bytes == 0 ? 0 : owners_.owner_of(address);
  if (number == 0 || number == in.number || !in.lock.owner_lock()) return false;
  const remote_routes::route* const route = in.remote.to(number);
  const bool goes = route != nullptr && route->box != nullptr && !in.has(thread_cache::is_dead) &&
                    route->box->put(address, bytes, large_limits::on_the_way(in.large_limit_bytes));
  if (goes) {
    in.counts.deallocations.add(1);
    in.counts.bytes_in.add(bytes);
  }
  in.lock.owner_unlock();
  return goes;
}

// From now on each free in the pool changes its block's state by compare and exchange. The caches'
// owners read the flag under their locks, which are all taken here, so no free that does not check
// is under way afterwards.
void cache_directory::check_frees() noexcept {
  const mutex_lock lock(mutex_);
  if (checks_frees_) return;
  for (thread_cache* const l : caches_) l->lock.foreign_begin();
  process_barrier();
  for (thread_cache* const l : caches_) {
    l->lock.foreign_arrive();
    l->set(thread_cache::checks_frees);
    l->lock.foreign_unlock();
  }
  checks_frees_ = true;
}

// A block that another cache handed out was freed on this one. False where it was not live any
// more. Under the cache's lock, which is given back.
bool cache_directory::send(thread_cache& in, heap::extent* block, std::uint64_t bytes) noexcept {
  if (!in.has(thread_cache::checks_frees)) {
    // Its own cache may free it too, at this moment.
    in.lock.owner_unlock();
    check_frees();
    return push(in, reinterpret_cast<void*>(block->start()), bytes);
  }
  const std::uint64_t freed = block->requested;
  if (!change_state(*block, block_state::live, block_state::sent)) {
    in.lock.owner_unlock();
    return false;
  }
  in.counts.deallocations.add(1);
  in.counts.bytes_in.add(freed);
  const std::uint32_t number = block->holder_number;
  remote_routes::route* const route = in.remote.to(number);
  if (route != nullptr && route->box != nullptr) {
    if (route->box->put(block->start(), freed, large_limits::on_the_way(in.large_limit_bytes))) {
      in.lock.owner_unlock();
      return true;
    }
  } else if (route != nullptr && ++in.remote.in_vain == remote_routes::worth_asking_again) {
    in.remote.in_vain = 0;
    *route = {};
  }
  set_state(*block, block_state::cached);
  const bool wanted = route == nullptr && in.remote.saw(number);
  keep(in, block);
  if (wanted) connect(in, number);
  return true;
}

// A block of another cache, or of the heap, is handed out by this one.
void cache_directory::change_hands(thread_cache& to, heap::extent& block) noexcept {
  block.holder_number = to.number;
  owners_.forget(block.start());
}

// What was freed with this address and so many bytes, as a block that this cache keeps from now on.
// nullptr where that was no block of those bytes, or one that is free: then the free is taken back
// and will be reported. Under the cache's lock, whoever has it.
heap::extent* cache_directory::accept(thread_cache& in, std::uint64_t address,
                                      std::uint64_t bytes) noexcept {
  heap::extent* const block = blocks_.find(address);
  const block_state state = block == nullptr ? block_state::none : state_of(*block);
  if (__builtin_expect((state == block_state::live || state == block_state::sent) &&
                           block->requested == bytes &&
                           change_state(*block, state, block_state::cached),
                       1)) {
    owners_.note(address, in.number);
    return block;
  }
  in.counts.deallocations.add(~std::uint64_t{0});
  in.counts.bytes_in.add(0 - bytes);
  refused_.note({reinterpret_cast<const void*>(address), bytes,
                 block == nullptr ? 0 : std::uint64_t{block->requested}, in.handle, state});
  return nullptr;
}

// All remote frees that were sent to the cache. Under its lock, whoever has it.
void cache_directory::drain_remote(thread_cache& in) noexcept {
  for (const auto& box : in.remote.in) {
    if (box == nullptr) continue;
    box->open_all(
        [&](std::uint64_t address, std::uint64_t bytes) { return accept(in, address, bytes); });
    box->tell();
  }
}

// The first block that serves the request; what lies before and behind it goes into the cache.
// Where the cache has no room, one block is put out for the sake of those behind it. No more at
// once than one allocation should pay for. Under the cache's lock.
heap::extent* cache_directory::from_remote(thread_cache& in, std::uint64_t bytes,
                                           heap::extent** surplus) noexcept {
  static constexpr std::size_t most_at_once = 16;
  heap::extent* out = nullptr;
  std::size_t left = most_at_once;
  for (const auto& box : in.remote.in) {
    if (box == nullptr) continue;
    // What was opened before, and where that does not serve the next line.
    for (;;) {
      bool room = true;
      heap::extent* block = nullptr;
      for (; left > 0 && (block = box->front()) != nullptr; --left) {
        if (out == nullptr && thread_cache::serves(*block, bytes)) {
          out = block;
        } else if (!in.keep(block)) {
          room = false;
          if (out != nullptr || *surplus != nullptr) break;
          *surplus = block;
        }
        box->take_front();
      }
      if (out != nullptr || left == 0 || !room) break;
      if (!box->open(
              [&](std::uint64_t address, std::uint64_t size) { return accept(in, address, size); }))
        break;
    }
    box->tell();
  }
  if (out != nullptr) in.counts.stream_cache_hits.add(1);
  return out;
}

// A route from this cache to the one of that number, or a note that there is none: that cache is
// gone, serves another stream or has as many senders as it takes. Called by the cache's owner,
// outside its lock.
void cache_directory::connect(thread_cache& in, std::uint32_t number) noexcept {
  const mutex_lock lock(mutex_);
  // Caches lie in the order of their numbers.
  const auto found =
      std::lower_bound(caches_.begin(), caches_.end(), number,
                       [](const thread_cache* l, std::uint32_t n) { return l->number < n; });
  thread_cache* to =
      found == caches_.end() || (*found)->number != number || (*found)->stream != in.stream
          ? nullptr
          : *found;
  std::shared_ptr<remote_free_queue> made;
  bool later = false;  // no host memory now: not noted, so that it is tried again
  const bool room =
      std::any_of(in.remote.out.begin(), in.remote.out.end(),
                  [](const remote_routes::route& route) { return route.box == nullptr; });
  if (to != nullptr && room &&
      std::find(to->remote.in.begin(), to->remote.in.end(), nullptr) != to->remote.in.end()) {
    try {
      if (owners_.open()) made = std::make_shared<remote_free_queue>(in, *to);
      later = made == nullptr;
    } catch (const std::bad_alloc&) {
      later = true;
    }
  }
  // In place of a route that leads nowhere; four that do lead somewhere are enough.
  const auto note = [&] {
    remote_routes& own = in.remote;
    own.candidate = own.seen = 0;
    for (std::size_t tries = 0; tries < remote_routes::most; ++tries) {
      remote_routes::route& route = own.out[own.next_out];
      own.next_out = static_cast<std::uint8_t>((own.next_out + 1) % remote_routes::most);
      if (route.box != nullptr) continue;
      route = {number, made};
      return made != nullptr;
    }
    return false;
  };
  if (to != nullptr && (to->leaving || to->has(thread_cache::is_dead))) made = nullptr;
  if (made == nullptr) {
    const auto entered = in.lock.enter();
    if (later)
      in.remote.seen = 0;
    else
      static_cast<void>(note());
    in.lock.leave(entered);
    return;
  }
  in.lock.foreign_begin();
  to->lock.foreign_begin();
  process_barrier();
  in.lock.foreign_arrive();
  to->lock.foreign_arrive();
  if (note()) {
    *std::find(to->remote.in.begin(), to->remote.in.end(), nullptr) = made;
    in.sends.store(true, std::memory_order_relaxed);
  }
  to->lock.foreign_unlock();
  in.lock.foreign_unlock();
}

// The cache sends and receives no more. What it sent and nobody took goes to the heap; what was
// sent to it is still in its queues.
void cache_directory::disconnect(thread_cache& of) noexcept {
  heap::extent* chain = nullptr;
  {
    const mutex_lock lock(mutex_);
    of.leaving = true;  // nobody makes a route to it any more
    std::array<thread_cache*, 2 * remote_routes::most + 1> all{&of};
    std::size_t count = 1;
    const auto note = [&](thread_cache& other) {
      if (std::find(all.begin(), all.begin() + count, &other) == all.begin() + count)
        all[count++] = &other;
    };
    for (const auto& box : of.remote.in) {
      if (box != nullptr) note(box->sender());
    }
    for (const remote_routes::route& route : of.remote.out) {
      if (route.box != nullptr) note(route.box->receiver());
    }
    if (count == 1) return;
    for (std::size_t i = 0; i < count; ++i) all[i]->lock.foreign_begin();
    process_barrier();
    for (std::size_t i = 0; i < count; ++i) all[i]->lock.foreign_arrive();
    for (const auto& box : of.remote.in) {
      if (box == nullptr) continue;
      box->send();
      remote_routes& theirs = box->sender().remote;
      for (remote_routes::route& route : theirs.out) {
        if (route.box == box) route = {};
      }
      if (!theirs.sends_any()) box->sender().sends.store(false, std::memory_order_relaxed);
    }
    for (remote_routes::route& route : of.remote.out) {
      if (route.box == nullptr) continue;
      route.box->send();
      thread_cache& receiver = route.box->receiver();
      drain_remote(receiver);
      chain = thread_cache::empty(*route.box, chain);
      for (auto& box : receiver.remote.in) {
        if (box == route.box) box = nullptr;
      }
      route = {};
    }
    for (std::size_t i = 0; i < count; ++i) all[i]->lock.foreign_unlock();
  }
  if (chain != nullptr && !phase_.closed()) blocks_.release(*of.stream, chain);
}

}  // namespace millpond
