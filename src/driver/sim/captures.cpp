// Captures: who is in one, what it forbids, and how it ends.
#include <algorithm>

#include "driver/sim/state.hpp"

namespace millpond {

sim::capture_record* simulated_gpu::state::find_capture(std::uint64_t id) {
  const auto it = captures.find(id);
  return it == captures.end() ? nullptr : it->second.get();
}

void simulated_gpu::state::invalidate(sim::capture_record& capture) {
  capture.invalidated = true;
}

// An unsafe call is forbidden to a thread in global mode while any capture in global mode runs, and
// to one that is not in relaxed mode while a capture that it began itself, not relaxed, runs
// (cuThreadExchangeStreamCaptureMode's contract). A refused call breaks those captures.
bool simulated_gpu::state::capture_forbids(std::uint64_t thread, const char* call) {
  const auto found = thread_modes.find(thread);
  const capture_mode own = found == thread_modes.end() ? capture_mode::global : found->second;
  if (own == capture_mode::relaxed) return false;
  bool forbidden = false;
  for (auto& [id, capture] : captures) {
    const bool mine = capture->thread == thread && capture->mode != capture_mode::relaxed;
    const bool theirs = own == capture_mode::global && capture->mode == capture_mode::global;
    if (!mine && !theirs) continue;
    forbidden = true;
    invalidate(*capture);
    if (check) check->forbidden(call, id, now_ns);
  }
  return forbidden;
}

void simulated_gpu::state::break_capture(std::uint64_t id, const char* call) {
  auto* const capture = find_capture(id);
  if (capture == nullptr) return;
  invalidate(*capture);
  if (check) check->forbidden(call, id, now_ns);
}

driver_status simulated_gpu::state::implicit_capture(const sim::stream_record& stream,
                                                     on_conflict what) {
  if (captures.empty() || &stream != &stream.context->legacy) return driver_status::success;
  driver_status status = driver_status::success;
  for (auto& [id, capture] : captures) {
    const bool blocking =
        std::any_of(capture->branches.begin(), capture->branches.end(), [&](const auto& branch) {
          return branch->stream != nullptr && branch->stream->blocking &&
                 branch->stream->context == stream.context;
        });
    if (!blocking) continue;
    status = driver_status::capture_implicit;
    if (what == on_conflict::breaks) invalidate(*capture);
  }
  return status;
}

void simulated_gpu::state::check_pollution(const sim::stream_record& stream, sim::call which) {
  if (stream.capture == nullptr || !check || !sim::in_library()) return;
  check->pollution(sim::name_of(which), stream.capture->id, now_ns);
}

driver_status simulated_gpu::state::add_node(sim::stream_record& stream, sim::graph_node node) {
  sim::capture_record& capture = *stream.capture;
  if (capture.invalidated) return driver_status::capture_invalidated;
  sim::capture_branch& branch = *stream.branch;
  branch.last_node_tick = order.now(branch.line).tick;
  branch.end_offset_ns += std::max<std::uint64_t>(1, static_cast<std::uint64_t>(node.duration_ns));
  capture.body->length_ns = std::max(capture.body->length_ns, branch.end_offset_ns);
  node.end_offset_ns = branch.end_offset_ns;
  capture.body->nodes.push_back(std::move(node));
  return driver_status::success;
}

void simulated_gpu::state::join_capture(sim::stream_record& stream, sim::capture_record& capture) {
  auto branch = std::make_unique<sim::capture_branch>();
  branch->stream = &stream;
  branch->line = order.make_branch(capture.id);
  stream.capture = &capture;
  stream.branch = branch.get();
  capture.branches.push_back(std::move(branch));
}

void simulated_gpu::state::end_capture(sim::capture_record& capture) {
  for (const auto& branch : capture.branches) {
    if (branch->stream == nullptr) continue;
    branch->stream->capture = nullptr;
    branch->stream->branch = nullptr;
  }
  captures.erase(capture.id);
}

}  // namespace millpond
