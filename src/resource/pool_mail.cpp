// Mail between the lanes of a stream: blocks that one lane handed out and another frees go back to the first. So a program that
// allocates on one thread and frees on another passes each block through one line of a mailbox and its own record, and through no
// lock, no shelf and no heap. Lanes of different streams never have a way: their frees are not in each other's order.
#include <algorithm>
#include <new>

#include "resource/pool_core.hpp"

namespace millpond {

// A block that another lane handed out was freed on this one. Under the lane's lock, which is given back.
void pool::core::send(stream_lane& in, heap::segment* block) noexcept {
  const std::uint32_t number = block->holder_number;
  for (const lane_mail::way& way : in.mail.out) {
    if (way.number != number) continue;
    if (way.box == nullptr || !way.box->put(block, 4 * in.large_limit_bytes)) return keep(in, block);
    in.lock.owner_unlock();
    return;
  }
  const bool wanted = in.mail.saw(number);
  keep(in, block);
  if (wanted) connect(in, number);
}

// The first block that serves the request; what lies before and behind it goes into the lane. Where the lane has no room, one
// block is put out for the sake of those behind it. No more at once than one allocation should pay for. Under the lane's lock.
heap::segment* pool::core::from_mail(stream_lane& in, std::uint64_t bytes, heap::segment** surplus) noexcept {
  static constexpr unsigned most_at_once = 16;
  heap::segment* out = nullptr;
  unsigned taken = 0;
  for (const auto& box : in.mail.in) {
    if (box == nullptr) continue;
    box->expect();
    heap::segment* block = nullptr;
    for (; taken < most_at_once && (block = box->front()) != nullptr; ++taken) {
      if (out == nullptr && stream_lane::serves(*block, bytes)) {
        out = block;
      } else if (!in.keep(block)) {
        if (out != nullptr || *surplus != nullptr) break;
        *surplus = block;
      }
      box->take_front(*block);
    }
    box->tell();
  }
  if (out != nullptr) in.counts.shelf_hits.add(1);
  return out;
}

// A way from this lane to the one of that number, or a note that there is none: that lane is gone, serves another stream or
// has as many senders as it takes. Called by the lane's owner, outside its lock.
void pool::core::connect(stream_lane& in, std::uint32_t number) noexcept {
  const std::lock_guard lock(lanes_mutex_);
  // Lanes lie in the order of their numbers.
  const auto found = std::lower_bound(lanes_.begin(), lanes_.end(), number,
                                      [](const stream_lane* l, std::uint32_t n) { return l->number < n; });
  stream_lane* to = found == lanes_.end() || (*found)->number != number || (*found)->stream != in.stream ? nullptr : *found;
  std::shared_ptr<mailbox> made;
  const bool room = std::any_of(in.mail.out.begin(), in.mail.out.end(), [](const lane_mail::way& way) { return way.box == nullptr; });
  if (to != nullptr && room && std::find(to->mail.in.begin(), to->mail.in.end(), nullptr) != to->mail.in.end()) {
    try {
      made = std::make_shared<mailbox>(in, *to);
    } catch (const std::bad_alloc&) {
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
    static_cast<void>(note());
    in.lock.leave(entered);
    return;
  }
  in.lock.foreign_begin();
  to->lock.foreign_begin();
  process_barrier();
  in.lock.foreign_arrive();
  to->lock.foreign_arrive();
  if (note()) *std::find(to->mail.in.begin(), to->mail.in.end(), nullptr) = made;
  to->lock.foreign_unlock();
  in.lock.foreign_unlock();
}

// The lane sends and receives no more. What it sent and nobody took goes to the heap; what was sent to it lies in its boxes yet.
void pool::core::disconnect(stream_lane& of) noexcept {
  heap::segment* chain = nullptr;
  {
    const std::lock_guard lock(lanes_mutex_);
    of.dead.store(true, std::memory_order_relaxed);  // nobody makes a way to it any more
    std::array<stream_lane*, 2 * lane_mail::most + 1> all{&of};
    std::size_t count = 1;
    const auto note = [&](stream_lane& other) {
      if (std::find(all.begin(), all.begin() + count, &other) == all.begin() + count) all[count++] = &other;
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
      for (lane_mail::way& way : box->sender().mail.out) {
        if (way.box == box) way = {};
      }
    }
    for (lane_mail::way& way : of.mail.out) {
      if (way.box == nullptr) continue;
      chain = stream_lane::empty(*way.box, chain);
      for (auto& box : way.box->receiver().mail.in) {
        if (box == way.box) box = nullptr;
      }
      way = {};
    }
    for (std::size_t i = 0; i < count; ++i) all[i]->lock.foreign_unlock();
  }
  if (chain != nullptr && !closed()) flush_chain(*of.stream, chain);
}

}  // namespace millpond
