#include "report/torch_snapshot.hpp"

#include "base/utf8.hpp"
#include "trace/event_views.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

namespace millpond::report {
namespace {

using trace::action;

// The few opcodes of a pickle that both the viewer's reader and Python's know.
class pickler {
 public:
  explicit pickler(trace::sink& to) : to_(to) { text_ = "\x80\x02"; }
  void begin_list() { text_ += "]("; }
  void end_list() { text_ += 'e'; }
  // After each item of a list that may be long: the viewer passes what one opcode appends as
  // arguments of one call, of which a browser takes some ten thousands; Python's pickler appends by
  // the thousand as well.
  void item_done(std::uint64_t so_far) {
    if (so_far % 1000 == 0) text_ += "e(";
  }
  void begin_dict() { text_ += "}("; }
  void end_dict() { text_ += 'u'; }
  // Python reads texts as UTF-8 and refuses the whole file for one byte that is not.
  void text(std::string_view bytes) {
    const std::string value = as_utf8(bytes);
    if (recall(value)) return;
    text_ += 'X';
    little(value.size(), 4);
    text_ += value;
    remember(value);
  }
  // Little-endian two's complement in as many bytes as it takes, one for the sign.
  void number(std::uint64_t value) {
    if (value < 256) {
      text_ += 'K';
      little(value, 1);
      return;
    }
    unsigned bytes = 1;
    while (bytes < 8 && (value >> (8 * bytes - 1)) != 0) ++bytes;
    const bool top = bytes == 8 && (value >> 63) != 0;
    text_ += '\x8a';
    little(bytes + (top ? 1u : 0u), 1);
    little(value, bytes);
    if (top) text_ += '\0';
  }
  void key(std::string_view name, std::uint64_t value) { text(name), number(value); }
  void key(std::string_view name, std::string_view value) { text(name), text(value); }
  void flag(std::string_view name, char opcode) { text(name), text_ += opcode; }
  // An object written before, again.
  bool recall(const std::string& name) {
    const auto found = memo_.find(name);
    if (found == memo_.end()) return false;
    text_ += 'j';
    little(found->second, 4);
    return true;
  }
  void remember(const std::string& name) {
    const std::uint32_t id = static_cast<std::uint32_t>(memo_.size());
    memo_.emplace(name, id);
    text_ += 'r';
    little(id, 4);
  }
  result<void> flush(std::size_t least = std::size_t{256} << 10) {
    if (text_.size() < least) return {};
    auto done = to_.write({reinterpret_cast<const std::uint8_t*>(text_.data()), text_.size()});
    text_.clear();
    return done;
  }
  result<void> stop() {
    text_ += '.';
    return flush(0);
  }

 private:
  void little(std::uint64_t value, unsigned bytes) {
    for (unsigned n = 0; n < bytes; ++n) text_ += static_cast<char>((value >> (8 * n)) & 0xff);
  }
  trace::sink& to_;
  std::string text_;
  std::unordered_map<std::string, std::uint32_t> memo_;
};

struct span_of {
  std::uint64_t end = 0, stream = 0;
};
using spans = std::map<std::uint64_t, span_of>;  // by begin, disjoint

// The span that holds all of [begin, end), or end().
spans::const_iterator holding(const spans& of, std::uint64_t begin, std::uint64_t end) {
  auto next = of.upper_bound(begin);
  if (next == of.begin()) return of.end();
  --next;
  return next->second.end >= end ? next : of.end();
}

struct entry {
  const char* name;
  std::uint64_t address, bytes, stream, time_ns;
  std::uint32_t stack;
};
struct block_now {
  std::uint64_t bytes, stream;
  std::uint32_t stack;
};

class snapshot_maker {
 public:
  void add(const trace::event& at) {
    if (device_ < 0 && at.what == action::allocate) device_ = at.device;
    const bool ours =
        trace::is_out_of_the_cpus_reach(at.of) && (device_ < 0 || at.device == device_);
    const bool said = ours && put(at);
    ++(said ? counts_.written : counts_.left_out);
  }

  result<trace::export_counts> write(trace::sink& to, const trace::trace_info& info) {
    complete_frees();
    const spans segments = fits() ? segments_left() : ranges();
    pickler out(to);
    out.begin_dict();
    out.text("segments");
    out.begin_list();
    std::uint64_t items = 0;
    for (const auto& [begin, each] : segments) {
      write_segment(out, info, begin, each);
      out.item_done(++items);
    }
    out.end_list();
    out.text("device_traces");
    out.begin_list();
    out.begin_list();
    items = 0;
    for (const entry& each : entries_) {
      if (synthetic_ && std::string_view(each.name).starts_with("segment")) continue;
      write_entry(out, info, each);
      out.item_done(++items);
      if (auto done = out.flush(); !done) return done.error();
    }
    out.end_list();
    out.end_list();
    out.text("allocator_settings");
    out.begin_dict();
    out.end_dict();
    out.text("external_annotations");
    out.begin_list();
    out.end_list();
    out.end_dict();
    if (auto done = out.stop(); !done) return done.error();
    return counts_;
  }

 private:
  bool put(const trace::event& at) {
    const auto say = [&](const char* name, std::uint64_t address, std::uint64_t bytes) {
      entries_.push_back({name, address, bytes, at.stream, at.time_ns, at.stack});
      return true;
    };
    switch (at.what) {
      case action::allocate:
        if (at.status != 0) return say("oom", trace::free_bytes_at_failure(at), at.bytes);
        if (at.address == 0 || at.bytes == 0 || live_.contains(at.address)) return false;
        live_[at.address] = {at.bytes, at.stream, at.stack};
        return say("alloc", at.address, at.bytes);
      case action::free: {
        const auto found = live_.find(at.address);
        if (found == live_.end()) return false;
        pending_[at.address] = found->second;
        live_.erase(found);
        return say("free_requested", at.address, pending_[at.address].bytes);
      }
      case action::free_complete: {
        const auto found = pending_.find(at.address);
        if (found == pending_.end()) return false;
        const std::uint64_t bytes = found->second.bytes;
        pending_.erase(found);
        return say("free_completed", at.address, bytes);
      }
      case action::segment_allocate: return say("segment_alloc", at.address, at.bytes);
      case action::segment_free: return say("segment_free", at.address, at.bytes);
      case action::segment_map: return say("segment_map", at.address, at.bytes);
      case action::segment_unmap: return say("segment_unmap", at.address, at.bytes);
      default: return false;
    }
  }

  // Puts a completion behind each free that has none before its address is allocated again or the
  // trace ends.
  void complete_frees() {
    std::unordered_map<std::uint64_t, std::size_t> open;
    std::vector<bool> lacks(entries_.size());
    for (std::size_t n = 0; n < entries_.size(); ++n) {
      const std::string_view name = entries_[n].name;
      if (name == "free_requested")
        open[entries_[n].address] = n;
      else if (name == "free_completed")
        open.erase(entries_[n].address);
      else if (name == "alloc") {
        if (const auto found = open.find(entries_[n].address); found != open.end()) {
          lacks[found->second] = true;
          open.erase(found);
        }
      }
    }
    for (const auto& [address, n] : open) lacks[n] = true;
    pending_.clear();
    std::vector<entry> whole;
    whole.reserve(entries_.size() * 3 / 2);
    for (std::size_t n = 0; n < entries_.size(); ++n) {
      whole.push_back(entries_[n]);
      if (!lacks[n]) continue;
      whole.push_back(entries_[n]);
      whole.back().name = "free_completed";
    }
    entries_ = std::move(whole);
  }

  // Do the recorded segments hold every block while it lives? Only then can the viewer run the
  // history backwards.
  bool fits() {
    spans now;
    const auto join = [&](std::uint64_t begin, std::uint64_t end, std::uint64_t stream) {
      if (const auto next = now.find(end); next != now.end() && next->second.stream == stream) {
        end = next->second.end;
        now.erase(next);
      }
      auto at = now.lower_bound(begin);
      if (at != now.begin() && std::prev(at)->second.end == begin &&
          std::prev(at)->second.stream == stream) {
        std::prev(at)->second.end = end;
      } else {
        now[begin] = {end, stream};
      }
    };
    for (const entry& each : entries_) {
      const std::string_view name = each.name;
      const std::uint64_t end = each.address + each.bytes;
      if (name == "segment_alloc")
        now[each.address] = {end, each.stream};
      else if (name == "segment_map")
        join(each.address, end, each.stream);
      else if (name == "segment_free" || name == "segment_unmap") {
        const auto found = holding(now, each.address, end);
        if (found == now.end()) return false;
        const auto [begin, old] = *found;
        now.erase(found);
        if (begin < each.address) now[begin] = {each.address, old.stream};
        if (end < old.end) now[end] = {old.end, old.stream};
      } else if (name == "alloc" && holding(now, each.address, end) == now.end()) {
        return false;
      }
    }
    left_ = std::move(now);
    return true;
  }
  spans segments_left() const { return left_; }

  spans ranges() {
    synthetic_ = true;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> all;
    for (const entry& each : entries_) {
      if (std::string_view(each.name) == "alloc")
        all.emplace_back(each.address, each.address + each.bytes);
    }
    std::ranges::sort(all);
    spans made;
    for (const auto& [begin, end] : all) {
      if (made.empty() || begin > std::prev(made.end())->second.end)
        made[begin] = {end, 0};
      else
        std::prev(made.end())->second.end = std::max(std::prev(made.end())->second.end, end);
    }
    return made;
  }

  static void write_frames(pickler& out, const trace::trace_info& info, std::uint32_t stack) {
    out.text("frames");
    const std::string name =
        "\x01stack " + std::to_string(stack);  // in the memo beside texts; no text begins so
    if (out.recall(name)) return;
    out.begin_list();
    for (const trace::frame& each : info.stacks.at(stack)) {
      out.begin_dict();
      out.key("name", info.strings.at(each.symbol));
      out.key("filename", info.strings.at(each.file));
      out.key("line", each.line);
      out.end_dict();
    }
    out.end_list();
    out.remember(name);
  }

  static void write_entry(pickler& out, const trace::trace_info& info, const entry& each) {
    out.begin_dict();
    out.key("action", std::string_view(each.name));
    out.key(std::string_view(each.name) == "oom" ? "device_free" : "addr", each.address);
    out.key("size", each.bytes);
    out.key("stream", each.stream);
    out.key("time_us", (info.meta.start_unix_ns + each.time_ns) / 1000);
    write_frames(out, info, each.stack);
    out.end_dict();
  }

  void write_segment(pickler& out, const trace::trace_info& info, std::uint64_t begin,
                     const span_of& of) {
    std::uint64_t allocated = 0;
    for (auto at = live_.lower_bound(begin); at != live_.end() && at->first < of.end; ++at)
      allocated += at->second.bytes;
    out.begin_dict();
    out.key("device", 0);
    out.key("address", begin);
    out.key("total_size", of.end - begin);
    out.key("allocated_size", allocated);
    out.key("active_size", allocated);
    out.key("requested_size", allocated);
    out.key("stream", of.stream);
    out.key("segment_type", of.end - begin > (std::uint64_t{2} << 20) ? std::string_view("large")
                                                                      : std::string_view("small"));
    out.flag("is_expandable", '\x89');
    write_frames(out, info, 0);
    out.text("blocks");
    out.begin_list();
    std::uint64_t at = begin, items = 0;
    const auto block = [&](std::uint64_t address, std::uint64_t bytes, std::string_view state,
                           std::uint32_t stack) {
      out.begin_dict();
      out.key("address", address);
      out.key("size", bytes);
      out.key("requested_size", state == "inactive" ? 0 : bytes);
      out.key("state", state);
      write_frames(out, info, stack);
      out.end_dict();
      out.item_done(++items);
    };
    for (auto each = live_.lower_bound(begin); each != live_.end() && each->first < of.end;
         ++each) {
      if (each->first > at) block(at, each->first - at, "inactive", 0);
      block(each->first, each->second.bytes, "active_allocated", each->second.stack);
      at = each->first + each->second.bytes;
    }
    if (at < of.end) block(at, of.end - at, "inactive", 0);
    out.end_list();
    out.end_dict();
  }

  int device_ = -1;
  bool synthetic_ = false;
  std::vector<entry> entries_;
  std::map<std::uint64_t, block_now> live_;
  std::unordered_map<std::uint64_t, block_now> pending_;
  spans left_;
  trace::export_counts counts_;
};

}  // namespace

result<trace::export_counts> export_torch_snapshot(trace::trace_source& from, trace::sink& to) {
  snapshot_maker maker;
  if (auto done = from.for_each([&](const trace::event& at) { maker.add(at); }); !done)
    return done.error();
  return maker.write(to, from.info());
}

}  // namespace millpond::report
