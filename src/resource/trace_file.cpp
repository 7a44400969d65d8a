#include "millpond/trace/trace_file.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "millpond/memory/call_site.hpp"
#include "trace/event_views.hpp"
#include "trace/tables.hpp"
#include "trace/writer.hpp"

namespace millpond {

struct trace_file::inside {
  // One resource's events, held until those before them are there.
  struct channel {
    std::uint64_t first = 0;  // of its sequence numbers
    // By place, which is the number less the first: 2^64 - 1 may come in the middle.
    std::uint64_t expected = 0;
    std::multimap<std::uint64_t, trace::event> held;
  };
  // A thread that is stopped between its number and its event must not hold the others back for
  // ever.
  static constexpr std::size_t most_held = 4096;
  static constexpr std::chrono::microseconds between_looks{100};

  explicit inside(trace::trace_writer to, trace::metadata facts)
      : writer(std::move(to)), meta(std::move(facts)) {}

  void add(channel& from, trace::event next) {
    const call_site at = current_call_site();
    const std::lock_guard lock(mutex);
    if (closed) return;
    next.stack = stack_of(at);
    const std::uint64_t place = next.sequence - from.first;
    if (place < from.expected) return write(next);  // nobody waits for it any more
    from.held.emplace(place, next);
    while (!from.held.empty() &&
           (from.held.begin()->first <= from.expected || from.held.size() > most_held)) {
      const auto first = from.held.begin();
      from.expected = first->first + 1;
      write(first->second);
      from.held.erase(first);
    }
  }

  std::uint32_t stack_of(const call_site& at) {
    if (!at.known()) return 0;
    std::string symbol = at.text != nullptr ? at.text : "";
    const char* function = at.where.function_name();
    if (at.where.line() != 0 && function != nullptr && *function != '\0') {
      symbol = symbol.empty() ? function : symbol + " (" + function + ")";
    }
    const trace::frame frames[] = {{strings.intern(symbol),
                                    at.where.line() != 0 ? strings.intern(at.where.file_name()) : 0,
                                    static_cast<std::uint32_t>(at.where.line())}};
    return stacks.intern(frames);
  }

  void write(trace::event next) {
    next.sequence = sequence++;
    result<void> done = writer.add_new_of(strings, stacks);
    if (done) done = writer.add(next);
    if (!done && !failure) failure = done.error();
  }

  [[nodiscard]] bool holds_any() const {
    return std::ranges::any_of(channels, [](const auto& each) { return !each->held.empty(); });
  }
  // What is still to come of the places before comes after them.
  void let_go() {
    for (const auto& each : channels) {
      for (const auto& [place, event] : each->held) {
        each->expected = place + 1;
        write(event);
      }
      each->held.clear();
    }
  }
  // Until the events that others are held for have come, but not for long: one thread's part
  // between its number and its event is well under a microsecond, unless it was stopped there.
  void wait_for_those_on_their_way() {
    for (int looks = 0; looks < 20; ++looks) {
      {
        const std::lock_guard lock(mutex);
        if (!holds_any()) return;
      }
      std::this_thread::sleep_for(between_looks);
    }
  }

  std::mutex mutex;  // a leaf
  trace::trace_writer writer;
  trace::metadata meta;
  trace::string_table strings;
  trace::stack_table stacks;
  std::vector<std::shared_ptr<channel>> channels;
  std::uint64_t sequence = 0;
  std::optional<error> failure;
  bool closed = false;
};

trace_file::trace_file(std::unique_ptr<inside> made) : inside_(std::move(made)) {}

result<std::unique_ptr<trace_file>> trace_file::create(const std::string& path,
                                                       trace_file_options options) {
  auto to = trace::make_file_sink(path);
  if (!to) return to.error();
  trace::metadata meta;
  meta.program = std::move(options.program);
  meta.device_name = std::move(options.device_name);
  meta.simulated = options.simulated;
  meta.recorded_by = "millpond::trace_file";
  trace::trace_writer writer(std::move(*to), meta);
  if (auto begun = writer.flush(); !begun) return begun.error();
  return std::unique_ptr<trace_file>(
      new trace_file(std::make_unique<inside>(std::move(writer), std::move(meta))));
}

trace_file::~trace_file() {
  static_cast<void>(close());
}

trace_resource::sink trace_file::sink(std::uint64_t first_sequence) {
  auto mine = std::make_shared<inside::channel>();
  mine->first = first_sequence;
  {
    const std::lock_guard lock(inside_->mutex);
    inside_->channels.push_back(mine);
  }
  return [to = inside_.get(), mine](const trace::event& next) { to->add(*mine, next); };
}

void trace_file::mark(const std::string& words) {
  const std::lock_guard lock(inside_->mutex);
  if (inside_->closed) return;
  trace::event made;
  made.what = trace::action::mark;
  set_operands(made, trace::mark_operands{inside_->strings.intern(words)});
  inside_->write(made);
}

result<void> trace_file::flush() {
  inside_->wait_for_those_on_their_way();
  const std::lock_guard lock(inside_->mutex);
  if (!inside_->closed) inside_->let_go();
  if (inside_->failure) return *inside_->failure;
  return inside_->closed ? result<void>{} : inside_->writer.flush();
}

result<void> trace_file::close(program_state state) {
  const std::lock_guard lock(inside_->mutex);
  if (!inside_->closed) {
    inside_->closed = true;
    inside_->let_go();
    if (state == program_state::ended) inside_->meta.notes.emplace_back("ended", "exit");
    result<void> done = inside_->writer.set_metadata(inside_->meta);
    if (done) done = inside_->writer.close();
    if (!done && !inside_->failure) inside_->failure = done.error();
  }
  if (inside_->failure) return *inside_->failure;
  return {};
}

}  // namespace millpond
