// From a trace to a workload: addresses become blocks, streams become small numbers, what is not
// the program's own asking (segments, completions) is left out, and what the recording does not say
// is decided here and noted.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "millpond/base/units.hpp"
#include "replay/workload.hpp"
#include "trace/kernel_uses.hpp"
#include "trace/lifetimes.hpp"
#include "trace/live_index.hpp"

namespace millpond::replay {
namespace {

using trace::action;

bool is_synchronize(action what) noexcept {
  return what == action::stream_synchronize || what == action::event_synchronize ||
         what == action::device_synchronize;
}

// The pause from which on a synchronise is inserted, or `never` where the trace has its own or no
// times.
std::uint64_t idle_gap(const trace::trace_data& trace, const lower_options& options) {
  std::vector<std::uint64_t> gaps;
  gaps.reserve(trace.events.size());
  std::uint64_t last = 0;
  bool first = true;
  for (const trace::event& each : trace.events) {
    if (is_synchronize(each.what)) return never;
    if (each.what != action::allocate && each.what != action::free) continue;
    if (!first && each.time_ns >= last) gaps.push_back(each.time_ns - last);
    first = false;
    last = each.time_ns;
  }
  if (gaps.empty()) return never;
  const auto middle = gaps.begin() + static_cast<std::ptrdiff_t>(gaps.size() / 2);
  std::nth_element(gaps.begin(), middle, gaps.end());
  const auto scaled =
      static_cast<std::uint64_t>(static_cast<double>(*middle) * options.idle_gap_medians);
  return std::max(scaled, options.idle_gap_floor_ns);
}

class lowering {
 public:
  lowering(const trace::trace_data& from, const lower_options& options, trace::lifetimes lives)
      : trace_(from), options_(options), lives_(std::move(lives)) {
    made_.name = from.info.name;
    made_.events = from.events.size();
    made_.idle_gap_ns = idle_gap(from, options);
  }

  result<workload> run() {
    index_blocks();
    std::uint64_t last_time = trace_.events.empty() ? 0 : trace_.events.front().time_ns;
    const std::uint64_t first_time = last_time;
    for (std::uint64_t at = 0; at < trace_.events.size(); ++at) {
      const trace::event& each = trace_.events[at];
      const trace::kernel_uses::place use_of = kernel_uses_.see(each);
      if (each.device != options_.device) {
        ++made_.skipped_events;
        continue;
      }
      const std::uint64_t pause = each.time_ns > last_time ? each.time_ns - last_time : 0;
      if (is_program_action(each.what)) {
        if (pause >= made_.idle_gap_ns && !made_.ops.empty()) insert_synchronize();
        pending_gap_ += pause;
        last_time = std::max(last_time, each.time_ns);
      }
      lower_event(each, at, use_of);
    }
    made_.duration_ns = last_time - first_time;
    if (made_.blocks.empty()) {
      return error{
          error_code::bad_input,
          fmt::format("{}: expected an allocation of device memory, found none in {} events",
                      made_.name, made_.events)};
    }
    for (std::uint32_t id = 0; id < made_.blocks.size(); ++id) {
      if (!freed_[id]) ++made_.never_freed;
    }
    write_notes();
    return std::move(made_);
  }

 private:
  static bool is_program_action(action what) noexcept {
    return what != action::free_complete && what != action::segment_allocate &&
           what != action::segment_free && what != action::segment_map &&
           what != action::segment_unmap && what != action::pool_set && what != action::pages;
  }

  // Which block an event allocates or frees, by the event's index.
  void index_blocks() {
    block_of_event_.assign(trace_.events.size(), no_block);
    std::uint32_t next = 0;
    for (const trace::block& each : lives_.blocks) {
      if (each.device != options_.device) continue;
      if (!trace::is_gpu_memory(each.of)) {
        ++made_.host_blocks;
        continue;
      }
      block_of_event_[each.allocate_event] = next;
      if (each.free_event != trace::never) block_of_event_[each.free_event] = next;
      guess_other_use_.push_back(each.deferred && each.streams_count == 0);
      ++next;
    }
    made_.blocks.resize(next);
    freed_.assign(next, false);
  }

  std::uint16_t stream_index(std::uint64_t stream) {
    const auto [where, is_new] =
        streams_.try_emplace(stream, static_cast<std::uint16_t>(made_.streams.size()));
    if (is_new) made_.streams.push_back(stream);
    if (where->second != active_) {
      active_before_ = active_;
      active_ = where->second;
    }
    return where->second;
  }

  op& emit(op_kind what, std::uint16_t stream, std::uint32_t block = no_block) {
    op& made = made_.ops.emplace_back();
    made.what = what;
    made.stream = stream;
    made.block = block;
    made.gap_ns = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(pending_gap_, std::numeric_limits<std::uint32_t>::max()));
    pending_gap_ = 0;
    return made;
  }

  // The program waited for the stream that it had been busy on.
  void insert_synchronize() {
    const op& before = made_.ops.back();
    if (before.what == op_kind::synchronize_stream) return;
    emit(op_kind::synchronize_stream, before.stream);
    ++made_.inserted_synchronizes;
  }

  std::uint32_t holding(std::uint64_t address) const {
    const auto* found = live_.holding(address);
    return found == nullptr ? no_block : static_cast<std::uint32_t>(found->id);
  }

  void allocate(const trace::event& each, std::uint64_t at) {
    const std::uint32_t id = block_of_event_[at];
    if (id == no_block) return;  // a failed call, or host memory
    const std::uint16_t stream = stream_index(each.stream);
    made_.blocks[id] = {each.bytes, each.sequence, stream};
    emit(op_kind::allocate, stream, id);
    if (each.bytes > 0) live_.insert({each.address, each.address + each.bytes, id});
    ++made_.allocations;
    live_bytes_ += each.bytes;
    made_.peak_live_bytes = std::max(made_.peak_live_bytes, live_bytes_);
    made_.largest_bytes = std::max(made_.largest_bytes, each.bytes);
  }

  void free(const trace::event& each, std::uint64_t at) {
    const std::uint32_t id = block_of_event_[at];
    if (id == no_block) return;
    const workload_block& block = made_.blocks[id];
    const std::uint16_t stream = stream_index(each.stream);
    if (guess_other_use_[id] && made_.streams.size() > 1) {
      const std::uint16_t other = active_before_ != stream ? active_before_ : stream_after(stream);
      emit(op_kind::use, other, id);
      ++made_.guessed_uses;
    }
    emit(op_kind::free, stream, id);
    if (block.bytes > 0) live_.erase(each.address);
    freed_[id] = true;
    ++made_.frees;
    live_bytes_ -= block.bytes;
  }

  std::uint16_t stream_after(std::uint16_t stream) const {
    return static_cast<std::uint16_t>((stream + 1u) % made_.streams.size());
  }

  // Once for each block and stream: a use holds until the free.
  void use_by(std::uint16_t stream, std::uint32_t id) {
    if (stream == made_.blocks[id].stream) return;
    if (used_.insert((std::uint64_t{id} << 16) | stream).second) emit(op_kind::use, stream, id);
  }

  void use(const trace::event& each, trace::kernel_uses::place of) {
    using place = trace::kernel_uses::place;
    if (of == place::of_refused) return;
    const std::uint32_t id = holding(each.address);
    if (id != no_block) {
      use_by(stream_index(each.stream), id);
      if (of != place::elsewhere) kernel_block_ = id;
    }
    // A kernel of which no block is known has nothing to run on.
    if (of == place::last_of_kernel && kernel_block_ != no_block)
      emit(op_kind::kernel, kernel_stream_, kernel_block_);
  }

  // A request of an inference run, a step of a training run: marks that the recorder's user set.
  void mark(const trace::event& each) {
    const std::string_view text = trace_.info.strings.at(trace::as_mark(each).text);
    if (text != "request" && text != "step") return;
    emit(op_kind::step, 0);
    ++made_.steps;
  }

  void copy(const trace::event& each) {
    const std::uint32_t to = holding(each.address);
    const std::uint32_t from = holding(trace::as_copy(each).from);
    if (to == no_block && from == no_block) return;
    const std::uint16_t stream = stream_index(each.stream);
    for (const std::uint32_t id : {to, from}) {
      if (id != no_block) use_by(stream, id);
    }
    const bool both = to != no_block && from != no_block;
    std::uint64_t bytes = each.bytes;
    for (const std::uint32_t id : {to, from}) {
      if (id != no_block) bytes = std::min(bytes, made_.blocks[id].bytes);
    }
    op& made =
        emit(both ? op_kind::copy_between : (to != no_block ? op_kind::copy_in : op_kind::copy_out),
             stream, to != no_block ? to : from);
    made.amount = bytes;
    if (both) {
      made.other = from;
      made.block = to;
    } else {
      made_.copied_bytes += bytes;
      made_.largest_copy_bytes = std::max(made_.largest_copy_bytes, bytes);
    }
  }

  void lower_event(const trace::event& each, std::uint64_t at, trace::kernel_uses::place use_of) {
    switch (each.what) {
      case action::allocate:
        if (each.status != 0) {
          ++made_.skipped_events;
        } else {
          allocate(each, at);
        }
        break;
      case action::free: free(each, at); break;
      case action::kernel:
        kernel_block_ = no_block;
        kernel_stream_ = stream_index(each.stream);
        break;
      case action::mark: mark(each); break;
      case action::use:
      case action::memset:
      case action::prefetch: use(each, use_of); break;
      case action::copy: copy(each); break;
      case action::stream_synchronize:
        emit(op_kind::synchronize_stream, stream_index(each.stream));
        break;
      case action::device_synchronize: emit(op_kind::synchronize_device, 0); break;
      case action::event_record:
        recorded_on_[trace::as_cuda_event(each).cuda_event] = stream_index(each.stream);
        break;
      case action::event_wait: {
        const auto found = recorded_on_.find(trace::as_cuda_event(each).cuda_event);
        const std::uint16_t waiter = stream_index(each.stream);
        if (found == recorded_on_.end() || found->second == waiter) break;
        emit(op_kind::order_streams, waiter).other = found->second;
        break;
      }
      case action::event_synchronize: {
        const auto found = recorded_on_.find(trace::as_cuda_event(each).cuda_event);
        if (found != recorded_on_.end()) emit(op_kind::synchronize_stream, found->second);
        break;
      }
      case action::capture_begin:
      case action::capture_end:
      case action::graph_launch:
      case action::graph_destroy: ++made_.skipped_events; break;
      case action::stream_create:
      case action::stream_destroy:
      case action::advise:
      case action::free_complete:
      case action::segment_allocate:
      case action::segment_free:
      case action::segment_map:
      case action::segment_unmap:
      case action::pool_set:
      case action::pages: break;
    }
  }

  void write_notes() {
    auto& notes = made_.notes;
    if (made_.inserted_synchronizes > 0) {
      notes.push_back(
          fmt::format("the recording has no synchronise; one was put into {} of at least {}",
                      made_.inserted_synchronizes == 1
                          ? "the one pause"
                          : fmt::format("each of {} pauses", made_.inserted_synchronizes),
                      format_duration(static_cast<double>(made_.idle_gap_ns))));
    }
    if (made_.guessed_uses > 0) {
      notes.push_back(
          fmt::format("{} used on another stream that the recording does not name; the stream "
                      "active before was taken",
                      made_.guessed_uses == 1 ? "1 block was"
                                              : fmt::format("{} blocks were", made_.guessed_uses)));
    }
    if (made_.host_blocks > 0) {
      notes.push_back(fmt::format(
          "{} left out: copies go through our own staging",
          made_.host_blocks == 1 ? "1 block of host memory is"
                                 : fmt::format("{} blocks of host memory are", made_.host_blocks)));
    }
    if (made_.skipped_events > 0) {
      notes.push_back(fmt::format("{} left out (failed calls, captures, other devices)",
                                  made_.skipped_events == 1
                                      ? "1 event was"
                                      : fmt::format("{} events were", made_.skipped_events)));
    }
    for (const std::string& each : trace_.info.warnings) notes.push_back(each);
  }

  const trace::trace_data& trace_;
  lower_options options_;
  trace::lifetimes lives_;
  workload made_;
  std::vector<std::uint32_t> block_of_event_;
  std::vector<bool> guess_other_use_, freed_;
  std::unordered_map<std::uint64_t, std::uint16_t> streams_;
  std::unordered_map<std::uint64_t, std::uint16_t>
      recorded_on_;  // event -> the stream it was last recorded on
  trace::live_index live_;
  std::uint64_t live_bytes_ = 0;
  std::uint64_t pending_gap_ = 0;
  std::unordered_set<std::uint64_t> used_;
  trace::kernel_uses kernel_uses_;
  std::uint32_t kernel_block_ = no_block;  // of the last kernel, the latest that is known
  std::uint16_t kernel_stream_ = 0;
  std::uint16_t active_ = 0, active_before_ = 0;
};

}  // namespace

result<workload> lower(const trace::trace_data& trace, const lower_options& options) {
  if (trace.events.size() >= no_block) {
    return error{error_code::bad_input, fmt::format("{}: expected fewer than 2^32 events, found {}",
                                                    trace.info.name, trace.events.size())};
  }
  auto lives = trace::find_lifetimes(trace);
  if (!lives) return lives.error();
  // A stream is a 16-bit number here; no recording has come near.
  std::unordered_map<std::uint64_t, bool> streams;
  for (const trace::event& each : trace.events) streams.try_emplace(each.stream, true);
  if (streams.size() > std::numeric_limits<std::uint16_t>::max()) {
    return error{error_code::bad_input,
                 fmt::format("{}: expected fewer than 65536 streams, found {}", trace.info.name,
                             streams.size())};
  }
  return lowering(trace, options, std::move(*lives)).run();
}

}  // namespace millpond::replay
