// What the checker says of the device's work: whose memory it touches, and whether it may.
//
// The block that has a page now is known by the page, and the block that had an address last by the
// address. Work that reaches a page by the address of a block that was freed is that block's
// program's fault, whoever has the page. A node of a graph is judged by the blocks that lived when
// it was captured, since its graph's own memory is handed out again while the graph lives.
#include <fmt/format.h>

#include <algorithm>

#include "driver/sim/checker.hpp"

namespace millpond::sim {

[[nodiscard]] bool in_library() noexcept;  // state.hpp, which has too much for here

void checker::report_gone(const block& b, std::uint64_t address, stream_name stream,
                          std::string_view what, std::uint64_t now_ns) {
  const std::string place = address == b.address ? "" : fmt::format(" at {:#x}", address);
  if (b.live) {
    report(
        "access_after_free", b.allocated, what,
        fmt::format("{} on {} touches block {}{}, allocated at {} in capture {} and never freed, "
                    "whose graph is gone",
                    what, text_of(stream), text_of_block(b.address, b.bytes), place, b.allocated,
                    b.owner_capture),
        now_ns);
    return;
  }
  report(
      "access_after_free", b.freed, what,
      fmt::format("{} on {} touches block {}{}, allocated at {} and freed at {}", what,
                  text_of(stream), text_of_block(b.address, b.bytes), place, b.allocated, b.freed),
      now_ns);
}

void checker::report_gone(asked& of, const block_ptr& b, std::uint64_t address) {
  if (of.a.node != nullptr && of.a.launched == 0 && of.a.node->gone == nullptr) of.a.node->gone = b;
  if (std::find(of.reported.begin(), of.reported.end(), b.get()) != of.reported.end()) return;
  of.reported.push_back(b.get());
  report_gone(*b, address, of.stream, of.what, of.now_ns);
}

bool checker::check_node(const node_memory& node, stream_name launch, std::string_view what,
                         std::uint64_t now_ns) {
  if (node.gone != nullptr) {
    report_gone(*node.gone, node.gone->address, launch, what, now_ns);
    return false;
  }
  bool right = true;
  for (const block_ptr& b : node.blocks) {
    const bool lives = b->live && !abandoned(*b);
    if (lives || graphs_own(*b, node.capture) || graphs_own(*b, launch.capture)) continue;
    report_gone(*b, b->address, launch, what, now_ns);
    right = false;
  }
  return right;
}

std::shared_ptr<node_memory> checker::child_node(const node_memory& node, stream_name into,
                                                 std::string_view what, std::uint64_t now_ns) {
  auto made = std::make_shared<node_memory>(node);
  for (const block_ptr& b : node.blocks) {
    if (made->gone != nullptr) break;
    if ((b->live && !abandoned(*b)) || graphs_own(*b, node.capture)) continue;
    made->gone = b;
  }
  if (made->gone != nullptr) report_gone(*made->gone, made->gone->address, into, what, now_ns);
  return made;
}

// Part of a block that lives. `begin` and `end` are offsets in it.
void checker::check_live(asked& of, block& b, std::uint64_t begin, std::uint64_t end) {
  const bool reads = of.a.kind != access_kind::write;
  const bool writes = of.a.kind != access_kind::read;
  // The library may move what the program has not written (a pool asleep): only the program's reads
  // are faults.
  if (reads && !in_library() && !b.all_written && !b.written_part.covers(begin, end)) {
    report(
        "read_of_unwritten", b.allocated, of.what,
        fmt::format("{} on {} reads bytes {} to {} of block {} from {}, which nothing has written",
                    of.what, text_of(of.stream), begin, end, text_of_block(b.address, b.bytes),
                    b.allocated),
        of.now_ns);
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
  // A node is judged at its launches, and within its capture.
  const std::uint64_t capture = order_.capture_of(of.line.number);
  const auto judged = [&](point p) { return order_.capture_of(p.timeline) == capture; };
  if (judged(b.allocated_at) && !order_.ordered(b.allocated_at, of.line)) {
    report("unordered_access", b.allocated, of.what,
           fmt::format(
               "{} on {} touches block {}, allocated at {} on {}, in no order after the allocation",
               of.what, text_of(of.stream), text_of_block(b.address, b.bytes), b.allocated,
               text_of(b.stream)),
           of.now_ns);
  }
  for (const block::use& u : b.uses) {
    if (!(u.wrote || writes) || !judged(u.last) || order_.ordered(u.last, of.line)) continue;
    report(
        "unordered_access", b.allocated, of.what,
        fmt::format(
            "{} on {} and earlier work on stream {} touch block {} from {} in no order, and one of "
            "them writes",
            of.what, text_of(of.stream), u.last.timeline, text_of_block(b.address, b.bytes),
            b.allocated),
        of.now_ns);
  }
  for (block::use& u : b.uses) {
    if (u.last.timeline == of.work.timeline) {
      u = {of.work, u.wrote || writes};
      return;
    }
  }
  b.uses.push_back({of.work, writes});
}

// The pages of [from, to) are another's, or nobody's: the work is wrong where the addresses were a
// block's that is freed: then true. Addresses that never were a block's are an alias of the
// program's own.
bool checker::check_old_address(asked& of, std::uint64_t from, std::uint64_t to) {
  bool wrong = false;
  by_address_.visit(from, to, [&](std::uint64_t begin, std::uint64_t, const block_ptr& b) {
    if (b->live || (of.a.launched != 0 && works_own(of, *b))) return;
    report_gone(of, b, begin);
    wrong = true;
  });
  return wrong;
}

// Remembers the last work of each timeline; what the host has seen done is dropped.
void checker::note_outside_use(block& b, point work) {
  for (point& p : b.outside_uses) {
    if (p.timeline != work.timeline) continue;
    p.tick = work.tick;
    return;
  }
  if (b.outside_uses.size() >= 4)
    std::erase_if(b.outside_uses, [&](const point& p) { return order_.seen(p); });
  b.outside_uses.push_back(work);
}

// [from, to) are addresses whose pages are b's. False where that says nothing of the pages'
// contents for work at these addresses.
bool checker::check_owner(asked& of, const block_ptr& b, std::uint64_t from, std::uint64_t to) {
  const access& a = of.a;
  if (!b->live) {
    if (to <= b->address || from >= b->address + b->bytes) {
      return check_old_address(of, from, to);
    }
    // A node that was captured before the free, in the graph's own order.
    if (a.launched != 0 && works_own(of, *b)) return true;
    report_gone(of, b, std::max(from, b->address));
    return true;
  }
  // By another address of the same pages the offsets are not the block's.
  if (from < b->address || to > b->address + b->bytes) {
    static_cast<void>(check_old_address(of, from, to));
    return true;
  }
  if (a.launched == 0 && abandoned(*b)) {
    report_gone(of, b, from);
    return true;
  }
  const bool captured = a.node != nullptr && a.launched == 0;
  if (captured &&
      std::find(a.node->blocks.begin(), a.node->blocks.end(), b) == a.node->blocks.end()) {
    a.node->blocks.push_back(b);
  }
  if (!captured && b->stream.capture != 0 && !works_own(of, *b)) note_outside_use(*b, of.work);
  check_live(of, *b, from - b->address, to - b->address);
  return true;
}

void checker::check_access(const access& a, const timeline& line, point work, stream_name stream,
                           std::string_view what, std::uint64_t now_ns) {
  asked of{a, line, work, stream, what, now_ns, {}};
  for (const piece& p : *a.pieces) {
    if (p.in == nullptr) continue;
    bool noted = false;
    const auto address_of = [&](std::uint64_t physical) {
      return p.address + (physical - p.physical);
    };
    std::uint64_t known_to = p.physical;
    owners_.visit(p.physical, p.physical + p.bytes,
                  [&](std::uint64_t begin, std::uint64_t end, const block_ptr& b) {
                    if (begin > known_to)
                      noted |= check_old_address(of, address_of(known_to), address_of(begin));
                    known_to = end;
                    noted = check_owner(of, b, address_of(begin), address_of(end)) || noted;
                  });
    if (known_to < p.physical + p.bytes)
      noted |= check_old_address(of, address_of(known_to), p.address + p.bytes);
    if (p.in->kind == region_kind::pool_segment && !noted) {
      report("access_after_free", "the driver's pool", what,
             fmt::format("{} on {} touches {:#x}, which is in no block of its driver pool", what,
                         text_of(stream), p.address),
             now_ns);
    }
    if (!noted && !p.in->memory->host_written) check_unnoted(of, p);
  }
}

// Memory that no allocator has noted: written since the driver gave it?
void checker::check_unnoted(const asked& of, const piece& p) {
  auto& known = p.in->memory->written_by_device;
  const bool covered = known.covers(p.physical, p.physical + p.bytes);
  if (covered) return;
  if (of.a.kind != access_kind::write && !in_library()) {
    report("read_of_unwritten", "the driver", of.what,
           fmt::format("{} on {} reads {:#x}, which nothing has written", of.what,
                       text_of(of.stream), p.address),
           of.now_ns);
    known.assign(p.in->memory->base, p.in->memory->base + p.in->memory->bytes, {});
    return;
  }
  if (of.a.kind != access_kind::read) known.assign(p.physical, p.physical + p.bytes, {});
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

}  // namespace millpond::sim
