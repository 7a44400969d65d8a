#include "advise/graph_book.hpp"

#include <algorithm>

#include "trace/event_views.hpp"

namespace millpond::advise {

bool graph_book::graph::owns(std::uint64_t address) const noexcept {
  return std::ranges::any_of(
      own, [&](const auto& each) { return address >= each.first && address < each.second; });
}

void graph_book::capture_began(const trace::event& at) {
  const std::uint64_t capture = trace::as_capture(at).capture;
  captures_[at.stream] = capture;
  open_[capture] = {};
}

void graph_book::capture_ended(const trace::event& at) {
  const auto capture = captures_.find(at.stream);
  if (capture == captures_.end()) return;
  const std::uint64_t ended = capture->second;
  const std::uint64_t id = trace::as_graph(at).graph;
  if (id != 0) graphs_[id] = std::move(open_[ended]);
  open_.erase(ended);
  std::erase_if(captures_, [&](const auto& each) { return each.second == ended; });
  std::erase_if(events_, [&](const auto& each) { return each.second == ended; });
}

bool graph_book::event_recorded(const trace::event& at) {
  const std::uint64_t cuda_event = trace::as_cuda_event(at).cuda_event;
  const auto capture = captures_.find(at.stream);
  if (capture == captures_.end()) {
    events_.erase(cuda_event);
    return false;
  }
  events_[cuda_event] = capture->second;
  return true;
}

bool graph_book::event_waited(const trace::event& at) {
  const auto captured = events_.find(trace::as_cuda_event(at).cuda_event);
  if (captured != events_.end()) {
    captures_[at.stream] = captured->second;
    return true;
  }
  return captures(at.stream);
}

void graph_book::graph_destroyed(const trace::event& at) {
  graphs_.erase(trace::as_graph(at).graph);
}

void graph_book::keep(std::uint64_t stream, const trace::event& node) {
  const auto capture = captures_.find(stream);
  if (capture == captures_.end()) return;
  graph& into = open_[capture->second];
  if (into.nodes.size() < most_nodes)
    into.nodes.push_back(node);
  else
    into.whole = false;
}

void graph_book::allocates(const trace::event& at) {
  const auto capture = captures_.find(at.stream);
  if (capture == captures_.end()) return;
  open_[capture->second].own.emplace_back(at.address,
                                          at.address + std::max<std::uint64_t>(at.bytes, 1));
}

bool graph_book::own_of_capture(std::uint64_t stream, std::uint64_t address) const {
  const auto capture = captures_.find(stream);
  if (capture == captures_.end()) return false;
  const auto into = open_.find(capture->second);
  return into != open_.end() && into->second.owns(address);
}

const graph_book::graph* graph_book::find(std::uint64_t id) const {
  const auto found = graphs_.find(id);
  return found == graphs_.end() ? nullptr : &found->second;
}

}  // namespace millpond::advise
