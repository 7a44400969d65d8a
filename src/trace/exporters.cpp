#include "trace/exporters.hpp"

#include "trace/event_views.hpp"

#include <fmt/format.h>

#include <iterator>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace millpond::trace {
namespace {

// The writer owns its sink; an exporter's belongs to the caller.
class borrowed_sink final : public sink {
 public:
  explicit borrowed_sink(sink& to) : to_(to) {}
  result<void> write(std::span<const std::uint8_t> bytes) override { return to_.write(bytes); }

 private:
  sink& to_;
};

// Gives `take` the events in pieces: as they are read, or all at once.
template <class Take>
result<void> each_piece(trace_source& from, Take&& take) {
  std::vector<event> batch(4096);
  for (;;) {
    auto got = from.read(batch);
    if (!got) return got.error();
    if (*got == 0) return {};
    if (auto done = take(std::span<const event>(batch).first(*got), from.info()); !done)
      return done;
  }
}
template <class Take>
result<void> each_piece(const trace_data& from, Take&& take) {
  return take(std::span(from.events), from.info);
}
const trace_info& info_of(const trace_source& from) {
  return from.info();
}
const trace_info& info_of(const trace_data& from) {
  return from.info;
}

template <class From>
result<export_counts> to_mpt(From& from, sink& to, const writer_options& options) {
  export_counts counts;
  trace_writer writer(std::make_unique<borrowed_sink>(to), info_of(from).meta, options);
  auto done =
      each_piece(from, [&](std::span<const event> events, const trace_info& info) -> result<void> {
        if (auto tables = writer.add_new_of(info.strings, info.stacks); !tables) return tables;
        for (const event& each : events) {
          if (auto added = writer.add(each); !added) return added;
        }
        counts.written += events.size();
        return {};
      });
  if (!done) return done.error();
  const trace_info& info = info_of(from);
  if (auto tables = writer.add_new_of(info.strings, info.stacks); !tables) return tables.error();
  if (auto again = writer.set_metadata(info.meta); !again)
    return again.error();  // it may have grown
  if (auto closed = writer.close(); !closed) return closed.error();
  return counts;
}

std::string_view csv_name(const event& of, const string_table& strings) {
  if (!is_out_of_the_cpus_reach(of.of)) return "";  // the history is PyTorch's, of GPU memory alone
  switch (of.what) {
    case action::allocate: return of.status == 0 ? "alloc" : "oom";
    case action::free: return "free_requested";
    case action::free_complete: return "free_completed";
    case action::segment_allocate: return "segment_alloc";
    case action::segment_free: return "segment_free";
    case action::segment_map: return "segment_map";
    case action::segment_unmap: return "segment_unmap";
    case action::mark: return strings.at(as_mark(of).text) == "snapshot" ? "snapshot" : "";
    default: return "";
  }
}

template <class From>
result<export_counts> to_csv(From& from, sink& to) {
  export_counts counts;
  std::string text = "action,time_us,addr,size,stream\n";
  const auto write_out = [&]() -> result<void> {
    auto done = to.write({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
    text.clear();
    return done;
  };
  auto done =
      each_piece(from, [&](std::span<const event> events, const trace_info& info) -> result<void> {
        for (const event& each : events) {
          const std::string_view name = csv_name(each, info.strings);
          if (name.empty()) {
            ++counts.left_out;
            continue;
          }
          ++counts.written;
          const std::uint64_t address = name == "oom" ? free_bytes_at_failure(each) : each.address;
          fmt::format_to(std::back_inserter(text), "{},{},{:x},{},{}\n", name, each.time_ns / 1000,
                         address, each.bytes, each.stream);
          if (text.size() >= std::size_t{256} << 10) {
            if (auto wrote = write_out(); !wrote) return wrote;
          }
        }
        return {};
      });
  if (!done) return done.error();
  if (auto wrote = write_out(); !wrote) return wrote.error();
  return counts;
}

}  // namespace

result<export_counts> export_mpt(trace_source& from, sink& to, const writer_options& options) {
  return to_mpt(from, to, options);
}
result<export_counts> export_mpt(const trace_data& from, sink& to, const writer_options& options) {
  return to_mpt(from, to, options);
}
result<export_counts> export_csv(trace_source& from, sink& to) {
  return to_csv(from, to);
}
result<export_counts> export_csv(const trace_data& from, sink& to) {
  return to_csv(from, to);
}

}  // namespace millpond::trace
