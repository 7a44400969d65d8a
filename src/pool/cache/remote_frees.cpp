// Mail between the lanes of a stream: blocks that one lane handed out and another frees go back to
// the first. So a program that allocates on one thread and frees on another passes each block
// through one line of a mailbox, and through no lock, no shelf and no heap. Lanes of different
// streams never have a way: their frees are not in each other's order.
//
// Whether a block was freed as it should be is told by its record, which lies in the cache of the
// thread that handed it out. So it is looked at there, when the mail is opened; a free that is
// refused then is told by the next call of the pool that is not quick.
#include <algorithm>
#include <new>

#include "pool/core.hpp"

namespace millpond {
namespace {

// Of what a lane may keep in large blocks, the bytes that a box may hold so many times. The more
// blocks are on their way the more come by one line: pairs of threads that passed blocks of 1 MiB
// on average took 144 ns a block with 4 times, 113 with 8, 98 with 16 and 96 with 64 (an H200's
// host, 2026-11-30). Under pressure, and before the pool grows past its slack, boxes are emptied as
// lanes are.
constexpr std::uint64_t box_share = 16;

}  // namespace

// A free of a block whose home is known: it goes there by its address, and its record is not
// touched. False where it does not go.
bool pool::core::post(stream_lane& in, std::uint64_t address, std::uint64_t bytes) noexcept {
  const std::uint32_t number = bytes == 0 ? 0 : homes_.lane_of(address);
  if (number == 0 || number == in.number || !in.lock.owner_lock()) return false;
  const lane_mail::way* const way = in.mail.to(number);
  const bool goes = way != nullptr && way->box != nullptr &&
                    !in.dead.load(std::memory_order_relaxed) &&
                    way->box->put(address, bytes, box_share * in.large_limit_bytes);
  if (goes) {
    in.counts.deallocations.add(1);
    in.counts.bytes_in.add(bytes);
  }
  in.lock.owner_unlock();
  return goes;
}

// A block that another lane handed out was freed on this one. Under the lane's lock, which is given
// back.
void pool::core::send(stream_lane& in, heap::segment* block) noexcept {
  const std::uint32_t number = block->holder_number;
  lane_mail::way* const way = in.mail.to(number);
  if (way != nullptr && way->box != nullptr) {
    set_state(*block, block_state::sent);
    if (way->box->put(block->start(), block->requested, box_share * in.large_limit_bytes))
      return in.lock.owner_unlock();
  } else if (way != nullptr && ++in.mail.in_vain == lane_mail::worth_asking_again) {
    in.mail.in_vain = 0;
    *way = {};
  }
  set_state(*block, block_state::cached);
  const bool wanted = way == nullptr && in.mail.saw(number);
  keep(in, block);
  if (wanted) connect(in, number);
}

// A block of another lane, or of the heap, is handed out by this one.
void pool::core::change_hands(stream_lane& to, heap::segment& block) noexcept {
  block.holder_number = to.number;
  homes_.forget(block.start());
}

// What was freed with this address and so many bytes, as a block that this lane keeps from now on.
// nullptr where that was no block of those bytes, or one that is free: then the free is taken back
// and will be told. Under the lane's lock, whoever has it.
heap::segment* pool::core::accept(stream_lane& in, std::uint64_t address,
                                  std::uint64_t bytes) noexcept {
  heap::segment* const block = heap_.find(address);
  const block_state state = block == nullptr ? block_state::none : state_of(*block);
  if (__builtin_expect(
          (state == block_state::live || state == block_state::sent) && block->requested == bytes,
          1)) {
    set_state(*block, block_state::cached);
    homes_.note(address, in.number);
    return block;
  }
  if (state == block_state::sent) set_state(*block, block_state::live);
  in.counts.deallocations.add(~std::uint64_t{0});
  in.counts.bytes_in.add(0 - bytes);
  const std::lock_guard lock(refused_mutex_);
  if (refused_count_ < refused_.size()) {
    refused_[refused_count_++] = {reinterpret_cast<const void*>(address), bytes,
                                  block == nullptr ? 0 : block->requested, in.handle, state};
  } else {
    ++refused_more_;
  }
  any_refused_.store(true, std::memory_order_relaxed);
  return nullptr;
}

// All mail that was sent to the lane. Under its lock, whoever has it.
void pool::core::open_mail(stream_lane& in) noexcept {
  for (const auto& box : in.mail.in) {
    if (box == nullptr) continue;
    box->open_all(
        [&](std::uint64_t address, std::uint64_t bytes) { return accept(in, address, bytes); });
    box->tell();
  }
}

// The first block that serves the request; what lies before and behind it goes into the lane. Where
// the lane has no room, one block is put out for the sake of those behind it. No more at once than
// one allocation should pay for. Under the lane's lock.
heap::segment* pool::core::from_mail(stream_lane& in, std::uint64_t bytes,
                                     heap::segment** surplus) noexcept {
  static constexpr std::size_t most_at_once = 16;
  heap::segment* out = nullptr;
  std::size_t left = most_at_once;
  for (const auto& box : in.mail.in) {
    if (box == nullptr) continue;
    // What was opened before, and where that does not serve the next line.
    for (;;) {
      bool room = true;
      heap::segment* block = nullptr;
      for (; left > 0 && (block = box->front()) != nullptr; --left) {
        if (out == nullptr && stream_lane::serves(*block, bytes)) {
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
  if (out != nullptr) in.counts.shelf_hits.add(1);
  return out;
}

// A way from this lane to the one of that number, or a note that there is none: that lane is gone,
// serves another stream or has as many senders as it takes. Called by the lane's owner, outside its
// lock.
void pool::core::connect(stream_lane& in, std::uint32_t number) noexcept {
  const std::lock_guard lock(lanes_mutex_);
  // Lanes lie in the order of their numbers.
  const auto found =
      std::lower_bound(lanes_.begin(), lanes_.end(), number,
                       [](const stream_lane* l, std::uint32_t n) { return l->number < n; });
  stream_lane* to =
      found == lanes_.end() || (*found)->number != number || (*found)->stream != in.stream ? nullptr
                                                                                           : *found;
  std::shared_ptr<mailbox> made;
  bool later = false;  // no host memory now: not noted, so that it is tried again
  const bool room = std::any_of(in.mail.out.begin(), in.mail.out.end(),
                                [](const lane_mail::way& way) { return way.box == nullptr; });
  if (to != nullptr && room &&
      std::find(to->mail.in.begin(), to->mail.in.end(), nullptr) != to->mail.in.end()) {
    try {
      if (homes_.open()) made = std::make_shared<mailbox>(in, *to);
      later = made == nullptr;
    } catch (const std::bad_alloc&) {
      later = true;
    }
  }
  // In place of a way that leads nowhere; four that do lead somewhere are enough.
  const auto note = [&] {
    lane_mail& own = in.mail;
    own.candidate = own.seen = 0;
    for (std::size_t tries = 0; tries < lane_mail::most; ++tries) {
      lane_mail::way& way = own.out[own.next_out];
      own.next_out = static_cast<std::uint8_t>((own.next_out + 1) % lane_mail::most);
      if (way.box != nullptr) continue;
      way = {number, made};
      return made != nullptr;
    }
    return false;
  };
  if (to != nullptr && to->dead.load(std::memory_order_relaxed)) made = nullptr;
  if (made == nullptr) {
    const auto entered = in.lock.enter();
    if (later)
      in.mail.seen = 0;
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
    *std::find(to->mail.in.begin(), to->mail.in.end(), nullptr) = made;
    in.sends.store(true, std::memory_order_relaxed);
  }
  to->lock.foreign_unlock();
  in.lock.foreign_unlock();
}

// The lane sends and receives no more. What it sent and nobody took goes to the heap; what was sent
// to it lies in its boxes yet.
void pool::core::disconnect(stream_lane& of) noexcept {
  heap::segment* chain = nullptr;
  {
    const std::lock_guard lock(lanes_mutex_);
    of.dead.store(true, std::memory_order_relaxed);  // nobody makes a way to it any more
    std::array<stream_lane*, 2 * lane_mail::most + 1> all{&of};
    std::size_t count = 1;
    const auto note = [&](stream_lane& other) {
      if (std::find(all.begin(), all.begin() + count, &other) == all.begin() + count)
        all[count++] = &other;
    };
    for (const auto& box : of.mail.in) {
      if (box != nullptr) note(box->sender());
    }
    for (const lane_mail::way& way : of.mail.out) {
      if (way.box != nullptr) note(way.box->receiver());
    }
    if (count == 1) return;
    for (std::size_t i = 0; i < count; ++i) all[i]->lock.foreign_begin();
    process_barrier();
    for (std::size_t i = 0; i < count; ++i) all[i]->lock.foreign_arrive();
    for (const auto& box : of.mail.in) {
      if (box == nullptr) continue;
      box->send();
      lane_mail& theirs = box->sender().mail;
      for (lane_mail::way& way : theirs.out) {
        if (way.box == box) way = {};
      }
      if (!theirs.sends_any()) box->sender().sends.store(false, std::memory_order_relaxed);
    }
    for (lane_mail::way& way : of.mail.out) {
      if (way.box == nullptr) continue;
      way.box->send();
      stream_lane& receiver = way.box->receiver();
      open_mail(receiver);
      chain = stream_lane::empty(*way.box, chain);
      for (auto& box : receiver.mail.in) {
        if (box == way.box) box = nullptr;
      }
      way = {};
    }
    for (std::size_t i = 0; i < count; ++i) all[i]->lock.foreign_unlock();
  }
  if (chain != nullptr && !closed()) flush_chain(*of.stream, chain);
}

}  // namespace millpond
