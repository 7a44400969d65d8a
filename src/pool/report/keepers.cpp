// Who keeps each byte of a pool: a walk over all that the pool holds, added up by what keeps it and
// whose it is.
#include <algorithm>
#include <map>
#include <tuple>

#include "pool/core.hpp"

namespace millpond {

class pool::core::keeper_survey {
 public:
  explicit keeper_survey(core& of) : of_(of) {
    owners_[of_.streams_.limbo().owner] = {keeper_kind::dead_stream, 0, 0, 0};
  }
  void ask_streams();
  void ask_caches();
  void ask_captures();
  // When the others have been asked.
  void walk_heap(const block_store::locked& books);
  void write(const block_store::locked& books, memory_report& out);

 private:
  struct owner_facts {
    keeper_kind what = keeper_kind::fence;
    std::uint64_t stream_id = 0;
    std::uint64_t stream_handle = 0;
    std::uint64_t capture_id = 0;
  };
  // The part of an extent that lies in one span of a handle. It counts as a piece where it starts.
  struct part {
    const heap::extent& of;
    heap::handle_id in;
    std::uint64_t bytes, pieces;
  };
  void note_arena(const arena_state& arena, std::uint64_t capture_id);
  void count_free(const part& here);
  void count_used(const part& here);
  void add(keeper_kind kind, const owner_facts& whose, std::uint64_t bytes, std::uint64_t pieces,
           std::uint64_t largest_bytes);
  void add(keeper_kind kind, const owner_facts& whose, const part& here) {
    add(kind, whose, here.bytes, here.pieces, here.of.bytes);
  }

  core& of_;
  // By kind, stream identity and capture.
  std::map<std::tuple<keeper_kind, std::uint64_t, std::uint64_t>, memory_keeper> keepers_;
  std::map<heap::owner_id, owner_facts> owners_;
  std::map<const heap::extent*, owner_facts> captured_;  // blocks carved for captures
  std::map<const stream_state*, owner_facts> streams_;
  // By handle: what could be moved or given back, and who keeps it from that.
  std::vector<memory_neighbour> neighbours_;
  std::vector<bool> loose_;
};

void pool::core::keeper_survey::add(keeper_kind kind, const owner_facts& whose, std::uint64_t bytes,
                                    std::uint64_t pieces, std::uint64_t largest_bytes) {
  memory_keeper& k = keepers_[{kind, whose.stream_id, whose.capture_id}];
  k.what = kind;
  k.stream_id = whose.stream_id;
  k.stream_handle = whose.stream_handle;
  k.capture_id = whose.capture_id;
  k.bytes += bytes;
  k.pieces += pieces;
  k.largest_bytes = std::max(k.largest_bytes, largest_bytes);
}

void pool::core::keeper_survey::ask_streams() {
  of_.streams_.each([&](const stream_state& stream) {
    const order::stream_batches& batches = *stream.batches;
    const owner_facts facts{batches.gone() ? keeper_kind::dead_stream : keeper_kind::fence,
                            batches.id(), reinterpret_cast<std::uintptr_t>(batches.handle()), 0};
    owners_[stream.owner] = facts;
    streams_[&stream] = facts;
    const std::uint64_t bytes = stream.shared.bytes();
    if (bytes > 0) add(keeper_kind::stream_cache, facts, bytes, 1, bytes);
  });
}

void pool::core::keeper_survey::ask_caches() {
  struct held {
    const stream_state* stream;
    std::uint64_t kept, sent;
  };
  std::vector<held> all;
  // Room for all of them, since the visit may allocate nothing.
  for (bool complete = false; !complete;) {
    all.clear();
    all.reserve(2 * of_.caches_.count() + 8);
    complete = true;
    of_.caches_.each_locked([&](const thread_cache& l) {
      if (all.size() == all.capacity()) {
        complete = false;
        return;
      }
      all.push_back({l.stream, l.small_bytes + l.large_bytes, l.remote_bytes()});
    });
  }
  for (const held& each : all) {
    const owner_facts& whose = streams_[each.stream];
    if (each.kept > 0) add(keeper_kind::cache, whose, each.kept, 1, each.kept);
    if (each.sent > 0) add(keeper_kind::stream_cache, whose, each.sent, 1, each.sent);
  }
}

void pool::core::keeper_survey::note_arena(const arena_state& arena, std::uint64_t capture_id) {
  owners_[arena.parked] = {keeper_kind::graph, 0, 0, capture_id};
  for (const auto& held : arena.out)
    captured_[held.block] = {keeper_kind::graph, 0, 0, held.capture};
  for (const auto& kept : arena.kept)
    captured_[kept.block] = {keeper_kind::graph, 0, 0, capture_id};
}

void pool::core::keeper_survey::ask_captures() {
  of_.captures_.each(
      [&](const arena_state& arena, std::uint64_t capture_id) { note_arena(arena, capture_id); },
      [&](heap::owner_id owner, std::uint64_t capture_id) {
        owners_[owner] = {keeper_kind::graph, 0, 0, capture_id};
      });
}

void pool::core::keeper_survey::walk_heap(const block_store::locked& books) {
  const heap::heap& all = books.heap();
  neighbours_.resize(all.handles().size());
  loose_.resize(all.handles().size());
  for (heap::handle_id id = 0; id < neighbours_.size(); ++id) {
    const auto& handle = all.handles()[id];
    if (!handle.present || handle.mappings.empty()) continue;
    neighbours_[id] = {handle.mappings.front().at, handle.bytes, 0, 0, 0};
    loose_[id] = !all.holds_used(id);
  }
  for (const auto& view : all.views()) {
    for (const auto& slot : view.slots) {
      if (slot.span == heap::no_span || !slot.active) continue;
      const std::uint64_t end = slot.at + slot.bytes;
      for (const heap::extent* s = all.extent_at(slot.at); s != nullptr && s->start() < end;
           s = s->after) {
        const part here{*s, all.spans()[slot.span].handle,
                        std::min(s->end(), end) - std::max(s->start(), slot.at),
                        s->start() >= slot.at ? std::uint64_t{1} : 0};
        if (s->state == heap::extent_state::free) {
          count_free(here);
        } else if (s->state == heap::extent_state::used) {
          count_used(here);
        }
      }
    }
  }
}

void pool::core::keeper_survey::count_free(const part& here) {
  if (here.of.owner == heap::anyone) {
    neighbours_[here.in].free_bytes += here.bytes;
    add(loose_[here.in] ? keeper_kind::idle_span : keeper_kind::idle_between, {}, here);
  } else {
    const owner_facts& whose = owners_[here.of.owner];
    add(whose.what, whose, here);
  }
}

void pool::core::keeper_survey::count_used(const part& here) {
  const auto found = captured_.find(&here.of);
  const bool in_graph = found != captured_.end();
  switch (state_of(here.of)) {
    case block_state::live:
    case block_state::special: {
      memory_neighbour& beside = neighbours_[here.in];
      if (here.of.bytes > beside.block_bytes) {
        beside.block_address = here.of.start();
        beside.block_bytes = here.of.bytes;
      }
      if (in_graph) return add(keeper_kind::capture_live, found->second, here);
      return add(keeper_kind::live, {}, here);
    }
    case block_state::guarded:
      if (in_graph) return add(keeper_kind::graph, found->second, here);
      return add(keeper_kind::recorded_use, {}, here);
    case block_state::sent:
    case block_state::cached:
      // In a capture's cache; those of other caches and of stream caches are counted there.
      if (in_graph) add(keeper_kind::graph, found->second, here);
      return;
    case block_state::none: return;  // between two hands just now
  }
}

void pool::core::keeper_survey::write(const block_store::locked& books, memory_report& out) {
  for (const memory_neighbour& n : neighbours_) {
    if (n.free_bytes > 0 && n.block_bytes > 0) out.neighbours.push_back(n);
  }
  if (of_.memory_.granularity() == 0) {
    std::uint64_t chunks = 0;
    for (const auto& handle : books.heap().handles()) chunks += handle.present ? handle.bytes : 0;
    if (books.reserved() > chunks) {
      const std::uint64_t lost = books.reserved() - chunks;
      add(keeper_kind::alignment, {}, lost, 1, lost);
    }
  }
  for (auto& [key, k] : keepers_) out.keepers.push_back(k);
  std::sort(out.keepers.begin(), out.keepers.end(),
            [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  std::sort(out.neighbours.begin(), out.neighbours.end(),
            [](const auto& a, const auto& b) { return a.free_bytes > b.free_bytes; });
  if (out.neighbours.size() > 8) out.neighbours.resize(8);
}

void pool::core::find_keepers(memory_report& out) {
  keeper_survey survey(*this);
  survey.ask_streams();
  survey.ask_caches();
  survey.ask_captures();
  const block_store::locked books(blocks_);
  survey.walk_heap(books);
  survey.write(books, out);
}

}  // namespace millpond
