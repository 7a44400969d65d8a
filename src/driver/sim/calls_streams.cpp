// The driver's calls on streams and events.
#include <algorithm>

#include "driver/sim/state.hpp"

namespace millpond {
namespace {

using sim::call;
using sim::call_scope;

using sim::stream_record;

// CUDA_ERROR_STREAM_CAPTURE_ISOLATION: a capture would depend on work outside it.
constexpr auto capture_isolation = static_cast<driver_status>(905);

}  // namespace

call_result simulated_gpu::context_synchronize() noexcept {
  call_scope c(*state_, call::context_synchronize);
  if (c.refused()) return c.refusal();
  const sim::context_record& current = *state_->current_context();
  // As the card does: not beside any capture, whatever its mode and the thread's.
  if (state_->break_captures_of(current, "cuCtxSynchronize"))
    return c.answer(driver_status::capture_unsupported);
  state_->wait_for_context(c.lock(), current);
  state_->pools_after_synchronize();
  return c.answer(state_->lost);
}

// --- Streams
// ----------------------------------------------------------------------------------------

call_result simulated_gpu::stream_create(stream_handle* out) noexcept {
  call_scope c(*state_, call::stream_create);
  if (c.refused()) return c.refusal();
  auto made = std::make_unique<stream_record>();
  made->context = state_->current_context();
  made->line = state_->order.make(made->context->number);
  *out = state_->streams.add(std::move(made));
  return c.done();
}

// Returns at once; work that is queued goes on, and the handle is the next stream's.
call_result simulated_gpu::stream_destroy(stream_handle stream) noexcept {
  call_scope c(*state_, call::stream_destroy);
  if (c.refused()) return c.refusal();
  if (state_->streams.find(stream) == nullptr) return c.answer(driver_status::invalid_handle);
  state_->drop_stream(stream);
  return c.done();
}

// One that is there.
void simulated_gpu::state::drop_stream(stream_handle stream) {
  stream_record* const s = streams.find(stream);
  if (s->capture != nullptr) {
    sim::capture_record& capture = *s->capture;
    invalidate(capture);
    s->branch->stream = nullptr;
    if (capture.origin == s) {
      // Nobody can end it any more.
      const graph_handle graph = capture.graph;
      end_capture(capture);
      (void)graphs.remove(graph);
    }
  }
  (void)streams.remove(stream);
}

call_result simulated_gpu::stream_id(stream_handle stream, std::uint64_t* id) noexcept {
  call_scope c(*state_, call::stream_id);
  if (c.refused()) return c.refusal();
  const stream_record* const s = state_->find_stream(stream);
  if (s == nullptr) return c.answer(driver_status::invalid_handle);
  // As the card does (H200, driver 580.159): refused, and the question alone breaks the capture, in
  // every mode.
  if (s->capture != nullptr) {
    state_->invalidate(*s->capture);
    return c.answer(driver_status::capture_unsupported);
  }
  if (const driver_status status = state_->implicit_capture(*s, state::on_conflict::breaks);
      status != driver_status::success) {
    return c.answer(status);
  }
  *id = s->line.number;
  return c.done();
}

call_result simulated_gpu::stream_device(stream_handle stream, int* ordinal) noexcept {
  call_scope c(*state_, call::stream_device);
  if (c.refused()) return c.refusal();
  if (state_->find_stream(stream) == nullptr) return c.answer(driver_status::invalid_handle);
  *ordinal = state_->info.ordinal;
  return c.done();
}

call_result simulated_gpu::stream_query(stream_handle stream) noexcept {
  call_scope c(*state_, call::stream_query);
  if (c.refused()) return c.refusal();
  stream_record* const s = state_->find_stream(stream);
  if (s == nullptr) return c.answer(driver_status::invalid_handle);
  if (s->capture != nullptr) {
    state_->invalidate(*s->capture);
    if (state_->check) state_->check->forbidden("cuStreamQuery", s->capture->id, state_->now_ns);
    return c.answer(driver_status::capture_unsupported);
  }
  if (const auto implicit = state_->implicit_capture(*s); implicit != driver_status::success) {
    return c.answer(implicit);
  }
  state_->join_legacy(*s);
  if (s->end_ns > state_->settled_ns()) return c.answer(driver_status::not_ready);
  state_->order.observe(state_->order.snapshot(s->line));
  return c.done();
}

call_result simulated_gpu::stream_synchronize(stream_handle stream) noexcept {
  call_scope c(*state_, call::stream_synchronize);
  if (c.refused()) return c.refusal();
  stream_record* s = state_->find_stream(stream);
  if (s == nullptr) return c.answer(driver_status::invalid_handle);
  if (s->capture != nullptr) {
    state_->invalidate(*s->capture);
    if (state_->check)
      state_->check->forbidden("cuStreamSynchronize", s->capture->id, state_->now_ns);
    return c.answer(driver_status::capture_unsupported);
  }
  if (const auto implicit = state_->implicit_capture(*s); implicit != driver_status::success) {
    return c.answer(implicit);
  }
  state_->join_legacy(*s);
  const sim::vector_clock done = state_->order.snapshot(s->line);
  state_->wait_until(c.lock(), s->end_ns);
  state_->order.observe(done);
  state_->pools_after_synchronize();
  return c.answer(state_->lost);
}

call_result simulated_gpu::stream_wait_event(stream_handle stream, event_handle event) noexcept {
  call_scope c(*state_, call::stream_wait_event);
  if (c.refused()) return c.refusal();
  stream_record* const s = state_->find_stream(stream);
  const sim::event_record* const e = state_->events.find(event);
  if (s == nullptr || e == nullptr) return c.answer(driver_status::invalid_handle);
  if (const auto implicit = state_->implicit_capture(*s); implicit != driver_status::success) {
    return c.answer(implicit);
  }
  state_->check_pollution(*s, call::stream_wait_event);
  sim::capture_record* const source = state_->find_capture(e->capture_id);
  if (s->capture != nullptr) {
    if (s->capture->invalidated) return c.answer(driver_status::capture_invalidated);
    if (source == s->capture) {
      s->branch->end_offset_ns = std::max(s->branch->end_offset_ns, e->offset_ns);
      state_->order.order_after(s->branch->line, e->clock);
      return c.done();
    }
    if (e->capture_id == 0 && e->complete_ns == 0)
      return c.done();  // never recorded: nothing to wait for
    state_->invalidate(*s->capture);
    return c.answer(capture_isolation);
  }
  if (e->capture_id != 0) {
    // Waiting for an event of a capture takes the stream into it.
    if (source == nullptr || source->invalidated) return c.answer(driver_status::captured_event);
    state_->join_capture(*s, *source);
    s->branch->end_offset_ns = e->offset_ns;
    state_->order.order_after(s->branch->line, e->clock);
    return c.done();
  }
  state_->join_legacy(*s);
  s->end_ns = std::max(s->end_ns, e->complete_ns);
  state_->order.order_after(s->line, e->clock);
  return c.done();
}

// --- Events
// -----------------------------------------------------------------------------------------

call_result simulated_gpu::event_create(event_handle* out) noexcept {
  call_scope c(*state_, call::event_create);
  if (c.refused()) return c.refusal();
  auto made = std::make_unique<sim::event_record>();
  made->context = state_->current_context()->family();
  *out = state_->events.add(std::move(made));
  return c.done();
}

call_result simulated_gpu::event_destroy(event_handle event) noexcept {
  call_scope c(*state_, call::event_destroy);
  if (c.refused()) return c.refusal();
  if (state_->events.find(event) == nullptr) return c.answer(driver_status::invalid_handle);
  (void)state_->events.remove(event);
  return c.done();
}

call_result simulated_gpu::event_record(event_handle event, stream_handle stream) noexcept {
  call_scope c(*state_, call::event_record);
  if (c.refused()) return c.refusal();
  sim::event_record* const e = state_->events.find(event);
  stream_record* const s = state_->find_stream(stream);
  // Another context's event is none for this stream.
  if (e == nullptr || s == nullptr || e->context != s->context->family())
    return c.answer(driver_status::invalid_handle);
  if (const auto implicit = state_->implicit_capture(*s); implicit != driver_status::success) {
    return c.answer(implicit);
  }
  state_->check_pollution(*s, call::event_record);
  if (s->capture != nullptr) {
    if (s->capture->invalidated) return c.answer(driver_status::capture_invalidated);
    e->capture_id = s->capture->id;
    e->offset_ns = s->branch->end_offset_ns;
    e->clock = state_->order.snapshot(s->branch->line);
    return c.done();
  }
  state_->join_legacy(*s);
  e->capture_id = 0;
  e->complete_ns = std::max(s->end_ns, state_->now_ns);
  e->clock = state_->order.snapshot(s->line);
  return c.done();
}

call_result simulated_gpu::event_query(event_handle event) noexcept {
  call_scope c(*state_, call::event_query);
  if (c.refused()) return c.refusal();
  const sim::event_record* const e = state_->events.find(event);
  if (e == nullptr) return c.answer(driver_status::invalid_handle);
  if (e->capture_id != 0) {
    state_->break_capture(e->capture_id, "cuEventQuery");
    return c.answer(driver_status::captured_event);
  }
  if (e->complete_ns > state_->settled_ns()) return c.answer(driver_status::not_ready);
  state_->order.observe(e->clock);
  return c.done();
}

call_result simulated_gpu::event_synchronize(event_handle event) noexcept {
  call_scope c(*state_, call::event_synchronize);
  if (c.refused()) return c.refusal();
  const sim::event_record* const e = state_->events.find(event);
  if (e == nullptr) return c.answer(driver_status::invalid_handle);
  if (e->capture_id != 0) {
    state_->break_capture(e->capture_id, "cuEventSynchronize");
    return c.answer(driver_status::captured_event);
  }
  const sim::vector_clock done = e->clock;
  state_->wait_until(c.lock(), e->complete_ns);
  state_->order.observe(done);
  state_->pools_after_synchronize();
  return c.answer(state_->lost);
}

// All work of the primary context and its green parts, that of destroyed streams too; no stream
// waits for it. Work of a context that cuCtxCreate made is not covered, whichever is current.
call_result simulated_gpu::context_record_event(event_handle event) noexcept {
  call_scope c(*state_, call::context_record_event);
  if (c.refused()) return c.refusal();
  sim::event_record* const e = state_->events.find(event);
  const sim::context_record& primary = state_->primary();
  if (e == nullptr || e->context != &primary) return c.answer(driver_status::invalid_handle);
  if (state_->break_captures_of(primary, "cuCtxRecordEvent"))
    return c.answer(driver_status::capture_unsupported);
  e->capture_id = 0;
  e->complete_ns = std::max(state_->end_of(primary), state_->now_ns);
  e->clock = state_->order.everything(
      [&](std::uint64_t number) { return primary.covers(*state_->contexts[number]); });
  return c.done();
}

}  // namespace millpond
