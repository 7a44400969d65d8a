// The driver's calls on its stream-ordered pools.
#include <algorithm>

#include "driver/sim/state.hpp"

namespace millpond {
namespace {

using sim::call;
using sim::call_scope;
using sim::region;
using sim::region_kind;

}  // namespace

call_result simulated_gpu::pool_create(pool_handle* out, memory_location location,
                                       std::uint64_t max_bytes) noexcept {
  call_scope c(*state_, call::pool_create);
  if (c.refused()) return c.refusal();
  if (!state_->info.memory_pools) return c.answer(driver_status::not_supported);
  *out = state_->pools.add(std::make_unique<sim::pool>(*state_->memory, state_->order, location,
                                                       max_bytes,
                                                       state_->options.profile.pool_step_bytes));
  state_->pools.find(*out)->set_handle(*out);
  return c.done();
}

// A pool that still has blocks lives on until the last is freed, as CUDA says.
call_result simulated_gpu::pool_destroy(pool_handle pool) noexcept {
  call_scope c(*state_, call::pool_destroy);
  if (c.refused()) return c.refusal();
  sim::pool* const p = state_->pools.find(pool);
  if (p == nullptr || p->dying) return c.answer(driver_status::invalid_value);
  if (p->blocks() > 0) {
    p->dying = true;
    return c.done();
  }
  (void)state_->pools.remove(pool);
  return c.done();
}

call_result simulated_gpu::pool_set_release_threshold(pool_handle pool,
                                                      std::uint64_t bytes) noexcept {
  call_scope c(*state_, call::pool_attribute);
  if (c.refused()) return c.refusal();
  sim::pool* const p = state_->pools.find(pool);
  if (p == nullptr) return c.answer(driver_status::invalid_value);
  p->set_threshold(bytes);
  return c.done();
}

call_result simulated_gpu::pool_get_usage(pool_handle pool, pool_usage* out) noexcept {
  call_scope c(*state_, call::pool_usage);
  if (c.refused()) return c.refusal();
  const sim::pool* const p = state_->pools.find(pool);
  if (p == nullptr) return c.answer(driver_status::invalid_value);
  *out = p->usage();
  return c.done();
}

call_result simulated_gpu::pool_trim(pool_handle pool, std::uint64_t keep_bytes) noexcept {
  call_scope c(*state_, call::pool_trim);
  if (c.refused()) return c.refusal();
  sim::pool* const p = state_->pools.find(pool);
  if (p == nullptr) return c.answer(driver_status::invalid_value);
  const std::uint64_t given = p->trim(keep_bytes, state_->now_ns);
  if (given > 0) state_->charge_table(state_->options.profile.pool_shrink, given);
  return c.done();
}

call_result simulated_gpu::pool_allocate(device_address* out, std::uint64_t bytes, pool_handle pool,
                                         stream_handle stream) noexcept {
  call_scope c(*state_, call::pool_allocate, call_scope::later);
  if (c.refused()) return c.refusal();
  sim::pool* const p = state_->pools.find(pool);
  sim::stream_record* const s = state_->find_stream(stream);
  if (p == nullptr || p->dying || bytes == 0) return c.answer(driver_status::invalid_value);
  if (s == nullptr) return c.answer(driver_status::invalid_handle);
  const bool host = p->location() == memory_location::host;
  state_->charge_pool(host ? "cuMemAllocFromPoolAsync.host" : "", call::pool_allocate, bytes);
  state_->settle();
  if (const auto implicit = state_->implicit_capture(*s); implicit != driver_status::success) {
    return c.answer(implicit);
  }
  state_->check_pollution(*s, call::pool_allocate);
  state_->join_legacy(*s);
  const sim::pool::answer got = p->allocate(bytes, s->current(), state_->now_ns);
  if (got.moved_bytes > 0)
    state_->charge_pool_table(state_->options.profile.pool_shrink, got.moved_bytes);
  if (got.grown_bytes > 0)
    state_->charge_pool_table(state_->options.profile.pool_growth, got.grown_bytes);
  if (got.status != driver_status::success) return c.answer(got.status);
  if (s->capture != nullptr) {
    s->capture->body->pool_blocks.push_back(got.address);
  } else if (got.after) {
    // What the driver saw to be over orders the stream, and so does the wait that it inserts where
    // nothing is: then the stream is chained behind the other, and nobody learns of it.
    s->end_ns = std::max(s->end_ns, got.wait_until_ns);
    state_->order.order_after(s->line, *got.after);
  }
  *out = got.address;
  return c.done();
}

call_result simulated_gpu::pool_free(device_address at, stream_handle stream) noexcept {
  call_scope c(*state_, call::pool_free, call_scope::later);
  if (c.refused()) return c.refusal();
  sim::stream_record* const s = state_->find_stream(stream);
  if (s == nullptr) return c.answer(driver_status::invalid_handle);
  region* const r = state_->memory->find_start(at);
  const bool frees =
      r != nullptr && (r->kind == region_kind::pool_block || r->kind == region_kind::device);
  if (!frees) {
    state_->charge(call::pool_free, 0);
    if (r != nullptr && state_->check) {
      state_->check->wrong_kind_free(at, *r, "cuMemFreeAsync", state_->now_ns);
    }
    return c.answer(driver_status::invalid_value);
  }
  const bool host = r->memory->location == memory_location::host;
  state_->charge_pool(host ? "cuMemFreeAsync.host" : "", call::pool_free, r->bytes);
  if (const auto implicit = state_->implicit_capture(*s); implicit != driver_status::success) {
    return c.answer(implicit);
  }
  state_->check_pollution(*s, call::pool_free);
  state_->join_legacy(*s);
  if (s->capture != nullptr) {
    // The graph owns what its capture allocated, and gives it back when it goes.
    return c.answer(s->capture->invalidated ? driver_status::capture_invalidated
                                            : driver_status::success);
  }
  if (state_->check) state_->check->check_removal(at, *r, "cuMemFreeAsync", true, state_->now_ns);
  if (r->kind == region_kind::device) {
    // A cuMemAlloc block given to cuMemFreeAsync is accepted, and freed when the stream gets there.
    const std::uint64_t end = std::max(s->end_ns, state_->now_ns) + 1;
    state_->ends(*s, end);
    state_->agenda.add(end, sim::release_work{at});
    return c.done();
  }
  sim::pool* const p = state_->pools.find(r->pool);
  const pool_handle home = r->pool;
  p->free(at, state_->order.now(s->line), state_->order.snapshot(s->line), s->end_ns,
          state_->now_ns);
  if (p->dying && p->blocks() == 0) (void)state_->pools.remove(home);
  return c.done();
}

}  // namespace millpond
