#include "driver/sim/checker.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace millpond::sim {

namespace {

constexpr std::size_t kept_violations = 1000;

}  // namespace

std::string text_of(stream_name stream) {
  return stream.capture != 0 ? fmt::format("stream {} (capture {})", stream.id, stream.capture)
                             : fmt::format("stream {}", stream.id);
}

std::string text_of_block(std::uint64_t address, std::uint64_t bytes) {
  return fmt::format("{:#x} ({} bytes)", address, bytes);
}

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

// Nobody holds it, and the last of its graphs is gone.
bool checker::arena_is_over(std::uint64_t capture) const {
  return unheld_.contains(group_of(capture)) &&
         std::none_of(live_captures_.begin(), live_captures_.end(),
                      [&](std::uint64_t other) { return same_capture(capture, other); });
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
                      text_of_block(old.address, old.bytes), old.allocated, old.owner_capture,
                      fresh.allocated, text_of(fresh.stream)),
          now_ns);
      return;
    }
  }
  for (const point& p : old.must_follow) {
    if (order_.ordered(p, line)) continue;
    // Graphs that share their memory never run at the same time, nor with one that is gone, which
    // went after its last launch was over.
    const std::uint64_t in = order_.capture_of(p.timeline);
    if (in != 0 && in != fresh.stream.capture &&
        (!live_captures_.contains(in) || same_capture(in, fresh.stream.capture) ||
         given_back(old))) {
      continue;
    }
    const auto user = std::find_if(old.users.begin(), old.users.end(),
                                   [&](const auto& u) { return u.first == p.timeline; });
    const std::string& call_site = user != old.users.end() ? user->second : old.freed;
    report("reuse_before_order", call_site, fresh.allocated,
           fmt::format(
               "block {} was {} on stream {} at {}; {} got {} of its memory at {} for {}, which is "
               "in no order after that",
               text_of_block(old.address, old.bytes),
               user != old.users.end() ? "used (and reported so)" : "freed", p.timeline, call_site,
               text_of(fresh.stream), text_of_block(fresh.address, fresh.bytes), fresh.allocated,
               text_of(fresh.stream)),
           now_ns);
    return;
  }
}

// What the program never freed was its to use until the graph was gone. Whatever it queued outside
// the graph by then must be over, as after a free.
void checker::check_outside_uses(const block& old, const block& fresh, const timeline& line,
                                 std::uint64_t now_ns) {
  for (const point& p : old.outside_uses) {
    if (order_.ordered(p, line)) continue;
    report("reuse_before_order", old.allocated, fresh.allocated,
           fmt::format("block {} from {} belonged to capture {}, whose graph is gone, and work on "
                       "stream {} used it; {} got {} of its memory at {}, which is in no order "
                       "after that",
                       text_of_block(old.address, old.bytes), old.allocated, old.owner_capture,
                       p.timeline, text_of(fresh.stream), text_of_block(fresh.address, fresh.bytes),
                       fresh.allocated),
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
                       text_of_block(at, bytes), call_site),
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
                      check_outside_uses(*old, *fresh, line, now_ns);
                      old->live = false;
                      live_.erase(old->address);
                      return;
                    }
                    report("overlap", old->allocated, call_site,
                           fmt::format("block {}, allocated at {} and not freed, shares memory "
                                       "with block {}, handed out at "
                                       "{}{}",
                                       text_of_block(old->address, old->bytes), old->allocated,
                                       text_of_block(at, bytes), call_site,
                                       old->address < at + bytes && at < old->address + old->bytes
                                           ? ""
                                           : " at other addresses of the same pages"),
                           now_ns);
                  });
  }
  for (const piece& p : scratch_) {
    if (p.in != nullptr) owners_.assign(p.physical, p.physical + p.bytes, fresh);
  }
  by_address_.assign(at, at + bytes, fresh);
  live_[at] = std::move(fresh);
}

void checker::note_free(std::uint64_t at, std::uint64_t bytes, const timeline& line,
                        const timeline& outside, stream_name stream, std::string_view call_site,
                        std::uint64_t now_ns) {
  const auto it = live_.find(at);
  if (it == live_.end()) {
    report("free_of_unknown", "", call_site,
           fmt::format("block {} was freed at {} but is not a live block", text_of_block(at, bytes),
                       call_site),
           now_ns);
    return;
  }
  block& b = *it->second;
  if (bytes != 0 && bytes != b.bytes) {
    report("free_of_unknown", b.allocated, call_site,
           fmt::format("block {} from {} was freed at {} as {} bytes", text_of_block(at, b.bytes),
                       b.allocated, call_site, bytes),
           now_ns);
  }
  b.live = false;
  b.freed = call_site;
  b.freed_capture = stream.capture;
  if (b.owner_capture == 0) b.owner_capture = stream.capture;
  b.must_follow.push_back(order_.now(line));
  // The graph's end says nothing of what was queued on the stream before its capture began.
  if (b.stream.capture != stream.capture) follow(b, outside);
  for (point& p : b.must_follow)
    p.tick = std::max(p.tick, order_.now(timeline{p.timeline, {}}).tick);
  if (options_.race_check == simulated_gpu_options::races::reported) {
    for (const block::use& u : b.uses) {
      // A node is judged at its launches.
      const std::uint64_t in = order_.capture_of(u.last.timeline);
      if (in != 0 && in != stream.capture) continue;
      if (order_.ordered(u.last, line) || order_.ordered(u.last, outside)) continue;
      const bool recorded =
          std::any_of(b.must_follow.begin(), b.must_follow.end(),
                      [&](const point& p) { return p.timeline == u.last.timeline; });
      if (recorded) continue;
      report(
          "unordered_access", b.allocated, call_site,
          fmt::format(
              "block {} from {} was used on stream {} and then freed on {} at {}, in no order and "
              "with no recorded use",
              text_of_block(at, b.bytes), b.allocated, u.last.timeline, text_of(stream), call_site),
          now_ns);
    }
  }
  b.uses.clear();
  b.written_part.clear();
  live_.erase(it);
}

// The tick is filled in at the free: a use reaches to what is queued by then. True where it is new.
bool checker::follow(block& b, const timeline& line) {
  const bool known = std::any_of(b.must_follow.begin(), b.must_follow.end(),
                                 [&](const point& p) { return p.timeline == line.number; });
  if (!known) b.must_follow.push_back({line.number, 0});
  return !known;
}

void checker::note_use(std::uint64_t at, const timeline& line, const timeline& outside,
                       stream_name stream, std::string_view call_site, std::uint64_t now_ns) {
  const auto it = live_.find(at);
  if (it == live_.end()) {
    report("free_of_unknown", "", call_site,
           fmt::format("{:#x} was used at {} but is not a live block", at, call_site), now_ns);
    return;
  }
  block& b = *it->second;
  if (follow(b, line)) b.users.emplace_back(line.number, std::string(call_site));
  if (b.stream.capture != stream.capture && follow(b, outside))
    b.users.emplace_back(outside.number, std::string(call_site));
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
                 call, text_of_block(at, r.bytes), p.timeline),
             now_ns);
      break;
    }
  }
  if (r.kind != region_kind::mapping) forget_addresses(at, at + r.bytes);
  const std::uint64_t begin = r.physical_begin();
  owners_.visit(begin, begin + r.bytes, [&](std::uint64_t from, std::uint64_t, const block_ptr& b) {
    const std::uint64_t address = at + (from - begin);
    if (!b->live || b->orphaned || address < b->address || address >= b->address + b->bytes) return;
    // The whole allocation was handed out as one block: its free is noted just before or after.
    if (b->address == at && b->bytes == r.bytes && r.kind != region_kind::mapping) return;
    report(
        "free_in_use", b->allocated, call,
        fmt::format("{} takes {} away, where block {} from {} lives", call,
                    text_of_block(at, r.bytes), text_of_block(b->address, b->bytes), b->allocated),
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
