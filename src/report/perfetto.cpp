#include "report/perfetto.hpp"

#include <fmt/format.h>

#include <array>
#include <iterator>
#include <unordered_map>
#include <vector>

#include "base/json_text.hpp"
#include "millpond/base/units.hpp"
#include "report/explanation.hpp"
#include "trace/event_views.hpp"

namespace millpond::report {
namespace {

using trace::action;

class perfetto_writer {
 public:
  perfetto_writer(trace::sink& to, const trace::trace_info& info) : to_(to), info_(info) {
    text_ = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";
    put("{{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{{\"name\":{}}}}}",
        json_string(info.meta.program.empty() ? info.name : info.meta.program));
  }

  result<void> add(const trace::event& at) {
    switch (at.what) {
      case action::allocate: allocated(at); break;
      case action::free: freed(at); break;
      case action::segment_allocate:
      case action::segment_map: reserve(at, at.bytes); break;
      case action::segment_free:
      case action::segment_unmap: reserve(at, std::uint64_t{0} - at.bytes); break;
      case action::use:
      case action::free_complete: break;
      default: slice(at, name_of(at), "work"); break;
    }
    return text_.size() >= std::size_t{256} << 10 ? write_out() : result<void>{};
  }
  result<void> finish() {
    text_ += "\n]}\n";
    return write_out();
  }
  [[nodiscard]] std::uint64_t entries() const noexcept { return entries_; }

 private:
  struct row {
    std::vector<std::uint64_t> ends;  // of the slices that are open, outermost first
    std::uint64_t last_begin = 0;
  };
  static constexpr std::uint64_t rows_apart =
      1'000'000;  // between track numbers; streams are numbered from 0 up
  struct live_block {
    std::uint64_t bytes;
    trace::kind of;
    std::uint64_t stream;
  };

  template <class... Values>
  void put(fmt::format_string<Values...> form, Values&&... values) {
    if (entries_++ > 0) text_ += ",\n";
    fmt::format_to(std::back_inserter(text_), form, std::forward<Values>(values)...);
  }
  result<void> write_out() {
    auto done = to_.write({reinterpret_cast<const std::uint8_t*>(text_.data()), text_.size()});
    text_.clear();
    return done;
  }
  static double us(const trace::event& at) { return static_cast<double>(at.time_ns) / 1e3; }

  // Perfetto drops a slice that begins within another of its track and ends after it (a call of one
  // thread while another thread's runs): such a one goes to a further track of the stream.
  std::uint64_t track(std::uint64_t stream, std::uint64_t begin_ns, std::uint64_t end_ns) {
    auto& rows = rows_[stream];
    for (std::size_t which = 0;; ++which) {
      const bool fresh = which == rows.size();
      if (fresh) rows.emplace_back();
      row& on = rows[which];
      if (begin_ns < on.last_begin) continue;
      while (!on.ends.empty() && on.ends.back() <= begin_ns) on.ends.pop_back();
      if (!on.ends.empty() && on.ends.back() < end_ns) continue;
      on.ends.push_back(end_ns);
      on.last_begin = begin_ns;
      const std::uint64_t number = stream + 1 + which * rows_apart;
      if (!fresh) return number;
      std::string name = stream == 0 ? "default stream" : fmt::format("stream {}", stream);
      if (which > 0) name += fmt::format(" ({})", which + 1);
      put("{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":{}}}}}",
          number, json_string(name));
      return number;
    }
  }

  std::string name_of(const trace::event& at) const {
    const std::string_view text = info_.strings.at(trace::name_of(at));
    if ((at.what == action::kernel || at.what == action::mark) && !text.empty())
      return std::string(text);
    return trace::to_string(at.what);
  }

  // The track that it is on.
  std::uint64_t slice(const trace::event& at, const std::string& name, const char* category) {
    const std::uint64_t length_ns =
        at.duration_ns > 0 ? at.duration_ns : 1000;  // of no known length: enough to be seen
    const std::uint64_t on = track(at.stream, at.time_ns, at.time_ns + length_ns);
    std::string stack;
    for (const std::string& line : stack_lines(at.stack, info_))
      stack += (stack.empty() ? "" : "\n") + line;
    put("{{\"ph\":\"X\",\"pid\":1,\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f},\"name\":{},\"cat\":\"{}"
        "\",\"args\":{{\"event\":{},"
        "\"bytes\":{},\"address\":\"{:#x}\",\"kind\":\"{}\"{}}}}}",
        on, us(at), static_cast<double>(length_ns) / 1e3, json_string(name), category, at.sequence,
        at.bytes, at.address, trace::to_string(at.of),
        stack.empty() ? "" : ",\"stack\":" + json_string(stack));
    return on;
  }

  void count(const trace::event& at, trace::kind of) {
    put("{{\"ph\":\"C\",\"pid\":1,\"ts\":{:.3f},\"name\":\"live {}\",\"args\":{{\"bytes\":{}}}}}",
        us(at), trace::to_string(of), live_bytes_[static_cast<std::size_t>(of)]);
  }

  void allocated(const trace::event& at) {
    if (at.status != 0) {
      slice(at, fmt::format("out of memory: {}", format_bytes(at.bytes)), "failure");
      return;
    }
    if (const auto under = live_.find(at.address); under != live_.end()) {
      live_bytes_[static_cast<std::size_t>(under->second.of)] -= under->second.bytes;
    }
    const std::uint64_t on =
        slice(at, fmt::format("allocate {}", format_bytes(at.bytes)), "memory");
    if (const auto flow = freed_.find(at.address); flow != freed_.end()) {
      put("{{\"ph\":\"f\",\"bp\":\"e\",\"pid\":1,\"tid\":{},\"ts\":{:.3f},\"id\":{},\"name\":"
          "\"reuse\",\"cat\":\"reuse\"}}",
          on, us(at), flow->second);
      freed_.erase(flow);
    }
    live_[at.address] = {at.bytes, at.of, at.stream};
    live_bytes_[static_cast<std::size_t>(at.of)] += at.bytes;
    count(at, at.of);
  }

  void freed(const trace::event& at) {
    const auto found = live_.find(at.address);
    if (found == live_.end()) {
      slice(at, "free of an unknown block", "failure");
      return;
    }
    const std::uint64_t on =
        slice(at, fmt::format("free {}", format_bytes(found->second.bytes)), "memory");
    const std::uint64_t id = ++flows_;
    put("{{\"ph\":\"s\",\"pid\":1,\"tid\":{},\"ts\":{:.3f},\"id\":{},\"name\":\"reuse\",\"cat\":"
        "\"reuse\"}}",
        on, us(at), id);
    freed_[at.address] = id;
    live_bytes_[static_cast<std::size_t>(found->second.of)] -= found->second.bytes;
    const trace::kind of = found->second.of;
    live_.erase(found);
    count(at, of);
  }

  void reserve(const trace::event& at, std::uint64_t change) {
    reserved_ += change;
    put("{{\"ph\":\"C\",\"pid\":1,\"ts\":{:.3f},\"name\":\"reserved\",\"args\":{{\"bytes\":{}}}}}",
        us(at), reserved_);
  }

  trace::sink& to_;
  const trace::trace_info& info_;
  std::string text_;
  std::uint64_t entries_ = 0, flows_ = 0, reserved_ = 0;
  std::array<std::uint64_t, 5> live_bytes_{};
  std::unordered_map<std::uint64_t, live_block> live_;
  std::unordered_map<std::uint64_t, std::uint64_t> freed_;  // address to the arrow that began there
  std::unordered_map<std::uint64_t, std::vector<row>> rows_;  // by stream
};

}  // namespace

result<trace::export_counts> export_perfetto(trace::trace_source& from, trace::sink& to) {
  perfetto_writer writer(to, from.info());
  trace::export_counts counts;
  std::vector<trace::event> batch(4096);
  for (;;) {
    const auto got = from.read(batch);
    if (!got) return got.error();
    if (*got == 0) break;
    for (std::size_t n = 0; n < *got; ++n) {
      const bool said = batch[n].what != action::use && batch[n].what != action::free_complete;
      ++(said ? counts.written : counts.left_out);
      if (auto done = writer.add(batch[n]); !done) return done.error();
    }
  }
  if (auto done = writer.finish(); !done) return done.error();
  return counts;
}

}  // namespace millpond::report
