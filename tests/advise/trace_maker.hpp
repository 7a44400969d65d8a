// Traces written by hand, event by event, for the tests of the diagnosis.
#pragma once
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "advise/explain.hpp"
#include "trace/source.hpp"
#include "trace/writer.hpp"

namespace millpond::advise {

class trace_maker {
 public:
  using action = trace::action;
  using kind = trace::kind;

  trace::event& add(action what) {
    trace::event made;
    made.sequence = events_.size();
    made.time_ns = made.sequence * 1000;
    made.what = what;
    events_.push_back(made);
    return events_.back();
  }
  std::uint64_t text(const std::string& words) { return strings_.intern(words); }
  // A stack of one frame, so that places differ.
  std::uint32_t at(const std::string& function) {
    const trace::frame frames[] = {
        {strings_.intern(function), strings_.intern(function + ".cu"), 7}};
    return stacks_.intern(frames);
  }
  void allocate(std::uint64_t address, std::uint64_t bytes, kind of = kind::device,
                std::uint64_t stream = 0, const std::string& from = "make") {
    trace::event& made = add(action::allocate);
    made.address = address;
    made.bytes = bytes;
    made.of = of;
    made.stream = stream;
    made.stack = at(from);
    made.object = text(of == kind::driver_pool ? "cudaMallocAsync"
                       : of == kind::pinned    ? "cudaHostAlloc"
                       : of == kind::managed   ? "cudaMallocManaged"
                                               : "cudaMalloc");
  }
  trace::event& free(std::uint64_t address, kind call = kind::device, std::uint64_t stream = 0,
                     std::int32_t status = 0) {
    trace::event& made = add(action::free);
    made.address = address;
    made.of = call;
    made.stream = stream;
    made.status = status;
    made.object = text(call == kind::driver_pool ? "cudaFreeAsync"
                       : call == kind::pinned    ? "cudaFreeHost"
                                                 : "cudaFree");
    return made;
  }
  void kernel(std::uint64_t stream, const std::vector<std::uint64_t>& addresses,
              trace::use_form form = trace::use_form::argument) {
    trace::event& made = add(action::kernel);
    made.stream = stream;
    made.object = text("step");
    made.other = addresses.size();
    for (const std::uint64_t each : addresses) {
      trace::event& use = add(action::use);
      use.stream = stream;
      use.address = each;
      use.object = static_cast<std::uint64_t>(form);
    }
  }
  void on(action what, std::uint64_t stream, std::uint64_t object = 0) {
    trace::event& made = add(what);
    made.stream = stream;
    made.object = object;
  }
  void ended() { meta_.notes.emplace_back("ended", "exit"); }
  void noted(const std::string& name) { meta_.notes.emplace_back(name, "yes"); }
  void dropped(std::uint64_t events) { meta_.dropped_events = events; }

  [[nodiscard]] std::string bytes() const {
    std::string made;
    trace::trace_writer writer(trace::make_memory_sink(made), meta_);
    if (!writer.add_new_of(strings_, stacks_)) return {};
    for (const trace::event& each : events_) {
      if (!writer.add(each)) return {};
    }
    if (!writer.close()) return {};
    return made;
  }

 private:
  std::vector<trace::event> events_;
  trace::string_table strings_;
  trace::stack_table stacks_;
  trace::metadata meta_;
};

// An explanation that holds the tables its ids are of.
struct explained_trace {
  explanation what;
  trace::trace_info info;
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> made;
    for (const finding& each : what.findings) made.emplace_back(facts_of(each.which).name);
    return made;
  }
};
inline explained_trace explain_bytes(std::string bytes) {
  auto source = trace::open_trace_bytes("made", std::move(bytes));
  if (!source) throw std::runtime_error(source.error().message);
  auto made = explain(*source);
  if (!made) throw std::runtime_error(made.error().message);
  return {std::move(*made), source->take_info()};
}
inline explained_trace explain_made(const trace_maker& of) {
  return explain_bytes(of.bytes());
}

}  // namespace millpond::advise
