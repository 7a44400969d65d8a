// Making a simulated GPU, and what it tells about itself.
#include "millpond/sim/simulated_gpu.hpp"

#include "driver/sim/state.hpp"

namespace millpond {

simulated_gpu::state::state(simulated_gpu_options given)
    : options(std::move(given)), managed(options.profile), numbers(options.seed) {
  info = options.profile.device;
  info.name = "simulated " + info.name;
  if (options.memory_bytes != 0) info.total_bytes = options.memory_bytes;
  add_context(nullptr);
  if (options.threads == simulated_gpu_options::new_threads::have_no_context)
    own_contexts().push_back(&primary());
  default_cost_.points = {
      {0, options.profile.default_call_ns, options.profile.default_call_ns * 1.4}};
  for (std::size_t i = 0; i < sim::call_count; ++i) {
    const auto found = options.profile.calls.find(sim::call_table[i].name);
    costs_[i] = found == options.profile.calls.end() ? &default_cost_ : &found->second;
  }
}

result<std::unique_ptr<simulated_gpu::state>> simulated_gpu::state::create(
    simulated_gpu_options given) {
  if (given.profile.device.granularity != sim::page_bytes) {
    return error{error_code::invalid_argument,
                 "profile " + given.profile.name + ": a granularity of " +
                     std::to_string(given.profile.device.granularity) +
                     " bytes is not modelled, only 2 MiB"};
  }
  if (given.profile.pool_step_bytes == 0 || given.profile.pool_step_bytes % sim::page_bytes != 0) {
    return error{error_code::invalid_argument,
                 "profile " + given.profile.name + ": the pools' step is not a multiple of 2 MiB"};
  }
  if (given.profile.memory_bytes_per_s <= 0) {
    return error{error_code::invalid_argument,
                 "profile " + given.profile.name + ": no memory bandwidth"};
  }
  std::unique_ptr<state> out(new state(std::move(given)));
  const std::uint64_t host =
      out->options.host_bytes != 0 ? out->options.host_bytes : out->options.profile.host_bytes;
  out->memory = sim::memory::create({out->info.total_bytes, host},
                                    out->options.mode == simulated_gpu_options::contents::bytes
                                        ? sim::memory::contents::bytes
                                        : sim::memory::contents::tags);
  if (out->memory == nullptr) {
    return error{error_code::driver_failure,
                 "simulated GPU: the system gives neither 64 GiB of addresses nor a memory file"};
  }
  if (out->options.check == simulated_gpu_options::checker::on) {
    out->check = std::make_unique<sim::checker>(out->options, *out->memory, out->order);
  }
  out->memory->on_release([raw = out.get()](const sim::physical& p) {
    raw->contents.forget(p.base, p.base + p.bytes);
    if (raw->check) raw->check->forget(p.base, p.base + p.bytes);
  });
  return out;
}

simulated_gpu::state::~state() = default;

result<std::shared_ptr<simulated_gpu>> simulated_gpu::create(simulated_gpu_options options) {
  auto made = state::create(std::move(options));
  if (!made) return made.error();
  return std::shared_ptr<simulated_gpu>(new simulated_gpu(std::move(*made)));
}

simulated_gpu::simulated_gpu(std::unique_ptr<state> inside) : state_(std::move(inside)) {}

// What captures and graphs retained learns that it ends, as at the end of a context.
simulated_gpu::~simulated_gpu() {
  std::unique_lock lock(state_->mutex);
  while (!state_->captures.empty()) state_->end_capture(*state_->captures.begin()->second);
  while (!state_->agenda.empty()) {
    state_->agenda.take_first([](std::uint64_t, std::uint64_t, sim::work&) {});
  }
  state_->execs.clear();
  state_->graphs.clear();
  state_->finish_callbacks(lock);
}

bool simulated_gpu::simulated() const noexcept {
  return true;
}
const device_info& simulated_gpu::info() const noexcept {
  return state_->info;
}
bool simulated_gpu::alive() const noexcept {
  const std::lock_guard lock(state_->mutex);
  return state_->lost == driver_status::success;
}
const gpu_profile& simulated_gpu::profile() const noexcept {
  return state_->options.profile;
}
const simulated_gpu_options& simulated_gpu::options() const noexcept {
  return state_->options;
}

// --- Counters
// ---------------------------------------------------------------------------------------

std::uint64_t simulated_gpu::calls(std::string_view call) const {
  const std::lock_guard lock(state_->mutex);
  for (std::size_t i = 0; i < sim::call_count; ++i) {
    if (call == sim::call_table[i].name) return state_->counters[i].count;
  }
  return 0;
}
std::uint64_t simulated_gpu::total_calls() const {
  const std::lock_guard lock(state_->mutex);
  std::uint64_t total = 0;
  for (const auto& each : state_->counters) total += each.count;
  return total;
}
std::vector<call_count> simulated_gpu::call_table() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<call_count> out;
  for (std::size_t i = 0; i < sim::call_count; ++i) {
    const auto& each = state_->counters[i];
    if (each.count != 0) out.push_back({sim::call_table[i].name, each.count, each.ns});
  }
  return out;
}
std::uint64_t simulated_gpu::call_time_ns() const {
  const std::lock_guard lock(state_->mutex);
  std::uint64_t total = 0;
  for (const auto& each : state_->counters) total += each.ns;
  return total;
}
std::uint64_t simulated_gpu::device_waits() const {
  const std::lock_guard lock(state_->mutex);
  return state_->waits;
}
void simulated_gpu::reset_counters() {
  const std::lock_guard lock(state_->mutex);
  state_->counters = {};
  state_->waits = 0;
  state_->memory->reset_peak();
}

live_objects simulated_gpu::leaks() const {
  const std::lock_guard lock(state_->mutex);
  const sim::memory& m = *state_->memory;
  live_objects out;
  out.device_allocations = m.count(sim::region_kind::device);
  out.host_allocations = m.count(sim::region_kind::pinned);
  out.managed_allocations = m.count(sim::region_kind::managed);
  out.registered_ranges = m.count(sim::region_kind::registered);
  out.pool_blocks = m.count(sim::region_kind::pool_block);
  state_->pools.visit([&](const sim::pool& p) { out.pools += p.dying ? 0 : 1; });
  out.handles = m.handle_count();
  out.reservations = m.reservation_count();
  out.mappings = m.count(sim::region_kind::mapping);
  out.streams = state_->streams.live();
  out.events = state_->events.live();
  out.graphs = state_->graphs.live();
  out.graph_execs = state_->execs.live();
  out.captures = state_->captures.size();
  return out;
}

std::uint64_t live_objects::total() const noexcept {
  return device_allocations + host_allocations + managed_allocations + registered_ranges +
         pool_blocks + pools + handles + reservations + mappings + streams + events + graphs +
         graph_execs + captures;
}

std::string to_string(const live_objects& o) {
  std::string out;
  const auto add = [&](std::uint64_t count, const char* one) {
    if (count == 0) return;
    if (!out.empty()) out += ", ";
    out += std::to_string(count) + " " + one + (count == 1 ? "" : "s");
  };
  add(o.device_allocations, "device allocation");
  add(o.host_allocations, "host allocation");
  add(o.managed_allocations, "managed allocation");
  add(o.registered_ranges, "registered range");
  add(o.pool_blocks, "pool block");
  add(o.pools, "pool");
  add(o.handles, "handle");
  add(o.reservations, "reservation");
  add(o.mappings, "mapping");
  add(o.streams, "stream");
  add(o.events, "event");
  add(o.graphs, "graph");
  add(o.graph_execs, "graph instance");
  add(o.captures, "capture");
  return out.empty() ? "nothing" : out;
}

std::uint64_t simulated_gpu::physical_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->memory->device_used();
}
std::uint64_t simulated_gpu::physical_peak() const {
  const std::lock_guard lock(state_->mutex);
  return state_->memory->device_peak();
}
std::uint64_t simulated_gpu::host_memory_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->memory->host_used();
}

std::uint64_t simulated_gpu::managed_resident_bytes(device_address at, std::uint64_t bytes) const {
  const std::lock_guard lock(state_->mutex);
  return state_->managed.resident(at, bytes);
}
void simulated_gpu::touch_managed(device_address at, std::uint64_t bytes, access_kind kind) {
  const std::lock_guard lock(state_->mutex);
  const double ns =
      state_->managed.touch_by_host_ns(at, bytes, kind, static_cast<double>(state_->now_ns));
  state_->now_ns += static_cast<std::uint64_t>(ns);
  state_->settle();
}

managed_counters simulated_gpu::managed_counts() const {
  const std::lock_guard lock(state_->mutex);
  const sim::pages::page_counts& c = state_->managed.counts();
  return {c.faults,       c.host_faults, c.bytes_to_device, c.bytes_to_host,
          c.remote_bytes, c.collapses,   c.throttles};
}

void simulated_gpu::set_faults(fault_plan plan) {
  const std::lock_guard lock(state_->mutex);
  state_->memory->set_pressure(plan.largest_piece, plan.taken_bytes);
  state_->faults.set(std::move(plan.faults));
}

// --- The checker
// ------------------------------------------------------------------------------------

void simulated_gpu::note_allocate(device_address at, std::uint64_t bytes, stream_handle stream,
                                  std::string_view call_site) {
  const std::lock_guard lock(state_->mutex);
  sim::stream_record* const s = state_->find_stream(stream);
  if (!state_->check || s == nullptr || bytes == 0) return;
  state_->join_legacy(*s);
  state_->check->note_allocate(at, bytes, s->current(), s->name(), call_site, state_->now_ns);
}
void simulated_gpu::note_free(device_address at, std::uint64_t bytes, stream_handle stream,
                              std::string_view call_site) {
  const std::lock_guard lock(state_->mutex);
  sim::stream_record* const s = state_->find_stream(stream);
  if (!state_->check || s == nullptr || at == 0) return;
  state_->join_legacy(*s);
  state_->check->note_free(at, bytes, s->current(), s->line, s->name(), call_site, state_->now_ns);
}
void simulated_gpu::note_use(device_address at, stream_handle stream, std::string_view call_site) {
  const std::lock_guard lock(state_->mutex);
  sim::stream_record* const s = state_->find_stream(stream);
  if (!state_->check || s == nullptr || at == 0) return;
  state_->check->note_use(at, s->current(), s->line, s->name(), call_site, state_->now_ns);
}
void simulated_gpu::note_shared_captures(std::uint64_t one, std::uint64_t other) {
  const std::lock_guard lock(state_->mutex);
  if (state_->check) state_->check->share_captures(one, other);
}
void simulated_gpu::note_arena_let_go(std::uint64_t capture) {
  const std::lock_guard lock(state_->mutex);
  if (state_->check) state_->check->let_arena_go(capture);
}
std::vector<violation> simulated_gpu::violations() const {
  const std::lock_guard lock(state_->mutex);
  return state_->check ? state_->check->violations() : std::vector<violation>{};
}
std::uint64_t simulated_gpu::violation_count() const {
  const std::lock_guard lock(state_->mutex);
  return state_->check ? state_->check->count() : 0;
}
void simulated_gpu::clear_violations() {
  const std::lock_guard lock(state_->mutex);
  if (state_->check) state_->check->clear();
}

}  // namespace millpond
