// A trace as a stream of events, whatever file it came from. `open_trace` looks at the first bytes,
// not at the name: .mpt, the CSV of PyTorch's memory history, a PyTorch memory snapshot (pickle),
// RMM's log, each plain or in gzip.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millpond/base/result.hpp"
#include "millpond/base/units.hpp"
#include "trace/event.hpp"
#include "trace/kept_input.hpp"
#include "trace/tables.hpp"

namespace millpond::trace {

// `workload` is a synthetic one: no file (workload.hpp).
enum class format : std::uint8_t { mpt, csv, torch_snapshot, rmm_csv, workload };
[[nodiscard]] const char* to_string(format of) noexcept;

enum class read_status : std::uint8_t {
  reading,   // events may follow
  complete,  // the file ended where it should
  cut,       // the file stops in the middle (a killed program); what came before was read
};
[[nodiscard]] const char* to_string(read_status of) noexcept;

struct open_options {
  std::string name = {};  // what errors and the page call the file; empty: its path
  // A text line longer than this is refused: no log that we read has one near it.
  std::uint64_t line_limit_bytes = 64 * KiB;
  // What reading one snapshot may take, a hostile one too. A small file may take less: 64 MiB and
  // 16 times what was read of it.
  std::uint64_t memory_limit_bytes = 8 * GiB;
  // How much of a snapshot's events is kept in memory, some 10 bytes each; the others go to a
  // temporary file without a name.
  std::uint64_t spool_limit_bytes = 256 * MiB;
  // What the strings and stacks of one trace may take.
  std::uint64_t table_limit_bytes = 1 * GiB;
  // Bytes behind the end of an .mpt are an error. Whoever follows a growing file does not look: it
  // would wait for them.
  enum class rest : std::uint8_t { refused, not_looked_at };
  rest behind_the_end = rest::refused;
};

// What a reader learns beside the events; tables grow while events are read.
struct trace_info {
  std::string name;  // of the file
  format from{};
  metadata meta;
  string_table strings;
  stack_table stacks;
  std::vector<std::string>
      warnings;  // the first few of each sort; a warning never repeats for each line
  read_status status = read_status::reading;
  std::uint64_t cut_at_byte = 0;  // where status is cut
};

// One reader: implemented once a format, in order of the program, from 0. Not thread-safe.
class event_reader {
 public:
  event_reader() = default;
  event_reader(const event_reader&) = delete;
  event_reader& operator=(const event_reader&) = delete;
  virtual ~event_reader() = default;
  // Writes the next events and returns how many; 0 only at the end (info().status says which end).
  // bad_input names the file, the line or byte, what was expected and what was there; the events
  // before it were delivered. After an error or the end every call answers the same again.
  virtual result<std::size_t> read(std::span<event> into) = 0;
  [[nodiscard]] const trace_info& info() const noexcept { return info_; }
  // For when the reading is over.
  [[nodiscard]] trace_info take_info() { return std::move(info_); }

 protected:
  trace_info info_;
};

// An opened trace. Movable.
class trace_source {
 public:
  explicit trace_source(std::unique_ptr<event_reader> reader) : reader_(std::move(reader)) {}
  result<std::size_t> read(std::span<event> into) { return reader_->read(into); }
  // Calls visit(const event&) for each event left.
  template <class Visit>
  result<void> for_each(Visit&& visit) {
    std::vector<event> batch(1024);
    for (;;) {
      auto got = read(batch);
      if (!got) return got.error();
      if (*got == 0) return {};
      for (const event& each : std::span(batch).first(*got)) visit(each);
    }
  }
  [[nodiscard]] const trace_info& info() const noexcept { return reader_->info(); }
  [[nodiscard]] trace_info take_info() { return reader_->take_info(); }

 private:
  std::unique_ptr<event_reader> reader_;
};

[[nodiscard]] result<trace_source> open_trace(const std::string& path,
                                              const open_options& options = {});
[[nodiscard]] result<trace_source> open_trace(const kept_input& from);
// The same from bytes in memory; `name` is what errors call them.
[[nodiscard]] result<trace_source> open_trace_bytes(std::string name, std::string bytes,
                                                    const open_options& options = {});

// A whole trace in memory: 80 bytes an event.
struct trace_data {
  std::vector<event> events;
  trace_info info;
};
[[nodiscard]] result<trace_data> load_trace(const std::string& path,
                                            const open_options& options = {});
[[nodiscard]] result<trace_data> load_trace(const kept_input& from);
[[nodiscard]] result<trace_data> load_trace(trace_source source);

}  // namespace millpond::trace
