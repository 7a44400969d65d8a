// The driver's calls on captures and graphs.
#include <algorithm>

#include "driver/sim/state.hpp"

namespace millpond {
namespace {

using sim::call;
using sim::call_scope;
using sim::stream_record;

}  // namespace

call_result simulated_gpu::stream_capture(stream_handle stream, capture_info* out) noexcept {
  call_scope c(*state_, call::stream_capture);
  if (c.refused()) return c.refusal();
  const stream_record* const s = state_->find_stream(stream);
  if (s == nullptr) return c.answer(driver_status::invalid_handle);
  *out = {};
  const driver_status implicit = state_->implicit_capture(*s, state::on_conflict::tells);
  if (implicit != driver_status::success) return c.answer(implicit);
  if (s->capture != nullptr) {
    out->status = s->capture->invalidated ? capture_status::invalidated : capture_status::active;
    out->id = s->capture->id;
    out->graph = s->capture->graph;
  }
  return c.done();
}

call_result simulated_gpu::exchange_capture_mode(capture_mode* mode) noexcept {
  call_scope c(*state_, call::exchange_capture_mode);
  if (c.refused()) return c.refusal();
  capture_mode& own =
      state_->thread_modes.emplace(sim::thread_number(), capture_mode::global).first->second;
  std::swap(own, *mode);
  return c.done();
}

call_result simulated_gpu::capture_begin(stream_handle stream, capture_mode mode) noexcept {
  call_scope c(*state_, call::capture_begin);
  if (c.refused()) return c.refusal();
  stream_record* const s = state_->find_stream(stream);
  if (s == nullptr) return c.answer(driver_status::invalid_handle);
  if (s == &s->context->legacy) return c.answer(driver_status::capture_unsupported);
  if (s->capture != nullptr) return c.answer(driver_status::illegal_state);
  auto capture = std::make_unique<sim::capture_record>();
  capture->id = state_->next_capture++;
  capture->mode = mode;
  capture->thread = sim::thread_number();
  capture->origin = s;
  capture->body = std::make_shared<sim::graph_body>();
  capture->body->capture_id = capture->id;
  capture->body->on_end = [gpu = state_.get()](sim::graph_body& body) {
    for (const std::uint64_t block : body.pool_blocks) {
      const sim::region* const r = gpu->memory->find_start(block);
      if (r == nullptr || r->kind != sim::region_kind::pool_block) continue;
      if (sim::pool* const pool = gpu->pools.find(r->pool)) {
        pool->free(block, gpu->order.now(gpu->primary().legacy.line),
                   gpu->order.everything([](std::uint64_t) { return true; }), gpu->device_end_ns,
                   gpu->now_ns);
      }
    }
    if (gpu->check) gpu->check->capture_released(body.capture_id);
    gpu->retired.insert(gpu->retired.end(), body.retained.begin(), body.retained.end());
  };
  auto graph = std::make_unique<sim::graph_record>();
  graph->body = capture->body;
  graph->capturing = true;
  capture->graph = state_->graphs.add(std::move(graph));
  if (state_->check) state_->check->capture_opened(capture->id);
  state_->join_capture(*s, *capture);
  state_->captures.emplace(capture->id, std::move(capture));
  return c.done();
}

call_result simulated_gpu::capture_end(stream_handle stream, graph_handle* out) noexcept {
  call_scope c(*state_, call::capture_end);
  if (c.refused()) return c.refusal();
  *out = nullptr;
  stream_record* const s = state_->find_stream(stream);
  if (s == nullptr) return c.answer(driver_status::invalid_handle);
  if (s->capture == nullptr) return c.answer(driver_status::illegal_state);
  sim::capture_record& capture = *s->capture;
  // CUDA_ERROR_STREAM_CAPTURE_UNMATCHED: begun on another stream.
  if (capture.origin != s) return c.answer(static_cast<driver_status>(903));
  if (capture.mode != capture_mode::relaxed && capture.thread != sim::thread_number()) {
    return c.answer(driver_status::capture_wrong_thread);
  }
  driver_status status =
      capture.invalidated ? driver_status::capture_invalidated : driver_status::success;
  if (status == driver_status::success) {
    // Every stream that joined must have come back: its last work before the origin's last point.
    for (const auto& branch : capture.branches) {
      const sim::point last{branch->line.number, branch->last_node_tick};
      if (last.tick != 0 && !state_->order.ordered(last, s->branch->line))
        status = driver_status::capture_unjoined;
    }
  }
  const graph_handle graph = capture.graph;
  state_->end_capture(capture);
  if (status != driver_status::success) {
    (void)state_->graphs.remove(graph);
    return c.answer(status);
  }
  state_->graphs.find(graph)->capturing = false;
  *out = graph;
  return c.done();
}

call_result simulated_gpu::graph_retain(graph_handle graph, void (*destroy)(void*),
                                        void* data) noexcept {
  call_scope c(*state_, call::graph_retain);
  if (c.refused()) return c.refusal();
  sim::graph_record* const g = state_->graphs.find(graph);
  if (g == nullptr || destroy == nullptr) return c.answer(driver_status::invalid_value);
  g->body->retained.push_back({destroy, data});
  return c.done();
}

call_result simulated_gpu::graph_instantiate(graph_exec_handle* out, graph_handle graph) noexcept {
  call_scope c(*state_, call::graph_instantiate);
  if (c.refused()) return c.refusal();
  const sim::graph_record* const g = state_->graphs.find(graph);
  if (g == nullptr || g->capturing) return c.answer(driver_status::invalid_value);
  auto exec = std::make_unique<sim::graph_exec_record>();
  exec->body = g->body;
  *out = state_->execs.add(std::move(exec));
  return c.done();
}

call_result simulated_gpu::graph_launch(graph_exec_handle exec, stream_handle stream) noexcept {
  call_scope c(*state_, call::graph_launch);
  if (c.refused()) return c.refusal();
  sim::graph_exec_record* const e = state_->execs.find(exec);
  stream_record* const s = state_->find_stream(stream);
  if (e == nullptr) return c.answer(driver_status::invalid_value);
  if (s == nullptr) return c.answer(driver_status::invalid_handle);
  if (const auto implicit = state_->implicit_capture(*s); implicit != driver_status::success) {
    return c.answer(implicit);
  }
  state_->check_pollution(*s, call::graph_launch);
  if (s->capture == nullptr) return c.answer(state_->queue_graph(*s, *e));
  // Launched into a capture: a child graph, here its nodes one after another on the branch.
  s->capture->body->children.push_back(e->body);
  for (sim::graph_node node : e->body->nodes) {
    // What this capture freed before is gone for the child's work, though not for its own.
    if (node.memory != nullptr)
      node.memory = state_->check->child_node(*node.memory, s->name(), node.name, state_->now_ns);
    const driver_status status = state_->add_node(*s, std::move(node));
    if (status != driver_status::success) return c.answer(status);
  }
  return c.done();
}

call_result simulated_gpu::graph_destroy(graph_handle graph) noexcept {
  call_scope c(*state_, call::graph_destroy);
  if (c.refused()) return c.refusal();
  const sim::graph_record* const g = state_->graphs.find(graph);
  if (g == nullptr || g->capturing) return c.answer(driver_status::invalid_value);
  (void)state_->graphs.remove(graph);
  return c.done();
}

call_result simulated_gpu::graph_exec_destroy(graph_exec_handle exec) noexcept {
  call_scope c(*state_, call::graph_exec_destroy);
  if (c.refused()) return c.refusal();
  if (state_->execs.find(exec) == nullptr) return c.answer(driver_status::invalid_value);
  (void)state_->execs.remove(exec);
  return c.done();
}

}  // namespace millpond
