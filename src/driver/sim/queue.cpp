// Putting work on a stream: what it touches, how long it takes, when it starts and ends.
#include <algorithm>
#include <cmath>

#include "driver/sim/state.hpp"
#include "millpond/base/units.hpp"

namespace millpond {
namespace {

// Remembers the last work of each timeline that touches a region; what the host has seen done is
// dropped.
void touch(sim::region& region, sim::point work, const sim::order_book& order) {
  for (sim::point& p : region.touched) {
    if (p.timeline == work.timeline) {
      p.tick = work.tick;
      return;
    }
  }
  if (region.touched.size() >= 4) {
    std::erase_if(region.touched, [&](const sim::point& p) { return order.seen(p); });
  }
  region.touched.push_back(work);
}

bool host_side(const std::vector<sim::piece>& pieces) {
  const sim::region* const in = pieces.front().in;
  if (in == nullptr) return true;
  return in->memory->location == memory_location::host && in->kind != sim::region_kind::managed;
}

bool pageable(const std::vector<sim::piece>& pieces) {
  return pieces.front().in == nullptr;
}

std::uint64_t bytes_of(const std::vector<sim::piece>& pieces) {
  std::uint64_t total = 0;
  for (const sim::piece& p : pieces) total += p.bytes;
  return total;
}

double seconds_to_ns(std::uint64_t bytes, double bytes_per_s) {
  return bytes_per_s > 0 ? static_cast<double>(bytes) / bytes_per_s * 1e9 : 0;
}

// Addresses that nothing can have: what a null pointer and an offset make.
constexpr std::uint64_t lowest_address = 64 * KiB;

}  // namespace

sim::stream_record* simulated_gpu::state::find_stream(stream_handle stream) {
  const bool is_legacy = stream == nullptr || stream == legacy_stream;
  if (!is_legacy && stream != per_thread_stream) return streams.find(stream);
  sim::context_record* const current = current_context();
  if (current == nullptr) return nullptr;
  if (is_legacy) return &current->legacy;
  auto& own = current->thread_streams[sim::thread_number()];
  if (own == nullptr) {
    own = std::make_unique<sim::stream_record>();
    own->line = order.make(current->number);
    own->blocking = true;
    own->context = current;
  }
  return own.get();
}

void simulated_gpu::state::join_legacy(sim::stream_record& stream) {
  if (!stream.blocking) return;
  const auto after = [&](sim::stream_record& earlier) {
    stream.end_ns = std::max(stream.end_ns, earlier.end_ns);
    order.order_after(stream.line, order.snapshot(earlier.line));
  };
  if (&stream != &stream.context->legacy) {
    after(stream.context->legacy);
    return;
  }
  for (auto& [thread, own] : stream.context->thread_streams) after(*own);
}

double simulated_gpu::state::duration_of(const sim::work& what,
                                         const std::vector<std::vector<sim::piece>>& ranges) {
  const gpu_profile& p = options.profile;
  double moved = 0;
  if (!managed.empty()) {
    std::size_t i = 0;
    double faulting = 0;
    sim::visit_accesses(what, [&](std::uint64_t at, std::uint64_t bytes, access_kind kind) {
      if (bytes == 0) return;
      const auto& range = ranges[i++];
      if (range.front().in == nullptr || range.front().in->kind != sim::region_kind::managed)
        return;
      const double waited = managed.stream_ns(at, bytes, kind, static_cast<double>(now_ns) + moved);
      moved += waited;
      if (waited >= managed.first_fault_ns()) ++faulting;
    });
    // The fault service wakes once for a kernel.
    if (faulting > 1) moved -= (faulting - 1) * managed.first_fault_ns();
  }
  if (ranges.size() > 1) moved *= p.managed_together_share;
  // Kernels work on device memory at its bandwidth, on pinned memory at the link's.
  double touched = 0;
  for (const auto& range : ranges) {
    touched += seconds_to_ns(bytes_of(range),
                             host_side(range) ? p.host_memory_bytes_per_s : p.memory_bytes_per_s);
  }
  if (const auto* kernel = std::get_if<sim::kernel_work>(&what)) {
    double far = 0;  // the declared duration is that of data on the device
    for (const auto& range : ranges) {
      if (host_side(range)) far += seconds_to_ns(bytes_of(range), p.host_memory_bytes_per_s);
    }
    return moved + far + p.kernel_overhead_ns + static_cast<double>(kernel->kernel->duration_ns);
  }
  if (const auto* spin = std::get_if<sim::spin_work>(&what)) {
    return p.kernel_overhead_ns + static_cast<double>(spin->nanoseconds);
  }
  if (const auto* copy = std::get_if<sim::copy_work>(&what)) {
    const bool from_host = host_side(ranges[0]);
    const bool to_host = host_side(ranges[1]);
    double rate = p.memory_bytes_per_s / 2;  // each byte is read and written
    if (from_host && !to_host)
      rate = pageable(ranges[0]) ? p.pageable_to_device_bytes_per_s : p.host_to_device_bytes_per_s;
    if (!from_host && to_host)
      rate = pageable(ranges[1]) ? p.device_to_pageable_bytes_per_s : p.device_to_host_bytes_per_s;
    if (from_host && to_host) rate = p.pageable_to_device_bytes_per_s;
    return moved + p.kernel_overhead_ns + seconds_to_ns(copy->bytes, rate);
  }
  return moved + touched + p.kernel_overhead_ns;
}

// Finds where everything is that the work touches, into ranges_. A kernel may touch memory that the
// driver has never seen only where the machine has HMM; a copy always may.
bool simulated_gpu::state::locate(const sim::work& what) {
  ranges_.clear();
  bool reachable = true;
  const bool is_copy = std::holds_alternative<sim::copy_work>(what);
  sim::visit_accesses(what, [&](std::uint64_t at, std::uint64_t bytes, access_kind) {
    if (bytes == 0) return;
    ranges_.emplace_back();
    if (at < lowest_address || !memory->pieces_of(at, bytes, ranges_.back())) {
      reachable = false;
    } else if (!is_copy && !info.pageable_memory_access) {
      for (const sim::piece& p : ranges_.back()) reachable = reachable && p.in != nullptr;
    }
  });
  return reachable;
}

// Tells the checker of the ranges that locate() found.
void simulated_gpu::state::check_accesses(const sim::work& what, const worker& by) {
  if (!check) return;
  std::size_t i = 0;
  sim::visit_accesses(what, [&](std::uint64_t at, std::uint64_t bytes, access_kind kind) {
    if (bytes == 0) return;
    check->check_access({at, bytes, kind, &ranges_[i++], by.node, by.launched}, by.line, by.work,
                        by.stream, by.name, now_ns);
  });
  if (ranges_.size() > 1 && !std::holds_alternative<sim::copy_work>(what)) {
    check->check_aliases(ranges_, by.name, now_ns);
  }
}

// Remembers the work on the regions that locate() found.
void simulated_gpu::state::touch_regions(sim::point work) {
  for (const auto& range : ranges_) {
    for (const sim::piece& p : range) {
      if (p.in != nullptr) touch(*p.in, work, order);
    }
  }
}

simulated_gpu::state::queued simulated_gpu::state::queue(sim::stream_record& stream, sim::work what,
                                                         const std::string& name) {
  const bool captured = stream.capture != nullptr;
  if (!locate(what)) {
    // The card would find out when the work runs, and the context is dead from then on.
    if (!captured) lose_device(driver_status::illegal_address);
    return {driver_status::illegal_address, 0};
  }
  double duration = 0;
  if (const auto* prefetch = std::get_if<sim::prefetch_work>(&what)) {
    duration = managed.prefetch_ns(prefetch->at, prefetch->bytes, prefetch->to,
                                   static_cast<double>(now_ns));
  } else if (!std::holds_alternative<sim::host_work>(what)) {
    duration = duration_of(what, ranges_);
  }
  if (!captured) join_legacy(stream);
  const sim::point work = order.advance(stream.current());
  std::shared_ptr<sim::node_memory> node;
  if (captured && check) {
    node = std::make_shared<sim::node_memory>();
    node->capture = stream.capture->id;
  }
  check_accesses(what, {stream.current(), work, stream.name(), name, node.get()});
  if (captured) return {add_node(stream, {std::move(what), name, duration, std::move(node)}), 0};
  touch_regions(work);

  const auto latency = static_cast<std::uint64_t>(options.profile.launch_latency_ns);
  std::uint64_t start = std::max(now_ns + latency, stream.end_ns);
  const bool is_copy = std::holds_alternative<sim::copy_work>(what);
  std::uint64_t* link = nullptr;
  if (is_copy && host_side(ranges_[0]) != host_side(ranges_[1])) {
    link = host_side(ranges_[0]) ? &link_to_device_ns : &link_to_host_ns;
    start = std::max(start, *link);
  }
  // Every operation takes some time, so that one stream's effects have different ends.
  const std::uint64_t end =
      start + std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::llround(duration)));
  if (link != nullptr) *link = end;
  ends(stream, end);
  agenda.add(end, std::move(what));
  return {driver_status::success, end};
}

// A graph's nodes run at their offsets from one start; an instance never runs beside itself.
driver_status simulated_gpu::state::queue_graph(sim::stream_record& stream,
                                                sim::graph_exec_record& exec) {
  join_legacy(stream);
  const auto latency = static_cast<std::uint64_t>(options.profile.launch_latency_ns);
  const std::uint64_t start = std::max({now_ns + latency, stream.end_ns, exec.end_ns});
  const sim::point work = order.advance(stream.line);
  const std::uint64_t graph = exec.body->capture_id;
  for (const sim::graph_node& node : exec.body->nodes) {
    if (!locate(node.what)) {
      lose_device(driver_status::illegal_address);
      return driver_status::illegal_address;
    }
    // A child graph's node is of the capture that it was captured in, and of this one.
    const sim::stream_name as{stream.line.number, node.memory ? node.memory->capture : graph};
    if (node.memory == nullptr ||
        check->check_node(*node.memory, {as.id, graph}, node.name, now_ns)) {
      check_accesses(node.what, {stream.line, work, as, node.name, node.memory.get(), graph});
    }
    touch_regions(work);
    agenda.add(start + node.end_offset_ns, node.what);
  }
  const std::uint64_t end = start + std::max<std::uint64_t>(1, exec.body->length_ns);
  // A graph that is destroyed while it runs goes when it has run.
  agenda.add(end, sim::keep_work{exec.body});
  exec.end_ns = end;
  ends(stream, end);
  return driver_status::success;
}

}  // namespace millpond
