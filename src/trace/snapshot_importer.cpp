#include "trace/snapshot_importer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "trace/csv_importer.hpp"
#include "trace/mpt.hpp"
#include "trace/pickle.hpp"
#include "trace/text_importer.hpp"

namespace millpond::trace {
namespace {

using sort = pickle_value::sort;

// One entry of device_traces, as small as it gets: there may be tens of millions.
struct entry {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t stream = 0;  // the handle
  std::uint64_t time_us = 0;
  std::uint32_t stack = 0;
  action what{};
  bool failed = false;
  bool known = true;  // false: an action of a later PyTorch
};

// What a dict was reduced to: its sort in the top byte, its index below.
enum class shape : std::uint8_t { entry = 1, frame = 2 };
constexpr std::uint64_t tagged(shape of, std::uint64_t index) {
  return std::uint64_t{static_cast<std::uint8_t>(of)} << 56 | index;
}
bool is(const pickle_value& value, shape of) {
  return value.of == sort::reduced && value.number >> 56 == static_cast<std::uint8_t>(of);
}
std::uint64_t index_of(const pickle_value& value) { return value.number & ((std::uint64_t{1} << 56) - 1); }

bool as_number(const pickle_value* value, std::uint64_t& number) {
  if (value == nullptr) return false;
  if (value->of == sort::natural || (value->of == sort::integer && value->number <= INT64_MAX)) {
    number = value->number;
    return true;
  }
  return false;
}

class shapes final : public dict_reader {
 public:
  shapes(trace_info& info, const open_options& options) : info_(info), options_(options) {}

  result<answer> take(std::span<const pickle_value> items, pickle_reader& from,
                      std::uint64_t& number) override {
    dict_values found;
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      if (items[i].of != sort::text) continue;
      if (const auto which = member_of(items[i].number, from)) found.**which = &items[i + 1];
    }
    if (found.action != nullptr && (found.address != nullptr || found.device_free != nullptr)) {
      auto made = make_entry(found, from);
      if (!made) return made.error();
      number = tagged(shape::entry, *made);
      return answer::reduced;
    }
    if (found.file != nullptr && found.line != nullptr && found.symbol != nullptr) {
      auto made = make_frame(found, from);
      if (!made) return made.error();
      number = tagged(shape::frame, *made);
      return answer::reduced;
    }
    return answer::keep;
  }

  std::vector<entry> entries;
  std::uint64_t unknown_actions = 0;
  std::string first_unknown;

 private:
  // The values of the keys that matter, nullptr where a dict lacks one.
  struct dict_values {
    const pickle_value* action = nullptr;
    const pickle_value* address = nullptr;
    const pickle_value* device_free = nullptr;
    const pickle_value* size = nullptr;
    const pickle_value* stream = nullptr;
    const pickle_value* time = nullptr;
    const pickle_value* frames = nullptr;
    const pickle_value* symbol = nullptr;
    const pickle_value* file = nullptr;
    const pickle_value* line = nullptr;
  };
  using member = const pickle_value* dict_values::*;

  // Keys are the same few texts each time: looked up once by their id.
  std::optional<member> member_of(std::uint64_t text, pickle_reader& from) {
    if (text >= members_.size()) members_.resize(text + 1);
    key& known = members_[text];
    if (!known.looked_up) {
      known.looked_up = true;
      static constexpr std::pair<std::string_view, member> names[] = {
          {"action", &dict_values::action}, {"addr", &dict_values::address},   {"device_free", &dict_values::device_free},
          {"size", &dict_values::size},     {"stream", &dict_values::stream},  {"time_us", &dict_values::time},
          {"frames", &dict_values::frames}, {"name", &dict_values::symbol},    {"filename", &dict_values::file},
          {"line", &dict_values::line}};
      const std::string_view spelled = from.text({sort::text, text});
      for (const auto& [name, which] : names) {
        if (name == spelled) known.which = which;
      }
    }
    return known.which;
  }

  result<std::uint64_t> make_entry(const dict_values& of, pickle_reader& from) {
    if (of.action->of != sort::text) return from.bad("an entry's action as text", "another value");
    entry made;
    const std::string_view name = from.text(*of.action);
    const torch_action* known = find_torch_action(name);
    if (known == nullptr) {
      if (unknown_actions++ == 0) first_unknown = quoted(name);
      made.known = false;
    } else {
      made.what = known->what;
      made.failed = known->name == "oom";
    }
    const pickle_value* address = of.device_free != nullptr && made.failed ? of.device_free : of.address;
    if (address != nullptr && !as_number(address, made.address)) {
      return from.bad("an entry's address as a number from 0 to 2^64 - 1", "another value");
    }
    if (of.size != nullptr && (!as_number(of.size, made.bytes) || made.bytes > INT64_MAX)) {
      return from.bad("an entry's size as a number from 0 to 2^63 - 1", "another value");
    }
    if (of.stream != nullptr && !as_number(of.stream, made.stream)) {
      return from.bad("an entry's stream as a number from 0 to 2^64 - 1", "another value");
    }
    if (of.time != nullptr && (!as_number(of.time, made.time_us) || made.time_us > UINT64_MAX / 1000)) {
      return from.bad("an entry's time in microseconds", "another value");
    }
    if (of.frames != nullptr) {
      auto stack = stack_of(*of.frames, from);
      if (!stack) return stack.error();
      made.stack = *stack;
    }
    const std::size_t before = entries.capacity();
    entries.push_back(made);
    if (auto done = from.take_memory((entries.capacity() - before) * sizeof(entry)); !done) return done.error();
    return entries.size() - 1;
  }

  result<std::uint64_t> make_frame(const dict_values& of, pickle_reader& from) {
    if (of.symbol->of != sort::text || of.file->of != sort::text) {
      return from.bad("a frame's name and filename as text", "another value");
    }
    frame made{trace_text(*of.symbol, from), trace_text(*of.file, from), 0};
    std::uint64_t line = 0;
    if (as_number(of.line, line)) made.line = static_cast<std::uint32_t>(std::min<std::uint64_t>(line, UINT32_MAX));
    frames_.push_back(made);
    if (auto done = from.take_memory(2 * sizeof(frame)); !done) return done.error();
    return frames_.size() - 1;
  }

  // The id among the trace's strings of a text of the pickle.
  std::uint32_t trace_text(const pickle_value& text, pickle_reader& from) {
    if (text.number >= texts_.size()) texts_.resize(text.number + 1);
    std::uint32_t& known = texts_[text.number];
    if (known == 0) known = info_.strings.intern(from.text(text).substr(0, mpt::most_text_bytes));
    return known;
  }

  // Entries share their lists of frames: each list becomes a stack once.
  result<std::uint32_t> stack_of(const pickle_value& list, pickle_reader& from) {
    const auto elements = from.elements(list);
    if (list.of != sort::list || elements.empty()) return 0u;
    const auto known = stacks_.find(list.number);
    if (known != stacks_.end() && known->second.first == elements.size()) return known->second.second;
    stack_frames_.clear();
    for (const pickle_value& each : elements) {
      if (!is(each, shape::frame)) return from.bad("a list of frames", "another value in it");
      if (stack_frames_.size() < mpt::most_frames) stack_frames_.push_back(frames_[index_of(each)]);
    }
    const std::uint32_t id = info_.stacks.intern(stack_frames_);
    const std::uint64_t used = info_.strings.memory_bytes() + info_.stacks.memory_bytes();
    if (used > options_.table_limit_bytes) {
      return from.bad(fmt::format("strings and stacks of at most {} bytes in all", options_.table_limit_bytes),
                      fmt::format("{}", used));
    }
    stacks_[list.number] = {elements.size(), id};
    if (auto done = from.take_memory(64); !done) return done.error();
    return id;
  }

  struct key {
    bool looked_up = false;
    std::optional<member> which;
  };

  trace_info& info_;
  const open_options& options_;
  std::vector<key> members_;           // by text id of the pickle
  std::vector<std::uint32_t> texts_;   // text id of the pickle -> string id of the trace
  std::vector<frame> frames_;
  std::vector<frame> stack_frames_;
  std::unordered_map<std::uint64_t, std::pair<std::size_t, std::uint32_t>> stacks_;  // by list
};

class snapshot_reader final : public event_reader {
 public:
  snapshot_reader(const input_buffer& from, const open_options& options)
      : options_(options), shapes_(info_, options_) {
    info_.name = from.name();
    info_.from = format::torch_snapshot;
    info_.meta.recorded_by = "PyTorch memory snapshot";
    snapshot_text_ = info_.strings.intern("snapshot");
  }

  result<void> open(input_buffer from) {
    pickle_reader pickle(std::move(from), options_.memory_limit_bytes, shapes_);
    auto root = pickle.read();
    if (!root) return root.error();
    const pickle_value* traces = pickle.find(*root, "device_traces");
    const pickle_value* segments = pickle.find(*root, "segments");
    if (traces == nullptr && segments == nullptr) {
      return error{error_code::bad_input,
                   info_.name + ": expected a memory snapshot (a dict with segments and device_traces), found "
                                "a pickle of something else"};
    }
    if (traces != nullptr) {
      if (auto done = find_devices(pickle, *traces); !done) return done;
    }
    bool timed = false;
    start_us_ = UINT64_MAX;
    for (const entry& each : shapes_.entries) {
      timed = timed || each.time_us != 0;
      start_us_ = std::min(start_us_, each.time_us);
    }
    if (!timed) start_us_ = 0;
    info_.meta.start_unix_ns = start_us_ * 1000;
    find_blocks_before();
    if (segments != nullptr) {
      if (auto done = find_active_blocks(pickle, *segments); !done) return done;
    }
    if (!before_.empty()) {
      info_.meta.notes.emplace_back("blocks_before_recording", fmt::format("{}", before_.size()));
    }
    if (shapes_.unknown_actions != 0) {
      info_.warnings.push_back(fmt::format("{}: {} entries with actions that this version does not know are "
                                           "left out (the first: {})",
                                           info_.name, shapes_.unknown_actions, shapes_.first_unknown));
    }
    if (shapes_.entries.empty()) {
      info_.warnings.push_back(info_.name + ": the snapshot has no history (it was taken without "
                                            "_record_memory_history): only the blocks live then are known");
    }
    return {};
  }

  result<std::size_t> read(std::span<event> into) override {
    std::size_t count = 0;
    while (count < into.size()) {
      if (before_at_ < before_.size()) {
        into[count] = before_[before_at_++];
      } else if (!next_entry(into[count])) {
        info_.status = read_status::complete;
        break;
      }
      into[count].sequence = sequence_++;
      ++count;
    }
    return count;
  }

 private:
  // The entries of one device: indices into shapes_.entries.
  struct device_trace {
    std::vector<std::uint64_t> entries;
    std::size_t at = 0;
  };

  result<void> find_devices(const pickle_reader& pickle, const pickle_value& traces) {
    const auto lists = pickle.elements(traces);
    if (traces.of != sort::list || lists.size() > UINT16_MAX) {
      return error{error_code::bad_input, info_.name + ": expected device_traces to be a list of a list a "
                                                       "device, found something else"};
    }
    for (const pickle_value& list : lists) {
      device_trace& device = devices_.emplace_back();
      const auto elements = pickle.elements(list);
      device.entries.reserve(elements.size());
      for (const pickle_value& each : elements) {
        if (list.of != sort::list || !is(each, shape::entry)) {
          return error{error_code::bad_input,
                       fmt::format("{}: expected element {} of device {}'s trace to be an entry with action "
                                   "and addr, found something else",
                                   info_.name, device.entries.size(), devices_.size() - 1)};
        }
        device.entries.push_back(index_of(each));
      }
    }
    return {};
  }

  event event_of(const entry& from, std::size_t device) {
    event made;
    made.time_ns = from.time_us >= start_us_ ? (from.time_us - start_us_) * 1000 : 0;
    made.stream = stream_number(from.stream, device);
    made.address = from.address;
    made.bytes = from.bytes;
    made.stack = from.stack;
    made.device = static_cast<std::uint16_t>(device);
    made.what = from.what;
    if (from.failed) {
      made.other = made.address;
      made.address = 0;
      made.status = cuda_error_out_of_memory;
    }
    if (from.what == action::mark) made.object = snapshot_text_;
    return made;
  }

  // Null is stream 0 of every device; a handle is one stream of one device.
  std::uint64_t stream_number(std::uint64_t handle, std::size_t device) {
    if (handle == 0) return 0;
    return streams_.of(handle ^ (std::uint64_t{device} << 48));
  }

  // The next entry of the device whose next entry is the earliest; the trace of one device keeps its order.
  bool next_entry(event& into) {
    for (;;) {
      device_trace* first = nullptr;
      for (device_trace& each : devices_) {
        if (each.at == each.entries.size()) continue;
        if (first == nullptr || time_of(each) < time_of(*first)) first = &each;
      }
      if (first == nullptr) return false;
      const entry& next = shapes_.entries[first->entries[first->at++]];
      if (!next.known) continue;
      into = event_of(next, static_cast<std::size_t>(first - devices_.data()));
      return true;
    }
  }
  std::uint64_t time_of(const device_trace& of) const { return shapes_.entries[of.entries[of.at]].time_us; }

  void add_before(entry block, std::size_t device) {
    block.what = action::allocate;
    block.failed = false;
    event made = event_of(block, device);
    made.time_ns = 0;
    before_.push_back(made);
  }

  // Blocks whose first event is a free were there when the recording began.
  void find_blocks_before() {
    for (std::size_t device = 0; device < devices_.size(); ++device) {
      for (const std::uint64_t index : devices_[device].entries) {
        const entry& each = shapes_.entries[index];
        if (!each.known || each.failed) continue;
        if (each.what != action::allocate && each.what != action::free) continue;
        const bool fresh = seen_.insert(each.address).second;
        if (fresh && each.what == action::free) add_before(each, device);
      }
    }
  }

  result<void> find_active_blocks(const pickle_reader& pickle, const pickle_value& segments) {
    for (const pickle_value& segment : pickle.elements(segments)) {
      const pickle_value* blocks = pickle.find(segment, "blocks");
      if (blocks == nullptr) continue;
      std::uint64_t device = 0, address = 0;
      entry block;
      as_number(pickle.find(segment, "device"), device);
      as_number(pickle.find(segment, "stream"), block.stream);
      as_number(pickle.find(segment, "address"), address);
      for (const pickle_value& each : pickle.elements(*blocks)) {
        std::uint64_t size = 0;
        if (!as_number(pickle.find(each, "size"), size)) {
          return error{error_code::bad_input,
                       info_.name + ": expected each block of a segment to have a size, found one without"};
        }
        block.address = address;  // old snapshots give none: blocks lie end to end
        as_number(pickle.find(each, "address"), block.address);
        address = block.address + size;
        block.bytes = size;
        as_number(pickle.find(each, "requested_size"), block.bytes);
        const pickle_value* state = pickle.find(each, "state");
        if (state == nullptr || state->of != sort::text || pickle.text(*state) != "active_allocated") continue;
        if (block.bytes > INT64_MAX || device > UINT16_MAX) {
          return error{error_code::bad_input, info_.name + ": expected a block's size up to 2^63 - 1 and a "
                                                           "device up to 65535, found more"};
        }
        if (seen_.insert(block.address).second) add_before(block, device);
      }
    }
    return {};
  }

  open_options options_;
  shapes shapes_;
  std::vector<device_trace> devices_;
  std::vector<event> before_;
  std::size_t before_at_ = 0;
  std::unordered_set<std::uint64_t> seen_;  // addresses of blocks that some event names
  numbering streams_{1};
  std::uint64_t start_us_ = 0;
  std::uint64_t sequence_ = 0;
  std::uint32_t snapshot_text_ = 0;
};

}  // namespace

bool is_pickle(std::string_view head) noexcept {
  // PROTO and its version. Protocols 0 and 1 have no mark of their own; no snapshot has them.
  return head.size() >= 2 && head[0] == '\x80' && static_cast<unsigned char>(head[1]) <= 0x7f;
}

result<std::unique_ptr<event_reader>> read_snapshot(input_buffer from, const open_options& options) {
  auto reader = std::make_unique<snapshot_reader>(from, options);
  if (auto done = reader->open(std::move(from)); !done) return done.error();
  return std::unique_ptr<event_reader>(std::move(reader));
}

}  // namespace millpond::trace
