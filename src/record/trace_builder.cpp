#include "record/trace_builder.hpp"

#include "record/recording_file.hpp"
#include "trace/event_views.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace millpond::record {
namespace {

using trace::action;
using trace::copy_direction;
using trace::kind;

// Freed ranges that are remembered, to see uses after a free.
constexpr std::uint64_t most_freed = 1u << 16;

std::uint64_t extent(std::uint64_t bytes) {
  return std::max<std::uint64_t>(bytes, 1);
}

// "step(float*, int)" of "_Z4stepPfi".
std::string readable(const char* name) {
  int status = 0;
  char* made = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  if (made == nullptr) return name;
  std::string text(made);
  std::free(made);
  // Templates of libraries run to kilobytes; the beginning tells them apart.
  constexpr std::size_t longest = 240;
  if (text.size() > longest) text = text.substr(0, longest) + "...";
  return text;
}

}  // namespace

result<std::unique_ptr<trace_builder>> trace_builder::create(trace_builder_options options) {
  std::unique_ptr<trace_builder> made(new trace_builder(std::move(options)));
  if (made->options_.last_events == 0) {
    auto file = make_recording_sink(made->options_.path, made->options_.file_mode);
    if (!file) return file.error();
    made->writer_ = std::make_unique<trace::trace_writer>(std::move(*file), made->options_.meta);
    // Readable from the first moment, though nothing happens in the program.
    if (auto begun = made->writer_->flush(); !begun) return begun.error();
  }
  return made;
}

std::uint64_t trace_builder::stream_number(std::uint64_t handle, std::uint32_t thread) {
  if (handle == 0 || handle == legacy_stream) return 0;
  const std::uint64_t key =
      handle == per_thread_stream ? (std::uint64_t{thread} << 8 | per_thread_stream) : handle;
  const auto [found, is_new] = streams_.try_emplace(key, next_stream_);
  if (is_new) ++next_stream_;
  return found->second;
}

std::uint64_t trace_builder::name_number(std::uint64_t text) {
  if (text == 0) return 0;
  const auto found = names_.find(text);
  if (found != names_.end()) return found->second;
  const std::uint64_t id = strings_.intern(readable(reinterpret_cast<const char*>(text)));
  names_.emplace(text, id);
  return id;
}

void trace_builder::add_stack(std::uint32_t, std::span<const std::uintptr_t> stack) {
  std::vector<trace::frame> frames;
  if (options_.frames) frames = options_.frames(stack, strings_);
  // Stacks that differ only in frames that are not shown are one.
  stack_number_.push_back(stacks_.intern(frames));
}

void trace_builder::set_note(const std::string& name, const std::string& value) {
  for (auto& [known, text] : options_.meta.notes) {
    if (known == name) {
      text = value;
      return;
    }
  }
  options_.meta.notes.emplace_back(name, value);
}

const trace_builder::block* trace_builder::block_at(std::uint64_t address,
                                                    std::uint64_t* begin) const {
  const auto* found = live_.holding(address);
  if (found == nullptr) return nullptr;
  if (begin != nullptr) *begin = found->begin;
  const auto at = blocks_.find(found->begin);
  return at == blocks_.end() ? nullptr : &at->second;
}

void trace_builder::follow(const trace::event& at, std::uint64_t position) {
  if (at.what == action::allocate && at.status == 0 && at.address != 0) {
    const std::uint64_t end = at.address + extent(at.bytes);
    while (const auto* old = live_.overlapping(at.address, end)) {
      blocks_.erase(old->begin);
      live_.erase(old->begin);
    }
    while (const auto* old = freed_.overlapping(at.address, end)) freed_.erase(old->begin);
    live_.insert({at.address, end, 0});
    blocks_[at.address] = {at.bytes, at.of, at.device, position};
  } else if (at.what == action::free) {
    const auto found = blocks_.find(at.address);
    // Freed by one thread, the address may have gone to another one before the first learnt of it.
    if (found == blocks_.end() || found->second.position > position) return;
    const std::uint64_t end = at.address + extent(found->second.bytes);
    live_.erase(at.address);
    blocks_.erase(found);
    if (freed_.size() >= most_freed) freed_ = {};
    freed_.insert({at.address, end, 0});
  }
}

// Which side is the host's and what sort of memory it is, from the addresses.
void trace_builder::resolve_copy(trace::event& at) {
  trace::copy_operands copy = trace::as_copy(at);
  const block* to = block_at(copy.to, nullptr);
  const block* from = block_at(copy.from, nullptr);
  const auto is_host = [](const block* of) { return of == nullptr || of->of == kind::pinned; };
  if (copy.direction == copy_direction::unknown) {
    copy.direction =
        is_host(from)
            ? (is_host(to) ? copy_direction::host_to_host : copy_direction::host_to_device)
            : (is_host(to) ? copy_direction::device_to_host : copy_direction::device_to_device);
  }
  const block* host = copy.direction == copy_direction::device_to_host ? to : from;
  if (copy.direction == copy_direction::device_to_device) {
    at.of = kind::device;
  } else {
    at.of = host == nullptr ? kind::pageable : host->of;
  }
  set_operands(at, copy);
}

void trace_builder::event(const note& next, std::uint64_t position) {
  trace::event at = next.at;
  at.stack = stack_of(at.stack);
  const std::uint64_t handle = at.stream;
  at.stream = at.what == action::stream_create ? 0 : stream_number(handle, at.thread);
  bool waits = next.awaits_amend;
  switch (at.what) {
    case action::allocate:
      at.object = name_number(at.object);
      follow(at, position);
      break;
    case action::free: {
      at.object = name_number(at.object);
      const auto found = blocks_.find(at.address);
      if (at.bytes == 0 && found != blocks_.end()) at.bytes = found->second.bytes;
      if (!waits) follow(at, position);
      // A free that waits for its answer ends its block when the answer comes. Until then nothing
      // that follows can hold the address: the program has it back only after the call.
      break;
    }
    case action::kernel:
    case action::mark: at.object = name_number(at.object); break;
    case action::copy: resolve_copy(at); break;
    case action::stream_destroy: streams_.erase(handle); break;
    case action::stream_create:
      if (at.status == 0) {
        streams_[handle] = next_stream_;
        at.stream = next_stream_++;
      }
      break;
    case action::capture_begin: at.object = next_capture_++; break;
    case action::graph_launch: {
      const auto found = graph_of_.find(at.object);
      if (found != graph_of_.end()) at.object = found->second;
      break;
    }
    default: break;
  }
  if (at.what == action::kernel) {
    begin_kernel(at, position);
    arguments_left_ = next.link;
    if (arguments_left_ == 0) finish_kernel();
    return;
  }
  hold(at, position, waits);
}

// The kernel's event, and the first of its arguments; notes of more may follow.
void trace_builder::launch(const note& next, std::uint64_t position) {
  const kernel_launch& from = next.kernel;
  trace::event at;
  at.what = action::kernel;
  at.time_ns = from.time;
  at.duration_ns = saturated(next.took);
  at.stream = stream_number(from.stream, from.thread);
  at.object = name_number(text_bits(from.name));
  at.thread = from.thread;
  at.stack = stack_of(from.stack);
  at.status = from.status;
  at.device = from.device;
  begin_kernel(at, position);
  for (std::size_t n = 0; n < from.count; ++n)
    argument(from.address[n], (from.structures >> n & 1) != 0);
  arguments_left_ = next.link;
  if (arguments_left_ == 0) finish_kernel();
}

void trace_builder::begin_kernel(const trace::event& at, std::uint64_t position) {
  kernel_ = at;
  kernel_position_ = position;
  arguments_.clear();
}

void trace_builder::finish_kernel() {
  set_operands(kernel_, {.name = trace::as_kernel(kernel_).name, .uses = arguments_.size()});
  hold(kernel_, kernel_position_, false);
  for (const trace::event& each : arguments_) hold(each, kernel_position_, false);
  arguments_.clear();
}

void trace_builder::argument(std::uint64_t address, bool in_structure) {
  const block* mine = block_at(address, nullptr);
  // A leftover address inside a structure is nothing to speak of.
  if (mine == nullptr && (in_structure || freed_.holding(address) == nullptr)) return;
  const bool known = std::ranges::any_of(arguments_, [&](const trace::event& each) {
    return each.address == address || (mine != nullptr && block_at(each.address, nullptr) == mine);
  });
  if (known) return;
  trace::event use = kernel_;
  use.what = action::use;
  use.address = address;
  use.object = use.other = 0;
  set_operands(use, trace::use_operands{in_structure ? trace::use_form::structure
                                                     : trace::use_form::argument});
  use.bytes = 0;
  use.duration_ns = 0;
  arguments_.push_back(use);
}

void trace_builder::reset(const note& next, std::uint64_t position) {
  std::vector<std::uint64_t> gone;
  for (const auto& [address, each] : blocks_) {
    if (each.device == next.at.device && each.of != kind::pageable) gone.push_back(address);
  }
  std::ranges::sort(gone);
  const std::uint64_t name = name_number(next.at.object);
  for (const std::uint64_t address : gone) {
    trace::event made = next.at;
    made.what = action::free;
    made.address = address;
    made.bytes = blocks_[address].bytes;
    made.of = blocks_[address].of;
    made.object = name;
    made.stream = 0;
    follow(made, position);
    hold(made, position, false);
  }
}

result<void> trace_builder::add(const note& next, std::uint64_t position) {
  switch (next.form) {
    case note_form::event: event(next, position); break;
    case note_form::arguments:
      if (arguments_left_ == 0) break;
      for (std::size_t n = 0; n < next.words.count; ++n) {
        argument(next.words.address[n], (next.words.structures >> n & 1) != 0);
      }
      if (--arguments_left_ == 0) finish_kernel();
      break;
    case note_form::launch: launch(next, position); break;
    case note_form::amend:
      for (held& each : held_) {
        if (each.position != next.link || !each.waits) continue;
        each.at.status = next.at.status;
        each.at.duration_ns = next.at.duration_ns;
        each.waits = false;
        --waiting_;
        if (each.at.what == action::free && each.at.status == 0) follow(each.at, each.position);
        break;
      }
      break;
    case note_form::graph_made: graph_of_[next.at.object] = next.at.other; break;
    case note_form::reset: reset(next, position); break;
  }
  return let_go();
}

void trace_builder::hold(const trace::event& at, std::uint64_t position, bool waits) {
  held_.push_back({at, position, waits});
  if (waits) ++waiting_;
}

result<void> trace_builder::let_go() {
  while (!held_.empty() && (!held_.front().waits || held_.size() > options_.most_held)) {
    const held next = held_.front();
    held_.pop_front();
    if (next.waits) {
      --waiting_;
      if (next.at.what == action::free) follow(next.at, next.position);
    }
    if (auto done = write(next.at); !done) return done;
  }
  return {};
}

result<void> trace_builder::write(trace::event at) {
  at.sequence = sequence_++;
  if (writer_) {
    if (auto tables = writer_->add_new_of(strings_, stacks_); !tables) return tables;
    return writer_->add(at);
  }
  window_.push_back(at);
  if (window_.size() > options_.last_events) {
    const trace::event gone = window_.front();
    window_.pop_front();
    if (gone.what == action::allocate && gone.status == 0) before_[gone.address] = gone;
    if (gone.what == action::free && gone.status == 0) before_.erase(gone.address);
  }
  return {};
}

// The whole file anew, beside its place first: whoever kills us leaves the one before.
result<void> trace_builder::write_window() {
  auto file = output_file::create(options_.path, options_.file_mode);
  if (!file) return file.error();
  set_note("window", "the last " + std::to_string(options_.last_events) + " events, after the " +
                         std::to_string(before_.size()) + " blocks that were live before them");
  trace::trace_writer writer(trace::make_sink(*file), options_.meta);
  if (auto tables = writer.add_new_of(strings_, stacks_); !tables) return tables;
  std::uint64_t number = 0;
  for (const auto& [address, each] : before_) {
    trace::event first = each;
    first.sequence = number++;
    first.time_ns = window_.empty() ? each.time_ns : window_.front().time_ns;
    if (auto done = writer.add(first); !done) return done;
  }
  for (trace::event each : window_) {
    each.sequence = number++;
    if (auto done = writer.add(each); !done) return done;
  }
  if (auto done = writer.close(); !done) return done;
  window_bytes_ = writer.written_bytes();
  return file->put_in_place();
}

result<void> trace_builder::flush() {
  if (!writer_) return write_window();
  if (auto said = writer_->set_metadata(options_.meta); !said) return said;
  return writer_->flush();
}

result<void> trace_builder::close() {
  if (arguments_left_ > 0) {
    arguments_left_ = 0;
    finish_kernel();
  }
  for (held& each : held_) each.waits = false;
  waiting_ = 0;
  if (auto done = let_go(); !done) return done;
  if (!writer_) return write_window();
  if (auto said = writer_->set_metadata(options_.meta); !said) return said;
  return writer_->close();
}

}  // namespace millpond::record
