// Who keeps each byte of a pool, and in one sentence why a request cannot be served.
#include <algorithm>
#include <map>
#include <tuple>

#include "millpond/base/units.hpp"
#include "pool/core.hpp"

namespace millpond {
namespace {

// Keepers are added up by what they are and whose.
using keeper_key = std::tuple<keeper_kind, std::uint64_t,
                              std::uint64_t>;  // kind, stream identity or owner, capture

struct owner_facts {
  keeper_kind what = keeper_kind::fence;
  std::uint64_t stream_id = 0;
  std::uint64_t stream_handle = 0;
  std::uint64_t capture_id = 0;
};

}  // namespace

memory_report pool::core::explain(const request* what, std::vector<ladder_step> ladder) {
  memory_report out;
  const pool_statistics now = statistics();
  out.pool = options_.name;
  out.kind = options_.kind;
  out.ladder = std::move(ladder);
  out.live_bytes = now.live_bytes;
  out.live_blocks = now.live_blocks;
  out.reserved_bytes = now.reserved_bytes;
  out.peak_reserved_bytes = now.peak_reserved_bytes;
  out.asleep_bytes = now.asleep_bytes;
  out.limit_bytes = limit_bytes();
  out.soft_limit_bytes = options_.soft_limit_bytes;
  if (budget_ != nullptr) {
    const memory_budget& shared = budget_->budget();
    out.budget_hard_bytes = shared.limits().hard_bytes;
    out.budget_soft_bytes = shared.limits().soft_bytes;
    out.budget_used_bytes = shared.used_bytes();
    for (auto& share : shared.shares())
      out.budget_shares.push_back({std::move(share.name), share.bytes});
  }
  std::uint64_t free = 0;
  std::uint64_t total = 0;
  if (gpu_->memory_info(&free, &total).ok()) {
    out.device_free_bytes = free;
    out.device_total_bytes = total;
  }
  find_keepers(out);
  if (what != nullptr && what->stream != nullptr) {
    // What the stream itself freed is no obstacle to it, only the pieces that it is in.
    for (memory_keeper& k : out.keepers) {
      if (k.what == keeper_kind::fence && k.stream_id == what->stream->batches->id())
        k.what = keeper_kind::idle_between;
    }
  }
  const heap::owner_id owner = what != nullptr ? what->owner : heap::anyone;
  {
    const std::lock_guard lock(heap_mutex_);
    out.largest_bytes = std::max(heap_.largest_free(owner), heap_.largest_free(heap::anyone));
    out.last_failure = last_failure_.message;
    out.fence_failure = last_fence_failure_.message;
  }
  if (what != nullptr) {
    out.asked_bytes = what->bytes;
    out.asked_alignment = what->alignment;
    out.asked_stream = reinterpret_cast<std::uintptr_t>(what->handle);
    explain_reason(out);
  }
  return out;
}

void pool::core::find_keepers(memory_report& out) {
  std::map<keeper_key, memory_keeper> keepers;
  std::map<heap::owner_id, owner_facts> owners;
  std::map<const heap::extent*, owner_facts> captured;  // blocks carved for captures
  owners[limbo_.owner] = {keeper_kind::dead_stream, 0, 0, 0};
  const auto add = [&](keeper_kind kind, const owner_facts& whose, std::uint64_t bytes,
                       std::uint64_t pieces) {
    memory_keeper& k = keepers[{kind, whose.stream_id, whose.capture_id}];
    k.what = kind;
    k.stream_id = whose.stream_id;
    k.stream_handle = whose.stream_handle;
    k.capture_id = whose.capture_id;
    k.bytes += bytes;
    k.pieces += pieces;
    k.largest_bytes =
        std::max(k.largest_bytes, pieces == 1 ? bytes : bytes / std::max<std::uint64_t>(pieces, 1));
  };
  std::map<const stream_state*, owner_facts> states;
  {
    const std::shared_lock lock(streams_mutex_);
    for (const auto& [id, stream] : streams_) {
      const owner_facts facts{
          stream->batches->gone() ? keeper_kind::dead_stream : keeper_kind::fence, id,
          reinterpret_cast<std::uintptr_t>(stream->batches->handle()), 0};
      owners[stream->owner] = facts;
      states[stream.get()] = facts;
      const std::uint64_t bytes = stream->shared.bytes();
      if (bytes > 0) add(keeper_kind::stream_cache, facts, bytes, 1);
    }
  }
  {
    const std::lock_guard lock(caches_mutex_);
    struct held {
      const stream_state* stream;
      std::uint64_t kept, sent;
    };
    std::vector<held> all;
    all.reserve(caches_.size());
    with_caches_locked(nullptr, [&](thread_cache& l) {
      all.push_back({l.stream, l.small_bytes + l.large_bytes, l.remote_bytes()});
    });
    for (const held& each : all) {
      if (each.kept > 0) add(keeper_kind::cache, states[each.stream], each.kept, 1);
      if (each.sent > 0) add(keeper_kind::stream_cache, states[each.stream], each.sent, 1);
    }
  }
  {
    const std::lock_guard lock(captures_mutex_);
    const auto arena_facts = [&](const arena_state& arena, std::uint64_t id) {
      owners[arena.parked] = {keeper_kind::graph, 0, 0, id};
      for (const auto& [block, capture] : arena.out)
        captured[block] = {keeper_kind::graph, 0, 0, capture};
      for (const auto& kept : arena.kept) captured[kept.block] = {keeper_kind::graph, 0, 0, id};
    };
    for (const auto& [number, arena] : arenas_) arena_facts(*arena, 0);
    for (const auto& [id, capture] : captures_) {
      if (capture->arena->number == 0) arena_facts(*capture->arena, id);
      for (const auto& [stream, owner] : capture->owners)
        owners[owner] = {keeper_kind::graph, 0, 0, id};
    }
  }
  const std::lock_guard lock(heap_mutex_);
  // By handle: what could be moved or given back, and who keeps it from that.
  std::vector<memory_neighbour> by_handle(heap_.handles().size());
  std::vector<bool> loose(by_handle.size());
  for (heap::handle_id id = 0; id < by_handle.size(); ++id) {
    const auto& handle = heap_.handles()[id];
    if (!handle.present || handle.mappings.empty()) continue;
    by_handle[id] = {handle.mappings.front().at, handle.bytes, 0, 0, 0};
    loose[id] = !heap_.holds_used(id);
  }
  for (const auto& view : heap_.views()) {
    for (const auto& slot : view.slots) {
      if (slot.span == heap::no_span || !slot.active) continue;
      const std::uint64_t end = slot.at + slot.bytes;
      const heap::handle_id in = heap_.spans()[slot.span].handle;
      memory_neighbour& here = by_handle[in];
      // A extent that crosses spans is counted with the part that lies here, and as a piece where
      // it starts.
      for (const heap::extent* s = heap_.extent_at(slot.at); s != nullptr && s->start() < end;
           s = s->after) {
        const std::uint64_t from = std::max(s->start(), slot.at);
        const std::uint64_t bytes = std::min(s->end(), end) - from;
        const std::uint64_t pieces = s->start() >= slot.at ? 1 : 0;
        memory_keeper* k = nullptr;
        const auto count = [&](keeper_kind kind, const owner_facts& whose) {
          k = &keepers[{kind, whose.stream_id, whose.capture_id}];
          k->what = kind;
          k->stream_id = whose.stream_id;
          k->stream_handle = whose.stream_handle;
          k->capture_id = whose.capture_id;
          k->bytes += bytes;
          k->pieces += pieces;
          k->largest_bytes = std::max(k->largest_bytes, s->bytes);
        };
        if (s->state == heap::extent_state::free) {
          if (s->owner == heap::anyone) {
            here.free_bytes += bytes;
            count(loose[in] ? keeper_kind::idle_span : keeper_kind::idle_between, {});
          } else {
            const owner_facts& whose = owners[s->owner];
            count(whose.what, whose);
          }
          continue;
        }
        if (s->state != heap::extent_state::used) continue;
        switch (static_cast<block_state>(s->holder_state.load(std::memory_order_relaxed))) {
          case block_state::live:
          case block_state::special:
            if (s->bytes > here.block_bytes) {
              here.block_address = s->start();
              here.block_bytes = s->bytes;
            }
            if (const auto found = captured.find(s); found != captured.end()) {
              count(keeper_kind::capture_live, found->second);
            } else {
              count(keeper_kind::live, {});
            }
            break;
          case block_state::guarded:
            if (const auto found = captured.find(s); found != captured.end()) {
              count(keeper_kind::graph, found->second);
            } else {
              count(keeper_kind::recorded_use, {});
            }
            break;
          case block_state::sent:
          case block_state::cached:
            // In a capture's cache; those of other caches and of stream caches are counted there.
            if (const auto found = captured.find(s); found != captured.end())
              count(keeper_kind::graph, found->second);
            break;
          case block_state::none: break;  // between two hands just now
        }
      }
    }
  }
  for (const memory_neighbour& n : by_handle) {
    if (n.free_bytes > 0 && n.block_bytes > 0) out.neighbours.push_back(n);
  }
  std::uint64_t lost = 0;
  if (granularity_ == 0) {
    for (const auto& handle : heap_.handles()) lost += handle.present ? handle.bytes : 0;
    if (reserved_ > lost) add(keeper_kind::alignment, {}, reserved_ - lost, 1);
  }
  for (auto& [key, k] : keepers) out.keepers.push_back(k);
  std::sort(out.keepers.begin(), out.keepers.end(),
            [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  std::sort(out.neighbours.begin(), out.neighbours.end(),
            [](const auto& a, const auto& b) { return a.free_bytes > b.free_bytes; });
  if (out.neighbours.size() > 8) out.neighbours.resize(8);
}

// What stands in the way, by the largest part of what is missing; and what to try.
void pool::core::explain_reason(memory_report& out) const {
  const auto sum = [&](std::initializer_list<keeper_kind> kinds) {
    std::uint64_t bytes = 0;
    for (const memory_keeper& k : out.keepers) {
      if (std::find(kinds.begin(), kinds.end(), k.what) != kinds.end()) bytes += k.bytes;
    }
    return bytes;
  };
  const std::uint64_t idle = sum({keeper_kind::idle_between, keeper_kind::idle_span});
  const std::uint64_t waiting =
      sum({keeper_kind::fence, keeper_kind::dead_stream, keeper_kind::recorded_use});
  const std::uint64_t graphs = sum({keeper_kind::graph, keeper_kind::capture_live});
  const std::uint64_t live = sum({keeper_kind::live});
  const std::string asked = format_bytes(out.asked_bytes);
  const bool own_limit =
      out.limit_bytes != 0 &&
      out.limit_bytes - std::min(out.limit_bytes, out.reserved_bytes) < out.asked_bytes;
  const bool shared_limit =
      out.budget_hard_bytes != 0 &&
      out.budget_hard_bytes - std::min(out.budget_hard_bytes, out.budget_used_bytes) <
          out.asked_bytes;
  const std::string border = own_limit ? "the pool's limit of " + format_bytes(out.limit_bytes)
                             : shared_limit
                                 ? "the budget's limit of " + format_bytes(out.budget_hard_bytes)
                                 : "the device's memory";
  if (asleep()) {
    out.reason = "the pool sleeps";
    out.remedies.push_back("call wake() first");
    return;
  }
  if (out.limit_bytes != 0 && out.asked_bytes > out.limit_bytes) {
    out.reason = asked + " is more than " + border + " allows at all";
    out.remedies.push_back("raise limit_bytes, or ask for less");
    return;
  }
  const std::uint64_t others =
      out.device_total_bytes -
      std::min(out.device_total_bytes, out.device_free_bytes + out.reserved_bytes);
  if (waiting >= out.asked_bytes ||
      (waiting > idle && waiting > graphs && waiting * 4 > out.asked_bytes)) {
    out.reason = format_bytes(waiting) +
                 " are freed, but the GPU has not been seen to pass the frees, and " + border +
                 " is reached";
    const std::string now = options_.max_wait_ns == 0
                                ? "0: it never waits"
                                : format_duration(static_cast<double>(options_.max_wait_ns));
    out.remedies.push_back("raise max_wait_ns (now " + now +
                           "), so that the allocation waits longer for the GPU");
    out.remedies.push_back(
        "free on the stream that used the block last, and call the pool now and then on streams "
        "that freed");
  } else if (idle >= out.asked_bytes) {
    out.reason = format_bytes(idle) + " are free, but not in one piece of " + asked +
                 ": live blocks lie between, and " + border +
                 " leaves no room to bring pieces together";
    out.remedies.push_back(
        "free or move the blocks named as neighbours; allocate long-lived blocks before "
        "short-lived ones");
  } else if (graphs >= out.asked_bytes) {
    out.reason = format_bytes(graphs) +
                 " belong to captured graphs until the graphs are destroyed, and " + border +
                 " is reached";
    out.remedies.push_back("destroy graphs that will not be launched again, and their executables");
  } else if (own_limit || shared_limit) {
    out.reason =
        "the program holds " + format_bytes(live) + ", and " + asked + " more would pass " + border;
    out.remedies.push_back(
        own_limit ? "raise limit_bytes"
                  : "raise the budget's hard limit, or free what its other members hold");
  } else if (others > out.reserved_bytes / 8 && out.device_free_bytes < out.asked_bytes) {
    out.reason = "the device has " + format_bytes(out.device_free_bytes) +
                 " left: " + format_bytes(others) +
                 " are held outside this pool, by other pools, the CUDA context or other processes";
    out.remedies.push_back(
        "nvidia-smi names the processes; give the pools of one process a common memory_budget");
  } else {
    out.reason = "the program holds " + format_bytes(live) + ", and " + border + " leaves " +
                 format_bytes(out.device_free_bytes);
  }
  if (!options_.on_pressure)
    out.remedies.push_back("set on_pressure to free or spill what the program can do without");
  if (idle < out.asked_bytes && !own_limit && !shared_limit)
    out.remedies.push_back(
        "ask for less: smaller batches, or blocks allocated when they are needed");
}

}  // namespace millpond
