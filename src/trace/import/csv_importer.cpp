#include "trace/import/csv_importer.hpp"

#include <fmt/format.h>

#include <array>
#include <optional>

#include "trace/event_views.hpp"
#include "trace/import/text_importer.hpp"

namespace millpond::trace {
namespace {

// `free_requested` is the program's free. `free_completed` is PyTorch letting the block go, at once
// or after the recorded uses on other streams have passed; it is kept as an event of its own, since
// only its lateness says that there were such uses.
constexpr std::array torch_actions{
    torch_action{"alloc", action::allocate},
    torch_action{"free_requested", action::free},
    torch_action{"free_completed", action::free_complete},
    torch_action{"free", action::free},
    torch_action{"segment_alloc", action::segment_allocate},
    torch_action{"segment_free", action::segment_free},
    torch_action{"segment_map", action::segment_map},
    torch_action{"segment_unmap", action::segment_unmap},
    torch_action{"oom", action::allocate},  // failed: its status says so
    torch_action{"snapshot", action::mark},
};
constexpr std::string_view known_actions =
    "an action (alloc, free_requested, free_completed, segment_alloc, segment_free, segment_map, "
    "segment_unmap, snapshot or oom)";

struct columns {
  std::optional<std::size_t> action, time, address, size, stream, device;
  std::size_t count = 0;
};

columns find_columns(std::string_view header) {
  columns found;
  fields names;
  names.split(header);
  found.count = names.count;
  for (std::size_t i = 0; i < std::min(names.count, fields::most); ++i) {
    if (names.at[i] == "action") found.action = i;
    if (names.at[i] == "time_us") found.time = i;
    if (names.at[i] == "addr") found.address = i;
    if (names.at[i] == "size") found.size = i;
    if (names.at[i] == "stream") found.stream = i;
    if (names.at[i] == "device") found.device = i;
  }
  return found;
}

std::string_view without_mark(std::string_view line) {
  if (line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);  // UTF-8's byte-order mark
  return line;
}

class csv_reader final : public text_importer {
 public:
  csv_reader(line_reader lines, columns where)
      : text_importer(std::move(lines), format::csv), where_(where) {
    info_.meta.recorded_by = "PyTorch memory history";
    snapshot_text_ = info_.strings.intern("snapshot");
  }

 private:
  result<void> parse(std::string_view line, event& into) override {
    fields_.split(line);
    if (fields_.count != where_.count) {
      return lines_.bad(fmt::format("{} fields", where_.count), line);
    }
    const std::string_view name = fields_.at[*where_.action];
    const torch_action* known = find_torch_action(name);
    if (known == nullptr) return lines_.bad(known_actions, name);
    into.what = known->what;
    if (auto done = numbers(into); !done) return done;
    if (known->name == "snapshot") set_operands(into, mark_operands{snapshot_text_});
    if (known->name == "oom") {  // its addr is what the device had free
      set_free_bytes_at_failure(into, into.address);
      into.address = 0;
      into.status = cuda_error_out_of_memory;
    }
    return {};
  }

  result<void> numbers(event& into) {
    if (where_.time) {
      std::uint64_t time_us = 0;
      const std::string_view text = fields_.at[*where_.time];
      if (!parse_decimal(text, time_us) || time_us > UINT64_MAX / 1000) {
        return lines_.bad("a time in whole microseconds", text);
      }
      into.time_ns = time_us * 1000;
      if (into.time_ns < last_time_ns_ && !time_warned_) {
        time_warned_ = true;
        info_.warnings.push_back(fmt::format("{}:{}: time goes back from {} us to {} us",
                                             lines_.name(), lines_.line_number(),
                                             last_time_ns_ / 1000, time_us));
      }
      last_time_ns_ = into.time_ns;
    }
    const std::string_view address = fields_.at[*where_.address];
    if (!parse_hexadecimal(address, into.address)) {
      return lines_.bad("an address in hexadecimal", address);
    }
    const std::string_view size = fields_.at[*where_.size];
    if (!parse_decimal(size, into.bytes) || into.bytes > INT64_MAX) {
      return lines_.bad("a size in bytes, at most 2^63 - 1", size);
    }
    if (where_.stream) {
      const std::string_view text = fields_.at[*where_.stream];
      if (!parse_decimal(text, into.stream)) return lines_.bad("a stream's number", text);
    }
    if (where_.device) {
      const std::string_view text = fields_.at[*where_.device];
      std::uint64_t device = 0;
      if (!parse_decimal(text, device) || device > UINT16_MAX) {
        return lines_.bad("a device's number", text);
      }
      into.device = static_cast<std::uint16_t>(device);
    }
    return {};
  }

  columns where_;
  fields fields_;
  std::uint64_t last_time_ns_ = 0;
  std::uint32_t snapshot_text_ = 0;
  bool time_warned_ = false;
};

}  // namespace

const torch_action* find_torch_action(std::string_view name) noexcept {
  for (const torch_action& each : torch_actions) {
    if (each.name == name) return &each;
  }
  return nullptr;
}

bool is_csv_header(std::string_view line) noexcept {
  const columns found = find_columns(without_mark(line));
  return found.action && found.address && found.size;
}

result<std::unique_ptr<event_reader>> read_csv(input_buffer from, const open_options& options) {
  line_reader lines(std::move(from), options.line_limit_bytes);
  std::string_view header;
  auto more = lines.next(header);
  if (!more) return more.error();
  const columns where = find_columns(without_mark(header));
  if (!*more || !where.action || !where.address || !where.size) {
    return lines.bad("a header with the columns action, addr and size", header);
  }
  if (where.count > fields::most) return lines.bad("at most 32 columns", header);
  return std::unique_ptr<event_reader>(std::make_unique<csv_reader>(std::move(lines), where));
}

}  // namespace millpond::trace
