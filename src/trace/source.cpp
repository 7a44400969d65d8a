#include "trace/source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/quote.hpp"
#include "trace/import/csv_importer.hpp"
#include "trace/import/rmm_importer.hpp"
#include "trace/import/snapshot_importer.hpp"
#include "trace/input.hpp"
#include "trace/mpt.hpp"
#include "trace/reader.hpp"

namespace millpond::trace {
namespace {

using opened = result<std::unique_ptr<event_reader>>;

constexpr std::size_t sniffed_bytes = 4096;

opened open_reader(input_buffer from, const open_options& options) {
  auto there = from.fill(sniffed_bytes);
  if (!there) return there.error();
  if (*there == 0) {
    return error{error_code::bad_input, from.name() + ": expected a trace, found an empty file"};
  }
  const std::string_view head = from.view();
  if (is_mpt(head)) return read_mpt(std::move(from), options);
  std::string_view first_line = head.substr(0, head.find('\n'));
  if (first_line.ends_with('\r')) first_line.remove_suffix(1);
  if (is_csv_header(first_line)) return read_csv(std::move(from), options);
  if (is_rmm_header(first_line)) return read_rmm(std::move(from), options);
  if (is_pickle(head)) return read_snapshot(std::move(from), options);
  return bad_byte(
      from.name(), 0,
      "a trace (.mpt; a PyTorch memory snapshot, pickle protocol 2 to 5; CSV with the header "
      "action,time_us,addr,size,stream; an RMM log with the header "
      "Thread,Time,Action,Pointer,Size,Stream; each plain or in gzip)",
      in_quotes(head.substr(0, 24)));
}

result<trace_source> as_source(opened reader) {
  if (!reader) return reader.error();
  return trace_source(std::move(*reader));
}

}  // namespace

const char* to_string(format of) noexcept {
  switch (of) {
    case format::mpt: return "mpt";
    case format::csv: return "csv";
    case format::torch_snapshot: return "torch_snapshot";
    case format::rmm_csv: return "rmm_csv";
    case format::workload: return "workload";
  }
  return "unknown";
}

const char* to_string(read_status of) noexcept {
  switch (of) {
    case read_status::reading: return "reading";
    case read_status::complete: return "complete";
    case read_status::cut: return "cut";
  }
  return "unknown";
}

result<trace_source> open_trace(const std::string& path, const open_options& options) {
  auto from = open_input(path, options.name);
  if (!from) return from.error();
  return as_source(open_reader(std::move(*from), options));
}

result<trace_source> open_trace_bytes(std::string name, std::string bytes,
                                      const open_options& options) {
  auto from = open_input_bytes(std::move(name), std::move(bytes));
  if (!from) return from.error();
  return as_source(open_reader(std::move(*from), options));
}

result<trace_source> open_trace(const kept_input& from) {
  open_options options;
  options.name = from.name();
  return open_trace(from.path(), options);
}

result<trace_data> load_trace(const kept_input& from) {
  auto source = open_trace(from);
  if (!source) return source.error();
  return load_trace(std::move(*source));
}

result<trace_data> load_trace(const std::string& path, const open_options& options) {
  auto source = open_trace(path, options);
  if (!source) return source.error();
  return load_trace(std::move(*source));
}

// Events are gathered in pieces and moved to one vector at the end, piece by piece: a vector that
// grows by copying holds everything twice. A piece is over 32 MiB, so that the allocator gives its
// pages back at once (glibc's largest mmap threshold), and the vector's pages come as they are
// written.
result<trace_data> load_trace(trace_source source) {
  constexpr std::size_t piece_events = std::size_t{1} << 19;
  constexpr std::size_t first_events = 8192;
  std::vector<std::vector<event>> pieces(1);
  std::size_t total = 0, used = 0;
  for (;;) {
    std::vector<event>* last = &pieces.back();
    if (used == last->size()) {
      if (used < piece_events) {
        last->resize(std::max(first_events, used * 2));
      } else {
        pieces.emplace_back(piece_events);
        last = &pieces.back();
        used = 0;
      }
    }
    auto got = source.read(std::span(*last).subspan(used));
    if (!got) return got.error();
    if (*got == 0) break;
    used += *got;
    total += *got;
  }
  pieces.back().resize(used);
  trace_data all;
  if (pieces.size() == 1) {
    all.events = std::move(pieces.front());
  } else {
    all.events.reserve(total);
    for (auto& piece : pieces) {
      all.events.insert(all.events.end(), piece.begin(), piece.end());
      std::vector<event>().swap(piece);
    }
  }
  all.info = source.take_info();
  return all;
}

}  // namespace millpond::trace
