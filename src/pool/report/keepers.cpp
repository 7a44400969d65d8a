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
    owners_[of.limbo_.owner] = {keeper_kind::dead_stream, 0, 0, 0};
  }
  void ask_streams();
  void ask_caches();
  void ask_captures();
  // The rest under the heap mutex, when the others have been asked.
  void walk_heap();
  void write(memory_report& out);

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
  const std::shared_lock lock(of_.streams_mutex_);
  for (const auto& [id, stream] : of_.streams_) {
    const owner_facts facts{stream->batches->gone() ? keeper_kind::dead_stream : keeper_kind::fence,
                            id, reinterpret_cast<std::uintptr_t>(stream->batches->handle()), 0};
    owners_[stream->owner] = facts;
    streams_[stream.get()] = facts;
    const std::uint64_t bytes = stream->shared.bytes();
    if (bytes > 0) add(keeper_kind::stream_cache, facts, bytes, 1, bytes);
  }
}

void pool::core::keeper_survey::ask_caches() {
  const std::lock_guard lock(of_.caches_mutex_);
  struct held {
    const stream_state* stream;
    std::uint64_t kept, sent;
  };
  std::vector<held> all;
  all.reserve(of_.caches_.size());
  of_.with_caches_locked(nullptr, [&](thread_cache& l) {
    all.push_back({l.stream, l.small_bytes + l.large_bytes, l.remote_bytes()});
  });
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
  const std::lock_guard lock(of_.captures_mutex_);
  for (const auto& [number, arena] : of_.arenas_) note_arena(*arena, 0);
  for (const auto& [id, capture] : of_.captures_) {
    if (capture->arena->number == 0) note_arena(*capture->arena, id);
    for (const auto& [stream, owner] : capture->owners)
      owners_[owner] = {keeper_kind::graph, 0, 0, id};
  }
}

void pool::core::keeper_survey::walk_heap() {
  const heap::heap& all = of_.heap_;
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

void pool::core::keeper_survey::write(memory_report& out) {
  for (const memory_neighbour& n : neighbours_) {
    if (n.free_bytes > 0 && n.block_bytes > 0) out.neighbours.push_back(n);
  }
  if (of_.granularity_ == 0) {
    std::uint64_t chunks = 0;
    for (const auto& handle : of_.heap_.handles()) chunks += handle.present ? handle.bytes : 0;
    if (of_.reserved_ > chunks) {
      const std::uint64_t lost = of_.reserved_ - chunks;
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
  const std::lock_guard lock(heap_mutex_);
  survey.walk_heap();
  survey.write(out);
}

}  // namespace millpond
