// Notes to a trace: the reader's side of the ring. Numbers streams, graphs and names, finds the
// blocks that kernels' arguments point into, and writes .mpt. One thread; knows no CUDA and no
// clock.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "millpond/base/result.hpp"
#include "record/note.hpp"
#include "trace/live_index.hpp"
#include "trace/tables.hpp"
#include "trace/writer.hpp"

namespace millpond::record {

struct trace_builder_options {
  std::string path;  // of the trace
  unsigned file_mode = 0644;
  trace::metadata meta;
  std::uint64_t last_events =
      0;  // keep only so many, and write them at each flush; 0: all, as they come
  // The program's frames of a stack of return addresses, innermost first. Empty: stacks have no
  // frames.
  std::function<std::vector<trace::frame>(std::span<const std::uintptr_t>, trace::string_table&)>
      frames;
  std::size_t most_held =
      1u << 16;  // events that wait for an amend before them; then it is not waited for
};

class trace_builder {
 public:
  static result<std::unique_ptr<trace_builder>> create(trace_builder_options options);

  // A note and its position in the ring. Errors are the file's, and stay.
  result<void> add(const note& next, std::uint64_t position);
  // A stack that later notes name, ids in order from 1.
  void add_stack(std::uint32_t id, std::span<const std::uintptr_t> stack);
  void set_note(const std::string& name, const std::string& value);
  void set_dropped(std::uint64_t events) { options_.meta.dropped_events = events; }
  void set_device_name(const std::string& name) { options_.meta.device_name = name; }
  // What was added is in the file from now on.
  result<void> flush();
  // Events that still wait go as they are. The file is complete.
  result<void> close();

  [[nodiscard]] std::uint64_t events() const noexcept { return sequence_; }
  [[nodiscard]] std::uint64_t written_bytes() const noexcept {
    return writer_ ? writer_->written_bytes() : window_bytes_;
  }

 private:
  struct held {
    trace::event at;
    std::uint64_t position;
    bool waits;
  };
  struct block {
    std::uint64_t bytes = 0;
    trace::kind of{};
    std::uint16_t device = 0;
    std::uint64_t position = 0;  // of its allocation's note
  };
  explicit trace_builder(trace_builder_options options) : options_(std::move(options)) {}

  void event(const note& next, std::uint64_t position);
  void argument(std::uint64_t address, bool in_structure);
  void launch(const note& next, std::uint64_t position);
  void begin_kernel(const trace::event& at, std::uint64_t position);
  void finish_kernel();
  void resolve_copy(trace::event& at);
  void follow(const trace::event& at, std::uint64_t position);  // keeps the blocks up to date
  void reset(const note& next, std::uint64_t position);
  void hold(const trace::event& at, std::uint64_t position, bool waits);
  result<void> let_go();  // what waits for nothing
  result<void> write(trace::event at);
  result<void> write_window();
  [[nodiscard]] std::uint64_t stream_number(std::uint64_t handle, std::uint32_t thread);
  [[nodiscard]] std::uint64_t name_number(std::uint64_t text);
  // The table's number of a recorder's stack.
  [[nodiscard]] std::uint32_t stack_of(std::uint32_t id) const {
    return id != 0 && id <= stack_number_.size() ? stack_number_[id - 1] : id;
  }
  [[nodiscard]] const block* block_at(std::uint64_t address, std::uint64_t* begin) const;

  trace_builder_options options_;
  std::unique_ptr<trace::trace_writer> writer_;
  trace::string_table strings_;
  trace::stack_table stacks_;
  std::vector<std::uint32_t> stack_number_;  // in stacks_, of the recorder's ids from 1
  std::uint64_t sequence_ = 0;
  std::uint64_t window_bytes_ = 0;
  std::deque<held> held_;
  std::uint64_t waiting_ = 0;

  // A kernel, how many notes of its arguments are to come, and the blocks that were found in those
  // that came.
  trace::event kernel_;
  std::uint64_t kernel_position_ = 0, arguments_left_ = 0;
  std::vector<trace::event> arguments_;

  std::unordered_map<std::uint64_t, std::uint64_t> streams_;   // handle -> number
  std::unordered_map<std::uint64_t, std::uint64_t> names_;     // pointer -> string id
  std::unordered_map<std::uint64_t, std::uint64_t> graph_of_;  // executable graph -> graph
  std::unordered_map<std::uint64_t, block> blocks_;            // by address
  trace::live_index live_, freed_;
  std::uint64_t next_stream_ = 1, next_capture_ = 1;

  // Of last_events: the window, and the blocks that were live when it began.
  std::deque<trace::event> window_;
  std::map<std::uint64_t, trace::event> before_;
};

}  // namespace millpond::record
