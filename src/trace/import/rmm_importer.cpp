#include "trace/import/rmm_importer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "trace/import/text_importer.hpp"

namespace millpond::trace {
namespace {

constexpr std::string_view header_columns = "Thread,Time,Action,Pointer,Size,Stream";
constexpr std::uint64_t second_ns = 1'000'000'000;
constexpr std::uint64_t day_ns = 86'400 * second_ns;

// HH:MM:SS, then a point and up to nine digits.
bool parse_time_of_day(std::string_view text, std::uint64_t& ns) {
  const auto two = [&](std::size_t at, std::uint64_t most, std::uint64_t& value) {
    return text.size() >= at + 2 && parse_decimal(text.substr(at, 2), value) && value <= most;
  };
  std::uint64_t hours = 0, minutes = 0, seconds = 0, fraction = 0;
  if (!two(0, 23, hours) || !two(3, 59, minutes) || !two(6, 60, seconds) || text[2] != ':' ||
      text[5] != ':') {
    return false;
  }
  std::string_view digits = text.substr(8);
  if (!digits.empty()) {
    if (digits.front() != '.' || digits.size() < 2 || digits.size() > 10) return false;
    digits.remove_prefix(1);
    if (!parse_decimal(digits, fraction)) return false;
    for (std::size_t i = digits.size(); i < 9; ++i) fraction *= 10;
  }
  ns = ((hours * 60 + minutes) * 60 + seconds) * second_ns + fraction;
  return true;
}

class rmm_reader final : public text_importer {
 public:
  explicit rmm_reader(line_reader lines) : text_importer(std::move(lines), format::rmm_csv) {
    info_.meta.recorded_by = "RMM logging_resource_adaptor";
  }

 private:
  enum column : std::size_t { thread, time, act, pointer, size, stream, column_count };

  result<void> parse(std::string_view line, event& into) override {
    fields_.split(line);
    if (fields_.count != column_count)
      return lines_.bad(fmt::format("{} fields", +column_count), line);
    const auto& text = fields_.at;
    std::uint64_t thread_id = 0;
    if (!parse_decimal(text[thread], thread_id))
      return lines_.bad("a thread's number", text[thread]);
    into.thread = static_cast<std::uint32_t>(threads_.of(thread_id));
    if (auto done = set_time(text[time], into); !done) return done;
    if (text[act] == "allocate") {
      into.what = action::allocate;
    } else if (text[act] == "allocate failure") {
      into.what = action::allocate;
      into.status = cuda_error_out_of_memory;
    } else if (text[act] == "free") {
      into.what = action::free;
    } else {
      return lines_.bad("allocate, allocate failure or free", text[act]);
    }
    if (text[pointer] != "(nil)" && !parse_hexadecimal(text[pointer], into.address)) {
      return lines_.bad("a pointer in hexadecimal or (nil)", text[pointer]);
    }
    if (!parse_decimal(text[size], into.bytes) || into.bytes > INT64_MAX) {
      return lines_.bad("a size in bytes, at most 2^63 - 1", text[size]);
    }
    std::uint64_t handle = 0;
    if (text[stream] != "(nil)" && !parse_hexadecimal(text[stream], handle)) {
      return lines_.bad("a stream in hexadecimal", text[stream]);
    }
    into.stream = stream_number(handle, into.thread);
    return {};
  }

  result<void> set_time(std::string_view text, event& into) {
    std::uint64_t of_day = 0;
    if (!parse_time_of_day(text, of_day)) return lines_.bad("a time of day, HH:MM:SS.ffffff", text);
    if (!started_) first_ns_ = last_ns_ = of_day;
    started_ = true;
    // The day that puts the row nearest to the latest one: threads may log a little out of order,
    // round midnight too.
    std::uint64_t at = days_ns_ + of_day;
    if (at + day_ns / 2 < last_ns_) {
      days_ns_ += day_ns;
      at += day_ns;
    } else if (days_ns_ > 0 && at > last_ns_ + day_ns / 2) {
      at -= day_ns;
    }
    last_ns_ = std::max(last_ns_, at);
    into.time_ns = at > first_ns_ ? at - first_ns_ : 0;
    return {};
  }

  std::uint64_t stream_number(std::uint64_t handle, std::uint32_t of_thread) {
    if (handle <= 1) return 0;
    // Threads get keys of their own for handle 2, where no pointer can be.
    return streams_.of(handle == 2 ? UINT64_MAX - of_thread : handle);
  }

  fields fields_;
  numbering threads_{0};
  numbering streams_{1};
  std::uint64_t first_ns_ = 0;
  std::uint64_t last_ns_ = 0;
  std::uint64_t days_ns_ = 0;
  bool started_ = false;
};

}  // namespace

bool is_rmm_header(std::string_view line) noexcept {
  return line == header_columns;
}

result<std::unique_ptr<event_reader>> read_rmm(input_buffer from, const open_options& options) {
  line_reader lines(std::move(from), options.line_limit_bytes);
  std::string_view header;
  auto more = lines.next(header);
  if (!more) return more.error();
  if (!*more || !is_rmm_header(header)) return lines.bad(header_columns, header);
  return std::unique_ptr<event_reader>(std::make_unique<rmm_reader>(std::move(lines)));
}

}  // namespace millpond::trace
