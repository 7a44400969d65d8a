// A memory report in words and as JSON.
#include "millpond/pool/memory_report.hpp"

#include <sstream>

#include "base/json_text.hpp"
#include "base/quote.hpp"
#include "millpond/base/units.hpp"

namespace millpond {
namespace {

std::string stream_text(const memory_keeper& k) {
  std::string out = "stream " + in_hex(k.stream_handle);
  if (k.stream_id != 0) out += " (identity " + std::to_string(k.stream_id) + ")";
  return out;
}

std::string pieces_text(const memory_keeper& k, const char* one, const char* many) {
  return std::to_string(k.pieces) + " " + (k.pieces == 1 ? one : many) +
         (k.pieces > 1 ? ", the largest " + format_bytes(k.largest_bytes) : std::string());
}

// What keeps the bytes, as the end of a line that begins with how many they are.
std::string keeper_text(const memory_keeper& k) {
  switch (k.what) {
    case keeper_kind::live: return "held by the program: " + pieces_text(k, "block", "blocks");
    case keeper_kind::cache:
      return "freed, kept by a thread for its next call on " + stream_text(k);
    case keeper_kind::stream_cache:
      return "freed, kept for the next call of any thread on " + stream_text(k);
    case keeper_kind::fence:
      return "freed on " + stream_text(k) + ", whose work has not been seen to pass the free: " +
             pieces_text(k, "piece", "pieces");
    case keeper_kind::dead_stream:
      return "freed on " +
             (k.stream_id == 0 ? std::string("streams that are gone, or by released graphs")
                               : stream_text(k) + ", which is gone") +
             "; waits for a fence over the whole context: " + pieces_text(k, "piece", "pieces");
    case keeper_kind::recorded_use:
      return "freed, waits for other streams that record_use named: " +
             pieces_text(k, "block", "blocks");
    case keeper_kind::capture_live:
      return "allocated in capture " + std::to_string(k.capture_id) +
             " and not freed: " + pieces_text(k, "block", "blocks");
    case keeper_kind::graph:
      return (k.capture_id == 0
                  ? std::string("a graph arena's until its holders and graphs are gone")
                  : "the graph's of capture " + std::to_string(k.capture_id) +
                        " until it is destroyed") +
             ": " + pieces_text(k, "piece", "pieces");
    case keeper_kind::idle_between:
      return "free to use, between live blocks: " + pieces_text(k, "piece", "pieces");
    case keeper_kind::idle_span:
      return "free to use, and could be moved or given back: " + pieces_text(k, "piece", "pieces");
    case keeper_kind::alignment: return "lost to the alignment of the driver's chunks";
  }
  return {};
}

}  // namespace

const char* to_string(keeper_kind kind) noexcept {
  switch (kind) {
    case keeper_kind::live: return "live";
    case keeper_kind::cache: return "cache";
    case keeper_kind::stream_cache: return "stream_cache";
    case keeper_kind::fence: return "fence";
    case keeper_kind::dead_stream: return "dead_stream";
    case keeper_kind::recorded_use: return "recorded_use";
    case keeper_kind::capture_live: return "capture_live";
    case keeper_kind::graph: return "graph";
    case keeper_kind::idle_between: return "idle_between";
    case keeper_kind::idle_span: return "idle_span";
    case keeper_kind::alignment: return "alignment";
  }
  return "unknown";
}

std::string to_text(const memory_report& r) {
  std::ostringstream text;
  const std::string name = r.pool.empty()
                               ? std::string(to_string(r.kind)) + " pool"
                               : std::string(to_string(r.kind)) + " pool '" + r.pool + "'";
  if (r.asked_bytes != 0) {
    text << "out of memory in the " << name << ": asked for " << format_bytes(r.asked_bytes) << " ("
         << r.asked_bytes << " bytes)";
    if (r.asked_alignment > 512) text << " aligned to " << format_bytes(r.asked_alignment);
    text << " on stream " << in_hex(r.asked_stream) << ".\n";
    text << "  why: " << r.reason << ".\n";
    for (const std::string& remedy : r.remedies) text << "  try: " << remedy << ".\n";
  } else {
    text << "the " << name << ":\n";
  }
  text << "  reserved " << format_bytes(r.reserved_bytes) << ", peak "
       << format_bytes(r.peak_reserved_bytes);
  if (r.limit_bytes != 0) text << ", limit " << format_bytes(r.limit_bytes);
  if (r.soft_limit_bytes != 0) text << ", soft limit " << format_bytes(r.soft_limit_bytes);
  if (r.asleep_bytes != 0) text << "; asleep " << format_bytes(r.asleep_bytes);
  text << "; live " << format_bytes(r.live_bytes) << " in " << r.live_blocks
       << (r.live_blocks == 1 ? " block" : " blocks");
  text << ". Who keeps what is reserved:\n";
  std::size_t named = 0;
  for (const memory_keeper& k : r.keepers) {
    if (++named > 12) {
      text << "    and " << r.keepers.size() - 12 << " more, all in the JSON\n";
      break;
    }
    text << "    " << format_bytes(k.bytes) << ' ' << keeper_text(k) << '\n';
  }
  for (std::size_t i = 0; i < r.neighbours.size() && i < 3; ++i) {
    const memory_neighbour& n = r.neighbours[i];
    text << "  a live block of " << format_bytes(n.block_bytes) << " at " << in_hex(n.block_address)
         << " holds down " << format_bytes(n.free_bytes) << " of free memory in its handle of "
         << format_bytes(n.handle_bytes) << ".\n";
  }
  text << "  largest block that this stream could have now: " << format_bytes(r.largest_bytes)
       << ".\n";
  if (!r.ladder.empty()) {
    text << "  tried:";
    for (std::size_t i = 0; i < r.ladder.size(); ++i) {
      const ladder_step& s = r.ladder[i];
      text << (i == 0 ? " " : ", ") << s.name;
      if (s.times > 1) text << " (" << s.times << " times)";
      text << " +" << format_bytes(s.gained_bytes);
    }
    text << ".\n";
  }
  if (r.budget_hard_bytes != 0 || r.budget_soft_bytes != 0 || !r.budget_shares.empty()) {
    text << "  the budget: " << format_bytes(r.budget_used_bytes) << " in use";
    if (r.budget_hard_bytes != 0) text << " of " << format_bytes(r.budget_hard_bytes);
    for (const auto& share : r.budget_shares)
      text << "; " << share.name << ' ' << format_bytes(share.bytes);
    text << ".\n";
  }
  if (!r.last_failure.empty()) text << "  no more memory: " << r.last_failure << ".\n";
  if (!r.fence_failure.empty()) text << "  no fence: " << r.fence_failure << ".\n";
  if (r.device_total_bytes != 0) {
    text << "  the device has " << format_bytes(r.device_free_bytes) << " free of "
         << format_bytes(r.device_total_bytes) << ".";
  }
  return text.str();
}

std::string to_json(const memory_report& r) {
  json_text out;
  out.open('{');
  out.string("pool", r.pool);
  out.string("kind", to_string(r.kind));
  out.number("asked_bytes", r.asked_bytes);
  out.number("asked_alignment", r.asked_alignment);
  out.string("asked_stream", in_hex(r.asked_stream));
  out.string("reason", r.reason);
  out.strings("remedies", r.remedies);
  out.number("live_bytes", r.live_bytes);
  out.number("live_blocks", r.live_blocks);
  out.number("reserved_bytes", r.reserved_bytes);
  out.number("peak_reserved_bytes", r.peak_reserved_bytes);
  out.number("limit_bytes", r.limit_bytes);
  out.number("soft_limit_bytes", r.soft_limit_bytes);
  out.number("asleep_bytes", r.asleep_bytes);
  out.number("largest_bytes", r.largest_bytes);
  out.objects("keepers", r.keepers, [&](const memory_keeper& k) {
    out.string("what", to_string(k.what));
    out.number("bytes", k.bytes);
    out.number("pieces", k.pieces);
    out.number("largest_bytes", k.largest_bytes);
    if (k.stream_id != 0 || k.stream_handle != 0) {
      out.number("stream_id", k.stream_id);
      out.string("stream_handle", in_hex(k.stream_handle));
    }
    if (k.capture_id != 0) out.number("capture_id", k.capture_id);
  });
  out.objects("neighbours", r.neighbours, [&](const memory_neighbour& n) {
    out.string("address", in_hex(n.address));
    out.number("handle_bytes", n.handle_bytes);
    out.number("free_bytes", n.free_bytes);
    out.string("block_address", in_hex(n.block_address));
    out.number("block_bytes", n.block_bytes);
  });
  out.objects("ladder", r.ladder, [&](const ladder_step& s) {
    out.string("name", s.name);
    out.number("times", s.times);
    out.number("gained_bytes", s.gained_bytes);
  });
  out.number("budget_hard_bytes", r.budget_hard_bytes);
  out.number("budget_soft_bytes", r.budget_soft_bytes);
  out.number("budget_used_bytes", r.budget_used_bytes);
  out.objects("budget_shares", r.budget_shares, [&](const memory_report::budget_share& share) {
    out.string("name", share.name);
    out.number("bytes", share.bytes);
  });
  out.number("device_free_bytes", r.device_free_bytes);
  out.number("device_total_bytes", r.device_total_bytes);
  out.string("last_failure", r.last_failure);
  out.string("fence_failure", r.fence_failure);
  out.close('}');
  return std::move(out).take();
}

}  // namespace millpond
