#include "driver/sim/checker.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace millpond::sim {

[[nodiscard]] bool in_library() noexcept;  // state.hpp, which has too much for here
namespace {

constexpr std::size_t kept_violations = 1000;

std::string text_of(stream_name stream) {
  return stream.capture != 0 ? fmt::format("stream {} (capture {})", stream.id, stream.capture)
                             : fmt::format("stream {}", stream.id);
}

std::string block_text(std::uint64_t address, std::uint64_t bytes) {
  return fmt::format("{:#x} ({} bytes)", address, bytes);
}

}  // namespace

void checker::report(const char* rule, const std::string& first, std::string_view second,
                     std::string text, std::uint64_t now_ns) {
  ++count_;
  if (violations_.size() < kept_violations) {
    violations_.push_back({rule, first, std::string(second), std::move(text), now_ns});
  }
}

// --- Blocks
// -----------------------------------------------------------------------------------------

bool checker::same_capture(std::uint64_t one, std::uint64_t other) const {
  return one == other || group_of(one) == group_of(other);
}

std::uint64_t checker::group_of(std::uint64_t capture) const {
  const auto found = groups_.find(capture);
  return found == groups_.end() ? capture : found->second;
}

void checker::share_captures(std::uint64_t one, std::uint64_t other) {
  const std::uint64_t from = group_of(other);
  const std::uint64_t to = group_of(one);
  for (auto& [id, group] : groups_) {
    if (group == from) group = to;
  }
  groups_[one] = to;
  groups_[other] = to;
}

void checker::capture_released(std::uint64_t id) {
  live_captures_.erase(id);
  for (auto& [address, b] : live_) b->orphaned = b->orphaned || b->owner_capture == id;
}

void checker::check_reuse(const block& old, const block& fresh, const timeline& line,
                          std::uint64_t now_ns) {
  // What a capture handed out is its graph's: the graph will use it again at every launch.
  if (live_captures_.contains(old.owner_capture)) {
    if (!same_capture(old.owner_capture, fresh.stream.capture)) {
      report(
          "capture_memory_reused", old.allocated, fresh.allocated,
          fmt::format("block {} from {} belongs to capture {}, whose graph still exists, and was "
                      "handed out again at {} for {}",
                      block_text(old.address, old.bytes), old.allocated, old.owner_capture,
                      fresh.allocated, text_of(fresh.stream)),
          now_ns);
      return;
    }
  } else if (old.freed_in_capture) {
    return;  // the graph is gone, and went after its last launch was over
  }
  for (const point& p : old.must_follow) {
    if (order_.ordered(p, line)) continue;
    // Graphs that share their memory never run at the same time, nor with one that is gone.
    const auto in = capture_of_.find(p.timeline);
    if (in != capture_of_.end() && in->second != fresh.stream.capture &&
        (!live_captures_.contains(in->second) || same_capture(in->second, fresh.stream.capture))) {
      continue;
    }
    const auto user = std::find_if(old.users.begin(), old.users.end(),
                                   [&](const auto& u) { return u.first == p.timeline; });
    const std::string& call_site = user != old.users.end() ? user->second : old.freed;
    report("reuse_before_order", call_site, fresh.allocated,
           fmt::format(
               "block {} was {} on stream {} at {}; {} got {} of its memory at {} for {}, which is "
               "in no order after that",
               block_text(old.address, old.bytes),
               user != old.users.end() ? "used (and reported so)" : "freed", p.timeline, call_site,
               text_of(fresh.stream), block_text(fresh.address, fresh.bytes), fresh.allocated,
               text_of(fresh.stream)),
           now_ns);
    return;
  }
}

void checker::note_allocate(std::uint64_t at, std::uint64_t bytes, const timeline& line,
                            stream_name stream, std::string_view call_site, std::uint64_t now_ns) {
  auto fresh = std::make_shared<block>();
  fresh->address = at;
  fresh->bytes = bytes;
  fresh->stream = stream;
  fresh->owner_capture = stream.capture;
  fresh->allocated = call_site;
  fresh->allocated_at = order_.now(line);
  scratch_.clear();
  if (!memory_.pieces_of(at, bytes, scratch_)) {
    report("not_mapped", fresh->allocated, call_site,
           fmt::format("block {} was handed out at {} but is not all mapped and accessible",
                       block_text(at, bytes), call_site),
           now_ns);
    return;
  }
  const block* reported = nullptr;  // one report an old block
  for (const piece& p : scratch_) {
    if (p.in == nullptr) continue;
    // The CPU may write it, which nobody sees.
    fresh->all_written = fresh->all_written || p.in->memory->host_written;
    owners_.visit(p.physical, p.physical + p.bytes,
                  [&](std::uint64_t, std::uint64_t, const block_ptr& old) {
                    if (old.get() == reported) return;
                    reported = old.get();
                    if (!old->live) {
                      check_reuse(*old, *fresh, line, now_ns);
                      return;
                    }
                    if (old->orphaned) {
                      old->live = false;
                      live_.erase(old->address);
                      return;
                    }
                    report("overlap", old->allocated, call_site,
                           fmt::format("block {}, allocated at {} and not freed, shares memory "
                                       "with block {}, handed out at "
                                       "{}{}",
                                       block_text(old->address, old->bytes), old->allocated,
                                       block_text(at, bytes), call_site,
                                       old->address < at + bytes && at < old->address + old->bytes
                                           ? ""
                                           : " at other addresses of the same pages"),
                           now_ns);
                  });
  }
  for (const piece& p : scratch_) {
    if (p.in != nullptr) owners_.assign(p.physical, p.physical + p.bytes, fresh);
  }
  live_[at] = std::move(fresh);
}

void checker::note_free(std::uint64_t at, std::uint64_t bytes, const timeline& line,
                        stream_name stream, std::string_view call_site, std::uint64_t now_ns) {
  const auto it = live_.find(at);
  if (it == live_.end()) {
    report("free_of_unknown", "", call_site,
           fmt::format("block {} was freed at {} but is not a live block", block_text(at, bytes),
                       call_site),
           now_ns);
    return;
  }
  block& b = *it->second;
  if (bytes != 0 && bytes != b.bytes) {
    report("free_of_unknown", b.allocated, call_site,
           fmt::format("block {} from {} was freed at {} as {} bytes", block_text(at, b.bytes),
                       b.allocated, call_site, bytes),
           now_ns);
  }
  b.live = false;
  b.freed = call_site;
  b.freed_in_capture = stream.capture != 0;
  if (stream.capture != 0) capture_of_.emplace(line.number, stream.capture);
  if (b.owner_capture == 0) b.owner_capture = stream.capture;
  b.must_follow.push_back(order_.now(line));
  for (point& p : b.must_follow)
    p.tick = std::max(p.tick, order_.now(timeline{p.timeline, {}}).tick);
  if (options_.race_check == simulated_gpu_options::races::reported) {
    for (const use& u : b.uses) {
      if (order_.ordered(u.last, line)) continue;
      const bool recorded =
          std::any_of(b.must_follow.begin(), b.must_follow.end(),
                      [&](const point& p) { return p.timeline == u.last.timeline; });
      if (recorded) continue;
      report(
          "unordered_access", b.allocated, call_site,
          fmt::format(
              "block {} from {} was used on stream {} and then freed on {} at {}, in no order and "
              "with no recorded use",
              block_text(at, b.bytes), b.allocated, u.last.timeline, text_of(stream), call_site),
          now_ns);
    }
  }
  b.uses.clear();
  b.written_part.clear();
  live_.erase(it);
}

// The ticks are filled in at the free: a use reaches to what is queued by then.
void checker::note_use(std::uint64_t at, const timeline& line, stream_name stream,
                       std::string_view call_site, std::uint64_t now_ns) {
  const auto it = live_.find(at);
  if (it == live_.end()) {
    report("free_of_unknown", "", call_site,
           fmt::format("{:#x} was used at {} but is not a live block", at, call_site), now_ns);
    return;
  }
  block& b = *it->second;
  const bool known = std::any_of(b.must_follow.begin(), b.must_follow.end(),
                                 [&](const point& p) { return p.timeline == line.number; });
  if (known) return;
  b.must_follow.push_back({line.number, 0});
  if (stream.capture != 0) capture_of_.emplace(line.number, stream.capture);
  b.users.emplace_back(line.number, std::string(call_site));
}

// --- Accesses
// ---------------------------------------------------------------------------------------

void checker::check_live(block& b, const access& a, std::uint64_t begin, std::uint64_t end,
                         const timeline& line, point work, stream_name stream,
                         std::string_view what, std::uint64_t now_ns) {
  // Offsets in the block.
  begin -= b.address;
  end -= b.address;
  const bool reads = a.kind != access_kind::write;
  const bool writes = a.kind != access_kind::read;
  // The library may move what the program has not written (a pool asleep): only the program's reads
  // are faults.
  if (reads && !in_library() && !b.all_written && !b.written_part.covers(begin, end)) {
    report(
        "read_of_unwritten", b.allocated, what,
        fmt::format("{} on {} reads bytes {} to {} of block {} from {}, which nothing has written",
                    what, text_of(stream), begin, end, block_text(b.address, b.bytes), b.allocated),
        now_ns);
    b.all_written = true;  // one report a block
  }
  if (writes && !b.all_written) {
    if (begin == 0 && end == b.bytes) {
      b.all_written = true;
      b.written_part.clear();
    } else {
      b.written_part.assign(begin, end, {});
    }
  }
  if (options_.race_check != simulated_gpu_options::races::reported) return;
  if (!order_.ordered(b.allocated_at, line)) {
    report(
        "unordered_access", b.allocated, what,
        fmt::format(
            "{} on {} touches block {}, allocated at {} on {}, in no order after the allocation",
            what, text_of(stream), block_text(b.address, b.bytes), b.allocated, text_of(b.stream)),
        now_ns);
  }
  for (const use& u : b.uses) {
    if (!(u.wrote || writes) || order_.ordered(u.last, line)) continue;
    report(
        "unordered_access", b.allocated, what,
        fmt::format(
            "{} on {} and earlier work on stream {} touch block {} from {} in no order, and one of "
            "them writes",
            what, text_of(stream), u.last.timeline, block_text(b.address, b.bytes), b.allocated),
        now_ns);
  }
  for (use& u : b.uses) {
    if (u.last.timeline == work.timeline) {
      u = {work, u.wrote || writes};
      return;
    }
  }
  b.uses.push_back({work, writes});
}

void checker::check_access(const access& a, const timeline& line, point work, stream_name stream,
                           std::string_view what, std::uint64_t now_ns) {
  for (const piece& p : *a.pieces) {
    if (p.in == nullptr) continue;
    bool noted = false;
    const block* reported = nullptr;
    owners_.visit(p.physical, p.physical + p.bytes,
                  [&](std::uint64_t begin, std::uint64_t end, const block_ptr& b) {
                    const std::uint64_t from = p.address + (begin - p.physical);
                    const std::uint64_t to = p.address + (end - p.physical);
                    if (b->live) {
                      noted = true;
                      // By another address of the same pages the offsets are not the block's.
                      if (from >= b->address && to <= b->address + b->bytes) {
                        check_live(*b, a, from, to, line, work, stream, what, now_ns);
                      }
                      return;
                    }
                    // Inside one capture, memory is reused in the graph's own order.
                    if (b->owner_capture != 0 && stream.capture != 0 &&
                        same_capture(b->owner_capture, stream.capture))
                      return;
                    if (b.get() == reported || to <= b->address || from >= b->address + b->bytes)
                      return;
                    reported = b.get();
                    noted = true;
                    report("access_after_free", b->freed, what,
                           fmt::format("{} on {} touches block {}, allocated at {} and freed at {}",
                                       what, text_of(stream), block_text(b->address, b->bytes),
                                       b->allocated, b->freed),
                           now_ns);
                  });
    if (p.in->kind == region_kind::pool_segment && !noted) {
      report("access_after_free", "the driver's pool", what,
             fmt::format("{} on {} touches {:#x}, which is in no block of its driver pool", what,
                         text_of(stream), p.address),
             now_ns);
    }
    if (noted || p.in->memory->host_written) continue;
    // Memory that no allocator has noted: written since the driver gave it?
    auto& known = p.in->memory->written_by_device;
    if (a.kind != access_kind::write && !in_library() &&
        !known.covers(p.physical, p.physical + p.bytes)) {
      report("read_of_unwritten", "the driver", what,
             fmt::format("{} on {} reads {:#x}, which nothing has written", what, text_of(stream),
                         p.address),
             now_ns);
      known.assign(p.in->memory->base, p.in->memory->base + p.in->memory->bytes, {});
    }
    if (a.kind != access_kind::read && !known.covers(p.physical, p.physical + p.bytes)) {
      known.assign(p.physical, p.physical + p.bytes, {});
    }
  }
}

void checker::check_aliases(const std::vector<std::vector<piece>>& ranges, std::string_view what,
                            std::uint64_t now_ns) {
  struct seen {
    std::uint64_t begin, end, shift, address;
  };
  std::vector<seen> all;
  for (const auto& range : ranges) {
    for (const piece& p : range) {
      if (p.in == nullptr || p.in->kind != region_kind::mapping || p.in->memory->mappings < 2)
        continue;
      const std::uint64_t granule = options_.alias_granule;
      all.push_back({p.physical / granule * granule,
                     (p.physical + p.bytes + granule - 1) / granule * granule,
                     p.address - p.physical, p.address});
    }
  }
  if (all.size() < 2) return;
  std::sort(all.begin(), all.end(), [](const seen& a, const seen& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < all.size(); ++i) {
    for (std::size_t j = i; j-- > 0;) {
      if (all[j].end <= all[i].begin || all[j].shift == all[i].shift) continue;
      report("alias_in_one_kernel", fmt::format("{:#x}", all[j].address), what,
             fmt::format("{} touches one page by two addresses, {:#x} and {:#x}", what,
                         all[j].address, all[i].address),
             now_ns);
      return;
    }
  }
}

// --- Removal
// ----------------------------------------------------------------------------------------

void checker::check_removal(std::uint64_t at, const region& r, std::string_view call, bool waited,
                            std::uint64_t now_ns) {
  if (!waited) {
    for (const point& p : r.touched) {
      if (order_.seen(p)) continue;
      report("free_in_use", fmt::format("work on stream {}", p.timeline), call,
             fmt::format(
                 "{} takes {} away while work on stream {} that touches it is not known to be over",
                 call, block_text(at, r.bytes), p.timeline),
             now_ns);
      break;
    }
  }
  const std::uint64_t begin = r.physical_begin();
  owners_.visit(begin, begin + r.bytes, [&](std::uint64_t from, std::uint64_t, const block_ptr& b) {
    const std::uint64_t address = at + (from - begin);
    if (!b->live || address < b->address || address >= b->address + b->bytes) return;
    // The whole allocation was handed out as one block: its free is noted just before or after.
    if (b->address == at && b->bytes == r.bytes && r.kind != region_kind::mapping) return;
    report("free_in_use", b->allocated, call,
           fmt::format("{} takes {} away, where block {} from {} lives", call,
                       block_text(at, r.bytes), block_text(b->address, b->bytes), b->allocated),
           now_ns);
  });
}

void checker::wrong_kind_free(std::uint64_t at, const region& r, std::string_view call,
                              std::uint64_t now_ns) {
  const auto it = live_.find(at);
  const std::string where = it == live_.end() ? "the driver" : it->second->allocated;
  report("wrong_kind_free", where, call,
         fmt::format("{} was given {:#x}, which is {} memory from {}", call, at,
                     to_string(kind_of(r)), where),
         now_ns);
}

// --- Captures
// ---------------------------------------------------------------------------------------

void checker::pollution(std::string_view call, std::uint64_t capture, std::uint64_t now_ns) {
  if (options_.check_capture != simulated_gpu_options::capture_rules::checked) return;
  report("capture_pollution", fmt::format("capture {}", capture), call,
         fmt::format("{} by the library would be recorded in capture {}", call, capture), now_ns);
}

void checker::forbidden(std::string_view call, std::uint64_t capture, std::uint64_t now_ns) {
  if (options_.check_capture != simulated_gpu_options::capture_rules::checked) return;
  report("forbidden_in_capture", fmt::format("capture {}", capture), call,
         fmt::format("{} is refused while capture {} runs, and breaks it", call, capture), now_ns);
}

}  // namespace millpond::sim
