#include "trace/import/snapshot_importer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/quote.hpp"
#include "trace/address_map.hpp"
#include "trace/event_views.hpp"
#include "trace/import/csv_importer.hpp"
#include "trace/import/pickle.hpp"
#include "trace/import/text_importer.hpp"
#include "trace/mpt.hpp"
#include "trace/reader.hpp"
#include "trace/spool.hpp"

namespace millpond::trace {
namespace {

using sort = pickle_value::sort;

// A block of a segment.
struct segment_block {
  std::uint64_t address = UINT64_MAX;  // old snapshots give none: blocks lie end to end
  std::uint64_t size = 0;
  std::uint64_t requested = 0;
  std::uint32_t stack = 0;
  bool active = false;
};

// What a dict or a list of frames was reduced to: its sort in the top byte, its index below.
enum class shape : std::uint8_t { frame = 1, stack = 2 };
constexpr std::uint64_t tagged(shape of, std::uint64_t index) {
  return std::uint64_t{static_cast<std::uint8_t>(of)} << 56 | index;
}
bool is(std::uint64_t reduction, shape of) {
  return reduction >> 56 == static_cast<std::uint8_t>(of);
}
std::uint64_t index_of(std::uint64_t reduction) {
  return reduction & ((std::uint64_t{1} << 56) - 1);
}

bool as_number(const pickle_value* value, std::uint64_t& number) {
  if (value == nullptr) return false;
  if (value->of == sort::natural || (value->of == sort::integer && value->number <= INT64_MAX)) {
    number = value->number;
    return true;
  }
  return false;
}

// Takes entries, blocks and frames while the pickle is read. Entries go through a trace writer into
// a spool, some 10 bytes each: as events with the handle as stream and microseconds as time, since
// where time begins is known only at the end.
class shapes final : public dict_reader {
 public:
  shapes(trace_info& info, const open_options& options)
      : info_(info), options_(options), entries_(options.spool_limit_bytes) {}

  // Entries of one list that lie together in the spool.
  struct run {
    std::uint64_t list, begin, end;
  };

  result<answer> take(std::span<const pickle_value> items, std::uint64_t list, pickle_reader& from,
                      std::uint64_t& number) override {
    dict_values found;
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      if (items[i].of != sort::text) continue;
      if (const auto which = member_of(items[i].number, from)) found.** which = &items[i + 1];
    }
    if (found.action != nullptr && (found.address != nullptr || found.device_free != nullptr)) {
      if (auto done = take_entry(found, list, from); !done) return done.error();
      return answer::taken;
    }
    if (found.file != nullptr && found.line != nullptr && found.symbol != nullptr) {
      auto made = make_frame(found, from);
      if (!made) return made.error();
      number = tagged(shape::frame, *made);
      return answer::reduced;
    }
    if (found.size != nullptr && found.state != nullptr) {
      if (auto done = take_block(found, list, from); !done) return done.error();
      return answer::taken;
    }
    return answer::keep;
  }

  // After the last dict.
  result<void> finish() { return end_run(); }
  [[nodiscard]] const std::vector<run>& runs() const noexcept { return runs_; }
  [[nodiscard]] const spool& spooled() const noexcept { return entries_; }
  [[nodiscard]] std::span<const segment_block> blocks_of(const pickle_value& list) const {
    const auto found = blocks_.find(list.number);
    return found == blocks_.end() ? std::span<const segment_block>{}
                                  : std::span<const segment_block>(found->second);
  }
  [[nodiscard]] std::uint64_t entries() const noexcept { return taken_; }
  // Of all entries; 0 where none has a time.
  [[nodiscard]] std::uint64_t start_us() const noexcept { return timed_ ? start_us_ : 0; }

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
    const pickle_value* block_address = nullptr;
    const pickle_value* requested = nullptr;
    const pickle_value* state = nullptr;
  };
  using member = const pickle_value* dict_values::*;

  // Keys are the same few texts each time: looked up once by their id.
  std::optional<member> member_of(std::uint64_t text, pickle_reader& from) {
    if (text >= members_.size()) members_.resize(text + 1);
    key& known = members_[text];
    if (!known.looked_up) {
      known.looked_up = true;
      static constexpr std::pair<std::string_view, member> names[] = {
          {"action", &dict_values::action},
          {"addr", &dict_values::address},
          {"device_free", &dict_values::device_free},
          {"size", &dict_values::size},
          {"stream", &dict_values::stream},
          {"time_us", &dict_values::time},
          {"frames", &dict_values::frames},
          {"name", &dict_values::symbol},
          {"filename", &dict_values::file},
          {"line", &dict_values::line},
          {"address", &dict_values::block_address},
          {"requested_size", &dict_values::requested},
          {"state", &dict_values::state}};
      const std::string_view spelled = from.text({sort::text, text});
      for (const auto& [name, which] : names) {
        if (name == spelled) known.which = which;
      }
    }
    return known.which;
  }

  result<void> take_entry(const dict_values& of, std::uint64_t list, pickle_reader& from) {
    if (of.action->of != sort::text) return from.bad("an entry's action as text", "another value");
    event made;
    const std::string_view name = from.text(*of.action);
    const torch_action* known = find_torch_action(name);
    const bool failed = known != nullptr && known->name == "oom";
    const pickle_value* address = of.device_free != nullptr && failed ? of.device_free : of.address;
    std::uint64_t number = 0, stream = 0, time_us = 0;
    if (address != nullptr && !as_number(address, number)) {
      return from.bad("an entry's address as a number from 0 to 2^64 - 1", "another value");
    }
    if (of.size != nullptr && (!as_number(of.size, made.bytes) || made.bytes > INT64_MAX)) {
      return from.bad("an entry's size as a number from 0 to 2^63 - 1", "another value");
    }
    if (of.stream != nullptr && !as_number(of.stream, stream)) {
      return from.bad("an entry's stream as a number from 0 to 2^64 - 1", "another value");
    }
    if (of.time != nullptr && (!as_number(of.time, time_us) || time_us > UINT64_MAX / 1000)) {
      return from.bad("an entry's time in microseconds", "another value");
    }
    if (of.frames != nullptr) {
      auto stack = stack_of(*of.frames, from);
      if (!stack) return stack.error();
      made.stack = *stack;
    }
    ++taken_;
    timed_ = timed_ || time_us != 0;
    start_us_ = std::min(start_us_, time_us);
    if (known == nullptr) {
      if (unknown_actions++ == 0) first_unknown = in_quotes(name);
      return {};
    }
    made.what = known->what;
    made.address = failed ? 0 : number;
    if (failed) set_free_bytes_at_failure(made, number);
    made.status = failed ? cuda_error_out_of_memory : 0;
    made.stream = stream;
    made.time_ns = time_us;
    return spool_entry(made, list, from);
  }

  result<void> spool_entry(event& made, std::uint64_t list, pickle_reader& from) {
    if (!writer_ || runs_.back().list != list) {
      if (auto done = end_run(); !done) return done;
      runs_.push_back({list, entries_.size(), 0});
      if (auto done = from.take_memory(sizeof(run)); !done) return done;
      // The quickest compression: this is read back once, and at once.
      writer_.emplace(make_spool_sink(entries_), metadata{},
                      writer_options{.compression_level = 1});
      within_run_ = 0;
    }
    made.sequence = within_run_++;
    const std::uint64_t before = entries_.in_memory();
    if (auto done = writer_->add(made); !done) return done;
    return from.take_memory(entries_.in_memory() - before);
  }

  result<void> end_run() {
    if (!writer_) return {};
    if (auto done = writer_->close(); !done) return done;
    writer_.reset();
    runs_.back().end = entries_.size();
    return {};
  }

  result<void> take_block(const dict_values& of, std::uint64_t list, pickle_reader& from) {
    segment_block made;
    if (!as_number(of.size, made.size))
      return from.bad("a block's size as a number from 0 to 2^64 - 1", "another value");
    made.requested = made.size;
    as_number(of.requested, made.requested);
    as_number(of.block_address, made.address);
    made.active = of.state->of == sort::text && from.text(*of.state) == "active_allocated";
    if (of.frames != nullptr) {
      auto stack = stack_of(*of.frames, from);
      if (!stack) return stack.error();
      made.stack = *stack;
    }
    auto& blocks = blocks_[list];
    const std::size_t before = blocks.capacity();
    blocks.push_back(made);
    return from.take_memory((blocks.capacity() - before) * sizeof(segment_block));
  }

  result<std::uint64_t> make_frame(const dict_values& of, pickle_reader& from) {
    if (of.symbol->of != sort::text || of.file->of != sort::text) {
      return from.bad("a frame's name and filename as text", "another value");
    }
    frame made{trace_text(*of.symbol, from), trace_text(*of.file, from), 0};
    std::uint64_t line = 0;
    if (as_number(of.line, line))
      made.line = static_cast<std::uint32_t>(std::min<std::uint64_t>(line, UINT32_MAX));
    const auto [known, fresh] = frame_ids_.try_emplace(made, frames_.size());
    if (fresh) {
      frames_.push_back(made);
      if (auto done = from.take_memory(2 * sizeof(frame) + 64); !done) return done.error();
    }
    return known->second;
  }

  // The id among the trace's strings of a text of the pickle.
  std::uint32_t trace_text(const pickle_value& text, pickle_reader& from) {
    if (text.number >= texts_.size()) texts_.resize(text.number + 1);
    std::uint32_t& known = texts_[text.number];
    if (known == 0) known = info_.strings.intern(from.text(text).substr(0, mpt::most_text_bytes));
    return known;
  }

  // Each list of frames becomes a stack once, and its elements go: there is one for nearly every
  // allocation.
  result<std::uint32_t> stack_of(const pickle_value& list, pickle_reader& from) {
    if (const auto known = from.reduction(list)) {
      if (!is(*known, shape::stack)) return from.bad("a list of frames", "another value");
      return static_cast<std::uint32_t>(index_of(*known));
    }
    if (list.of != sort::list) return 0u;
    stack_frames_.clear();
    for (const pickle_value& each : from.elements(list)) {
      const auto known = from.reduction(each);
      if (!known || !is(*known, shape::frame))
        return from.bad("a list of frames", "another value in it");
      if (stack_frames_.size() < mpt::most_frames)
        stack_frames_.push_back(frames_[index_of(*known)]);
    }
    const std::uint32_t id = stack_frames_.empty() ? 0 : info_.stacks.intern(stack_frames_);
    const std::uint64_t used = info_.strings.memory_bytes() + info_.stacks.memory_bytes();
    if (used > options_.table_limit_bytes) {
      return from.bad(
          fmt::format("strings and stacks of at most {} bytes in all", options_.table_limit_bytes),
          fmt::format("{}", used));
    }
    from.reduce_to(list, tagged(shape::stack, id));
    return id;
  }

  struct key {
    bool looked_up = false;
    std::optional<member> which;
  };
  struct frame_hash {
    std::size_t operator()(const frame& of) const noexcept {
      return ((std::size_t{of.symbol} << 32 | of.file) * 0x9e3779b97f4a7c15ULL) ^ of.line;
    }
  };

  trace_info& info_;
  const open_options& options_;
  spool entries_;
  std::optional<trace_writer> writer_;  // of the last run, while it grows
  std::vector<run> runs_;
  std::uint64_t within_run_ = 0;
  std::uint64_t taken_ = 0;
  std::uint64_t start_us_ = UINT64_MAX;
  bool timed_ = false;
  std::vector<key> members_;          // by text id of the pickle
  std::vector<std::uint32_t> texts_;  // text id of the pickle -> string id of the trace
  std::vector<frame> frames_;
  std::unordered_map<frame, std::uint64_t, frame_hash> frame_ids_;
  std::vector<frame> stack_frames_;
  std::unordered_map<std::uint64_t, std::vector<segment_block>> blocks_;  // by list
};

// The entries of one device, in their order, out of the spool.
class device_entries {
 public:
  device_entries(const shapes& from, std::vector<shapes::run> runs)
      : from_(from), runs_(std::move(runs)) {}

  // nullptr behind the last one.
  result<const event*> peek() {
    while (at_ == held_) {
      if (reader_ == nullptr) {
        if (run_ == runs_.size()) return nullptr;
        auto opened = read_mpt(
            input_buffer(make_spool_input(from_.spooled(), runs_[run_].begin, runs_[run_].end),
                         "a snapshot's spool"),
            {});
        if (!opened) return opened.error();
        reader_ = std::move(*opened);
        ++run_;
      }
      batch_.resize(most_held);
      auto got = reader_->read(batch_);
      if (!got) return got.error();
      at_ = 0;
      held_ = *got;
      if (held_ == 0) reader_.reset();
    }
    return &batch_[at_];
  }
  void next() noexcept { ++at_; }

 private:
  static constexpr std::size_t most_held = 256;
  const shapes& from_;
  std::vector<shapes::run> runs_;
  std::size_t run_ = 0;
  std::unique_ptr<event_reader> reader_;
  std::vector<event> batch_;
  std::size_t at_ = 0, held_ = 0;
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
    if (auto done = shapes_.finish(); !done) return done;
    const pickle_value* traces = pickle.find(*root, "device_traces");
    const pickle_value* segments = pickle.find(*root, "segments");
    if (traces == nullptr && segments == nullptr) {
      return error{
          error_code::bad_input,
          info_.name +
              ": expected a memory snapshot (a dict with segments and device_traces), found "
              "a pickle of something else"};
    }
    if (traces != nullptr) {
      if (auto done = find_devices(pickle, *traces); !done) return done;
    }
    start_us_ = shapes_.start_us();
    info_.meta.start_unix_ns = start_us_ * 1000;
    if (auto done = find_blocks_before(); !done) return done;
    if (segments != nullptr) {
      if (auto done = find_active_blocks(pickle, *segments); !done) return done;
    }
    if (!before_.empty()) {
      info_.meta.notes.emplace_back("blocks_before_recording", fmt::format("{}", before_.size()));
    }
    if (shapes_.unknown_actions != 0) {
      info_.warnings.push_back(
          fmt::format("{}: {} entries with actions that this version does not know are "
                      "left out (the first: {})",
                      info_.name, shapes_.unknown_actions, shapes_.first_unknown));
    }
    if (shapes_.entries() == 0) {
      info_.warnings.push_back(info_.name +
                               ": the snapshot has no history (it was taken without "
                               "_record_memory_history): only the blocks live then are known");
    }
    for (const auto& runs : runs_) devices_.emplace_back(shapes_, runs);
    return {};
  }

  result<std::size_t> read(std::span<event> into) override {
    std::size_t count = 0;
    while (count < into.size()) {
      if (before_at_ < before_.size()) {
        into[count] = before_[before_at_++];
      } else {
        auto more = next_entry(into[count]);
        if (!more) return more.error();
        if (!*more) {
          info_.status = read_status::complete;
          break;
        }
      }
      into[count].sequence = sequence_++;
      ++count;
    }
    return count;
  }

 private:
  // PyTorch has 120 devices at most.
  static constexpr std::size_t most_devices = 1024;

  result<void> find_devices(const pickle_reader& pickle, const pickle_value& traces) {
    const auto lists = pickle.elements(traces);
    if (traces.of != sort::list || lists.size() > most_devices) {
      return error{
          error_code::bad_input,
          fmt::format("{}: expected device_traces to be a list of a list a device, of at most {} "
                      "devices, found something else",
                      info_.name, most_devices)};
    }
    for (const pickle_value& list : lists) {
      if (list.of != sort::list || !pickle.elements(list).empty()) {
        return error{error_code::bad_input,
                     fmt::format("{}: expected device {}'s trace to be a list of entries with "
                                 "action and addr, each of them there "
                                 "alone, found something else",
                                 info_.name, runs_.size())};
      }
      auto& runs = runs_.emplace_back();
      for (const shapes::run& each : shapes_.runs()) {
        if (pickle.taken(list) != 0 && each.list == list.number) runs.push_back(each);
      }
    }
    return {};
  }

  event event_of(const event& entry, std::size_t device) {
    event made = entry;
    made.time_ns = entry.time_ns >= start_us_ ? (entry.time_ns - start_us_) * 1000 : 0;
    made.stream = stream_number(entry.stream, device);
    made.device = static_cast<std::uint16_t>(device);
    if (entry.what == action::mark) set_operands(made, mark_operands{snapshot_text_});
    return made;
  }

  // Null is stream 0 of every device; a handle is one stream of one device.
  std::uint64_t stream_number(std::uint64_t handle, std::size_t device) {
    if (handle == 0) return 0;
    return streams_.of(handle ^ (std::uint64_t{device} << 48));
  }

  // The next entry of the device whose next entry is the earliest; the trace of one device keeps
  // its order.
  result<bool> next_entry(event& into) {
    const event* first = nullptr;
    std::size_t which = 0;
    for (std::size_t device = 0; device < devices_.size(); ++device) {
      auto next = devices_[device].peek();
      if (!next) return next.error();
      if (*next == nullptr || (first != nullptr && first->time_ns <= (*next)->time_ns)) continue;
      first = *next;
      which = device;
    }
    if (first == nullptr) return false;
    into = event_of(*first, which);
    devices_[which].next();
    return true;
  }

  void add_before(event block, std::size_t device) {
    block.what = action::allocate;
    event made = event_of(block, device);
    made.time_ns = 0;
    before_.push_back(made);
  }

  // Blocks whose first event is a free were there when the recording began.
  result<void> find_blocks_before() {
    for (std::size_t device = 0; device < runs_.size(); ++device) {
      device_entries entries(shapes_, runs_[device]);
      for (;;) {
        auto next = entries.peek();
        if (!next) return next.error();
        if (*next == nullptr) break;
        const event& each = **next;
        entries.next();
        if (each.status != 0 || (each.what != action::allocate && each.what != action::free))
          continue;
        if (seen_.find(each.address) != address_map::none) continue;
        seen_.set(each.address, 0);
        if (each.what == action::free) add_before(each, device);
      }
    }
    return {};
  }

  result<void> find_active_blocks(const pickle_reader& pickle, const pickle_value& segments) {
    for (const pickle_value& segment : pickle.elements(segments)) {
      const pickle_value* blocks = pickle.find(segment, "blocks");
      if (blocks == nullptr) continue;
      if (!pickle.elements(*blocks).empty()) {
        return error{
            error_code::bad_input,
            info_.name +
                ": expected each block of a segment to have a size and a state, found one without"};
      }
      std::uint64_t device = 0, address = 0, stream = 0;
      as_number(pickle.find(segment, "device"), device);
      as_number(pickle.find(segment, "stream"), stream);
      as_number(pickle.find(segment, "address"), address);
      for (const segment_block& each : shapes_.blocks_of(*blocks)) {
        event block;
        block.address = each.address == UINT64_MAX ? address : each.address;
        address = block.address + each.size;
        block.bytes = each.requested;
        block.stream = stream;
        block.stack = each.stack;
        if (!each.active) continue;
        if (block.bytes > INT64_MAX || device > UINT16_MAX) {
          return error{error_code::bad_input, info_.name +
                                                  ": expected a block's size up to 2^63 - 1 and a "
                                                  "device up to 65535, found more"};
        }
        if (seen_.find(block.address) != address_map::none) continue;
        seen_.set(block.address, 0);
        add_before(block, device);
      }
    }
    return {};
  }

  open_options options_;
  shapes shapes_;
  std::vector<std::vector<shapes::run>> runs_;  // by device
  std::vector<device_entries> devices_;
  std::vector<event> before_;
  std::size_t before_at_ = 0;
  address_map seen_;  // addresses of blocks that some event names
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

result<std::unique_ptr<event_reader>> read_snapshot(input_buffer from,
                                                    const open_options& options) {
  auto reader = std::make_unique<snapshot_reader>(from, options);
  if (auto done = reader->open(std::move(from)); !done) return done.error();
  return std::unique_ptr<event_reader>(std::move(reader));
}

}  // namespace millpond::trace
