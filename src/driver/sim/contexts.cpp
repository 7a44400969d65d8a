// Contexts: which is current on a thread, what is of which, and the calls that make and change
// them.
#include <algorithm>

#include "driver/sim/state.hpp"

namespace millpond {
namespace {

constexpr std::uintptr_t first_context = 0x560000000000;
constexpr std::uintptr_t between_contexts = 64;

// CUDA_ERROR_CONTEXT_IS_DESTROYED.
constexpr auto context_is_destroyed = static_cast<driver_status>(709);

}  // namespace

// --- The state's part
// -------------------------------------------------------------------------------

simulated_gpu::context simulated_gpu::state::handle_of(const sim::context_record& which) noexcept {
  return reinterpret_cast<context>(first_context + which.number * between_contexts);
}

// A destroyed context's handle is nobody's again.
sim::context_record* simulated_gpu::state::find_context(context which) const noexcept {
  const std::uintptr_t offset = reinterpret_cast<std::uintptr_t>(which) - first_context;
  const std::size_t index = offset / between_contexts;
  if (offset % between_contexts != 0 || index >= contexts.size()) return nullptr;
  return contexts[index].get();
}

sim::context_record& simulated_gpu::state::add_context(sim::context_record* primary_of_green) {
  auto made = std::make_unique<sim::context_record>();
  made->number = contexts.size();
  made->primary = primary_of_green;
  made->legacy.line = order.make(made->number);
  made->legacy.blocking = true;
  made->legacy.context = made.get();
  contexts.push_back(std::move(made));
  return *contexts.back();
}

sim::context_record* simulated_gpu::state::current_context() const noexcept {
  const bool has_primary = options.threads == simulated_gpu_options::new_threads::have_primary;
  sim::context_record* const first = has_primary ? &primary() : nullptr;
  if (stacks.empty()) return first;
  const auto found = stacks.find(sim::thread_number());
  if (found == stacks.end()) return first;
  return found->second.empty() ? nullptr : found->second.back();
}

std::vector<sim::context_record*>& simulated_gpu::state::own_contexts() {
  const auto [found, fresh] = stacks.try_emplace(sim::thread_number());
  if (fresh && options.threads == simulated_gpu_options::new_threads::have_primary)
    found->second.push_back(&primary());
  return found->second;
}

driver_status simulated_gpu::state::refusal_of_context() const noexcept {
  const sim::context_record* const current = current_context();
  if (current == nullptr) return driver_status::invalid_context;
  return current->destroyed ? context_is_destroyed : driver_status::success;
}

void simulated_gpu::state::ends(sim::stream_record& stream, std::uint64_t end_ns) noexcept {
  stream.end_ns = end_ns;
  stream.context->end_ns = std::max(stream.context->end_ns, end_ns);
  device_end_ns = std::max(device_end_ns, end_ns);
}

std::uint64_t simulated_gpu::state::end_of(const sim::context_record& which) const noexcept {
  std::uint64_t end = 0;
  for (const auto& each : contexts) {
    if (which.covers(*each)) end = std::max(end, each->end_ns);
  }
  return end;
}

bool simulated_gpu::state::break_captures_of(const sim::context_record& which, const char* call) {
  bool any = false;
  for (auto& [id, capture] : captures) {
    const bool in =
        std::any_of(capture->branches.begin(), capture->branches.end(), [&](const auto& branch) {
          return branch->stream != nullptr && which.covers(*branch->stream->context);
        });
    if (!in) continue;
    any = true;
    invalidate(*capture);
    if (check) check->forbidden(call, id, now_ns);
  }
  return any;
}

// --- The calls
// --------------------------------------------------------------------------------------

using sim::call;
using sim::call_scope;

simulated_gpu::context simulated_gpu::primary_context() const noexcept {
  const std::lock_guard lock(state_->mutex);
  return state_->handle_of(state_->primary());
}

simulated_gpu::context simulated_gpu::current_context() const noexcept {
  const std::lock_guard lock(state_->mutex);
  const sim::context_record* const current = state_->current_context();
  return current == nullptr ? nullptr : state_->handle_of(*current);
}

call_result simulated_gpu::context_create(context* out) noexcept {
  call_scope c(*state_, call::context_create);
  if (c.refused()) return c.refusal();
  sim::context_record& made = state_->add_context(nullptr);
  state_->own_contexts().push_back(&made);
  *out = state_->handle_of(made);
  return c.done();
}

call_result simulated_gpu::green_context_create(context* out) noexcept {
  call_scope c(*state_, call::green_context_create);
  if (c.refused()) return c.refusal();
  *out = state_->handle_of(state_->add_context(&state_->primary()));
  return c.done();
}

// Its work is over first; its streams and events go with it.
call_result simulated_gpu::context_destroy(context which) noexcept {
  call_scope c(*state_, call::context_destroy);
  if (c.refused()) return c.refusal();
  sim::context_record* const gone = state_->find_context(which);
  if (gone == nullptr || gone->destroyed || gone == &state_->primary())
    return c.answer(driver_status::invalid_context);
  state_->wait_for_context(c.lock(), *gone);
  if (gone->destroyed) return c.answer(driver_status::invalid_context);
  gone->destroyed = true;
  for (const stream_handle each : state_->streams.handles_where(
           [&](const sim::stream_record& s) { return s.context == gone; })) {
    state_->drop_stream(each);
  }
  for (const event_handle each : state_->events.handles_where(
           [&](const sim::event_record& e) { return e.context == gone; })) {
    (void)state_->events.remove(each);
  }
  auto& own = state_->own_contexts();
  if (!own.empty() && own.back() == gone) own.pop_back();
  return c.done();
}

call_result simulated_gpu::context_push(context which) noexcept {
  call_scope c(*state_, call::context_push);
  if (c.refused()) return c.refusal();
  sim::context_record* const wanted = state_->find_context(which);
  if (wanted == nullptr || wanted->destroyed) return c.answer(driver_status::invalid_context);
  state_->own_contexts().push_back(wanted);
  return c.done();
}

call_result simulated_gpu::context_pop(context* out) noexcept {
  call_scope c(*state_, call::context_pop);
  if (c.refused()) return c.refusal();
  auto& own = state_->own_contexts();
  if (own.empty()) return c.answer(driver_status::invalid_context);
  if (out != nullptr) *out = state_->handle_of(*own.back());
  own.pop_back();
  return c.done();
}

call_result simulated_gpu::context_set_current(context which) noexcept {
  call_scope c(*state_, call::set_current);
  if (c.refused()) return c.refusal();
  sim::context_record* const wanted = state_->find_context(which);
  if (which != nullptr && (wanted == nullptr || wanted->destroyed))
    return c.answer(driver_status::invalid_context);
  if (wanted == state_->current_context()) return c.done();
  auto& own = state_->own_contexts();
  if (!own.empty()) own.pop_back();
  if (wanted != nullptr) own.push_back(wanted);
  return c.done();
}

call_result simulated_gpu::bind_thread() noexcept {
  call_scope c(*state_, call::set_current);
  if (c.refused()) return c.refusal();
  if (state_->current_context() == &state_->primary()) return c.done();
  auto& own = state_->own_contexts();
  if (!own.empty()) own.pop_back();
  own.push_back(&state_->primary());
  return c.done();
}

bool simulated_gpu::in_own_context() noexcept {
  const std::lock_guard lock(state_->mutex);
  return state_->current_context() == &state_->primary();
}

call_result simulated_gpu::enter_context(void** before) noexcept {
  *before = nullptr;
  context was = nullptr;
  {
    const std::lock_guard lock(state_->mutex);
    const sim::context_record* const current = state_->current_context();
    if (current == &state_->primary()) return {driver_status::success, "cuCtxGetCurrent"};
    if (current != nullptr) was = state_->handle_of(*current);
  }
  const call_result bound = bind_thread();
  if (bound) *before = was;
  return bound;
}

call_result simulated_gpu::leave_context(void* before) noexcept {
  if (before == nullptr) return {};
  return context_set_current(static_cast<context>(before));
}

}  // namespace millpond
