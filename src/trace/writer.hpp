// Writes .mpt: dumb and fast. Events are coded into a chunk in memory; a full chunk is compressed
// and handed to the sink in one write, so that a killed program leaves whole chunks and at most one
// cut one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/output_file.hpp"
#include "millpond/base/result.hpp"
#include "trace/event.hpp"
#include "trace/tables.hpp"

struct ZSTD_CCtx_s;

namespace millpond::trace {

// Where chunks go. The writer calls it from the thread that called the writer.
class sink {
 public:
  sink() = default;
  sink(const sink&) = delete;
  sink& operator=(const sink&) = delete;
  virtual ~sink() = default;
  // All of the bytes or an error; after an error the sink should hold what it held before.
  virtual result<void> write(std::span<const std::uint8_t> bytes) = 0;
};

// A file, made new or emptied. Each write is one system call; one that comes back short (a full
// disk) is taken back by cutting the file to its length before, and is output_failure with the
// system's reason.
[[nodiscard]] result<std::unique_ptr<sink>> make_file_sink(const std::string& path);
// Into a file that is put in its place when it is complete; `to` outlives the sink.
[[nodiscard]] std::unique_ptr<sink> make_sink(output_file& to);
// Into an open file, which is the sink's from here on; errors call it `path`.
[[nodiscard]] std::unique_ptr<sink> make_descriptor_sink(int file, std::string path);
// Appends to `into`, which outlives the sink.
[[nodiscard]] std::unique_ptr<sink> make_memory_sink(std::string& into);

struct writer_options {
  std::size_t chunk_bytes = std::size_t{256} << 10;  // before compression; at most 8 MiB
  int compression_level = 3;                         // zstd's, 0 for none
};

// Not thread-safe: a recorder calls it from its one background thread. The first error of the sink
// is kept and returned by every later call; what was written before stays readable.
class trace_writer {
 public:
  trace_writer(std::unique_ptr<sink> to, const metadata& meta, const writer_options& options = {});
  trace_writer(trace_writer&&) noexcept;
  trace_writer& operator=(trace_writer&&) noexcept;
  ~trace_writer();  // does not close: a file not closed reads as cut

  result<void> add(const event& next);
  // Ids count up from 1, each before the first event that names it. invalid_argument on any other
  // id, a text over 1 MiB or a stack over 4096 frames.
  result<void> add_string(std::uint32_t id, std::string_view text);
  result<void> add_stack(std::uint32_t id, std::span<const frame> frames);
  // What the tables hold and the file does not.
  result<void> add_new_of(const string_table& strings, const stack_table& stacks);
  // Replaces what was said before.
  result<void> set_metadata(const metadata& meta);
  // Makes the file readable up to here. Costs a chunk: not for every event.
  result<void> flush();
  // Writes what is left and the end. Every later call is not_permitted.
  result<void> close();

  [[nodiscard]] std::uint64_t events() const noexcept { return events_; }
  [[nodiscard]] std::uint64_t written_bytes() const noexcept { return written_; }

 private:
  struct free_context {
    void operator()(ZSTD_CCtx_s* context) const noexcept;
  };
  std::uint8_t* room(std::size_t bytes);
  result<void> put_record(std::uint8_t type, std::span<const std::uint8_t> body);
  result<void> put_text_field(std::uint8_t field, std::string_view text);
  result<void> put_number_field(std::uint8_t field, std::uint64_t value);
  result<void> after_record();
  result<void> fail(error why);

  std::unique_ptr<sink> to_;
  writer_options options_;
  std::unique_ptr<ZSTD_CCtx_s, free_context> context_;
  std::vector<std::uint8_t> raw_;  // the chunk being filled: used_ bytes of it
  std::size_t used_ = 0;
  std::vector<std::uint8_t> out_;  // what goes to the sink
  event last_;                     // what the next event is predicted from
  std::uint64_t last_sequence_ = 0;
  std::uint64_t events_ = 0;
  std::uint64_t written_ = 0;
  std::uint32_t chunks_ = 0;
  std::uint32_t strings_ = 1;
  std::uint32_t stacks_ = 1;
  std::optional<error> failure_;
};

}  // namespace millpond::trace
