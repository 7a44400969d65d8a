#include "advise/explain.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "advise/analysis.hpp"
#include "advise/checks/copy_check.hpp"
#include "advise/checks/free_check.hpp"
#include "advise/checks/managed_check.hpp"
#include "advise/checks/object_patterns.hpp"
#include "advise/checks/order_check.hpp"
#include "advise/checks/pool_check.hpp"
#include "advise/checks/segment_check.hpp"
#include "advise/checks/site_check.hpp"
#include "advise/host_waits.hpp"
#include "advise/recorded_part.hpp"
#include "trace/kernel_uses.hpp"
#include "trace/on_stream.hpp"

namespace millpond::advise {
namespace {

using trace::action;

// Graphs within graphs, as deep as they are followed.
constexpr int most_graph_depth = 8;

// What a finding costs, as a share of what the program has: of its time, or of the memory of the
// device that has most. The larger counts.
double cost_of(const finding& of, double run_ns, double peak_bytes) {
  const double saved_ns = std::max(0.0, of.time_ns - of.time_after_ns);
  const auto saved_bytes = static_cast<double>(
      of.peak_bytes > of.peak_after_bytes ? of.peak_bytes - of.peak_after_bytes : of.bytes);
  return std::max(saved_ns / run_ns, saved_bytes / peak_bytes);
}

// Errors, then waste, then notes; of each the one first that costs most, whatever its kind. Errors
// have no price and stand by kind.
void worst_first(std::vector<finding>& findings, const analysed& what) {
  double run_ns = std::max(1.0, static_cast<double>(what.duration_ns));
  for (const finding& each : findings) run_ns = std::max(run_ns, each.time_ns);
  const double peak = std::max(1.0, static_cast<double>(what.peak_live_bytes));
  std::ranges::stable_sort(findings, [&](const finding& a, const finding& b) {
    if (a.how_bad != b.how_bad) return a.how_bad < b.how_bad;
    if (a.how_bad == severity::error && a.which != b.which) return a.which < b.which;
    const double left = cost_of(a, run_ns, peak), right = cost_of(b, run_ns, peak);
    if (left != right) return left > right;
    return a.which < b.which;
  });
}

// Sends each event to the checks that it concerns, in the order in which their knowledge depends on
// each other.
class analyser {
 public:
  analyser(const explain_options& options, const trace::trace_info& info)
      : all_{options, info, {}, {}, {}, {}, false, {}, {}, {}} {}

  void add(const trace::event& next, std::uint32_t index) {
    trace::event untimed;
    const bool simulated = all_.info.meta.simulated;
    if (simulated) {
      untimed = next;
      untimed.duration_ns = 0;
    }
    // On the simulated GPU a call takes what the simulation takes, which says nothing of a card.
    const trace::event& at = simulated ? untimed : next;
    if (next.what == action::allocate || next.what == action::free) spent(next);
    // Calls are known by their begin, and threads' calls lie over each other.
    first_ns_ = std::min(first_ns_, at.time_ns);
    last_ns_ = std::max(last_ns_, next.time_ns + next.duration_ns);
    if (trace::on_stream(at)) on_stream(at);
    const trace::kernel_uses::place use_of = kernel_uses_.see(at);
    switch (at.what) {
      case action::allocate: allocated(at, index); break;
      case action::free: freed(at, index); break;
      case action::use: used(at, index, use_of); break;
      case action::kernel: kernel(at); break;
      case action::copy: copied(at, index); break;
      case action::memset: set(at, index); break;
      case action::prefetch: prefetched(at, index); break;
      case action::advise: managed_.advised(at, index); break;
      case action::pages: managed_.pages(at, index); break;
      case action::stream_synchronize:
      case action::event_synchronize:
      case action::device_synchronize: synchronised(at, index); break;
      case action::event_record:
        if (!all_.graphs.event_recorded(at))
          all_.clocks.record(trace::as_cuda_event(at).cuda_event, at.stream, at.device);
        break;
      case action::event_wait:
        if (!all_.graphs.event_waited(at))
          all_.clocks.wait(trace::as_cuda_event(at).cuda_event, at.stream, at.device);
        break;
      case action::stream_create:
        all_.clocks.stream_created(at.stream, at.device,
                                   trace::as_stream_create(at).waits_for_default_stream);
        break;
      case action::capture_begin: all_.graphs.capture_began(at); break;
      case action::capture_end: all_.graphs.capture_ended(at); break;
      case action::graph_launch: graph_launched(at, index); break;
      case action::graph_destroy: all_.graphs.graph_destroyed(at); break;
      case action::pool_set: pools_.set(at); break;
      case action::segment_allocate:
      case action::segment_map: segments_.reserved(at, index); break;
      case action::segment_free:
      case action::segment_unmap: segments_.given_back(at, index); break;
      case action::mark: marked(at, index); break;
      case action::stream_destroy:
      case action::free_complete: break;
    }
    all_.what.events = std::uint64_t{index} + 1;
  }

  explanation finish() {
    analysed& what = all_.what;
    what.duration_ns = last_ns_ > first_ns_ ? last_ns_ - first_ns_ : 0;
    for (const auto& [device, sums] : all_.book.devices()) {
      if (sums.peak_bytes == 0) continue;
      what.devices.push_back(
          {device, sums.peak_bytes, sums.peak_event, sums.live_bytes, sums.live_blocks});
      what.end_live_bytes += sums.live_bytes;
      if (sums.peak_bytes <= what.peak_live_bytes) continue;
      what.peak_live_bytes = sums.peak_bytes;
      what.peak_event = sums.peak_event;
    }
    what.end_live_blocks = all_.book.live_blocks();
    what.streams = streams_.size();
    what.allocating_threads = threads_.size();
    // Places ask what the pages did.
    managed_.finish();
    pools_.finish();
    sites_.finish();
    copies_.finish();
    frees_.finish();
    segments_.finish();
    objects_.finish();
    remarks();
    explanation made;
    made.call_sites = call_sites();
    made.findings = all_.found.take();
    leave_unfounded_out(part_of(all_.info.meta), made.findings, what.remarks);
    worst_first(made.findings, what);
    made.what = std::move(what);
    return made;
  }

 private:
  // A stream number is one of all devices, but each device has a default stream of its own.
  void on_stream(const trace::event& at) {
    const std::pair key(at.stream, at.stream == 0 ? at.device : std::uint16_t{0});
    if (key == last_stream_ && !streams_.empty()) return;
    last_stream_ = key;
    streams_.insert(key);
  }
  void spent(const trace::event& at) {
    all_.what.allocator_ns += at.duration_ns;
    if (at.thread == last_thread_ && !threads_.empty()) return;
    last_thread_ = at.thread;
    threads_.insert(at.thread);
  }

  void allocated(const trace::event& at, std::uint32_t index) {
    all_.what.calls_known = all_.what.calls_known || trace::as_allocation(at).call != 0;
    if (at.status != 0) {
      sites_.failed(at, index);
      return;
    }
    if (at.address == 0) return;
    ++all_.what.allocations;
    const std::uint32_t block = all_.book.allocate(at, index);
    if (at.of == trace::kind::driver_pool && all_.graphs.captures(at.stream)) {
      all_.graphs.allocates(at);
      all_.book.blocks()[block].of_graph = true;
      return;
    }
    order_.allocated(at, index, block);
    pools_.allocated(at, index, block);
    managed_.allocated(at, block);
  }

  void freed(const trace::event& at, std::uint32_t index) {
    const bool captured = at.of == trace::kind::driver_pool && all_.graphs.captures(at.stream);
    if (captured && !all_.graphs.own_of_capture(at.stream, at.address)) {
      all_.graphs.keep(at.stream, at);
      return;
    }
    const std::uint32_t block = frees_.freed(at, index);
    if (block != no_index) sites_.freed(at, block);
    if (!captured) wait_in_free(at, index, block);
    if (block == no_index) return;
    ++all_.what.frees;
    end(at, index, block);
  }

  // A free waits for the device, or it is work on its stream.
  void wait_in_free(const trace::event& at, std::uint32_t index, std::uint32_t block) {
    const std::uint32_t call = trace::as_free(at).call;
    const host_wait wait = wait_of(at, call != 0, all_.text(call).starts_with("cuMemUnmap"), at.of);
    if (wait.of == host_wait::scope::nothing) {
      if (block != no_index) order_.freed(at, index, block);
    } else if (at.address != 0) {
      waited(at, index, wait);
    }
  }

  void end(const trace::event& at, std::uint32_t index, std::uint32_t block) {
    order_.forget(block);
    pools_.freed(block);
    copies_.freed(block);
    if (at.of != trace::kind::pinned) managed_.freed(at, block);
    all_.book.free(block, at, index);
  }

  // The host has waited: every check that asks what is ordered before what learns it here.
  void waited(const trace::event& at, std::uint32_t index, const host_wait& wait) {
    switch (wait.of) {
      case host_wait::scope::nothing: return;
      case host_wait::scope::stream:
        all_.clocks.host_waits_for_stream(at.stream, at.device);
        all_.waits.waited_for_stream(at.stream, at.device, index);
        break;
      case host_wait::scope::event:
        all_.clocks.host_waits_for_event(trace::as_cuda_event(at).cuda_event);
        break;
      case host_wait::scope::device:
        all_.clocks.host_waits_for_device(at.device);
        all_.waits.waited_for_device(at.device, index);
        break;
    }
    managed_.waited(at.time_ns + at.duration_ns);
  }

  void synchronised(const trace::event& at, std::uint32_t index) {
    if (at.status != 0) return;
    waited(at, index, wait_of(at, true, false, at.of));
    pools_.synchronised(at.device);
  }

  void marked(const trace::event& at, std::uint32_t index) {
    mark_facts& mark = all_.marks[trace::as_mark(at).text];
    if (mark.count++ == 0) mark.first_event = index;
  }

  // --- Work. What is given to a stream in capture does not run: it becomes a node. ---

  void kernel(const trace::event& at) {
    if (at.status != 0) return;
    ++all_.what.kernels;
    if (trace::as_kernel(at).uses > 0) all_.what.kernel_pointers = true;
    kernel_stream_ = at.stream;
    kernel_captured_ = all_.graphs.captures(at.stream);
    if (kernel_captured_) {
      all_.graphs.keep(at.stream, at);
    } else {
      run_kernel(at);
    }
  }

  void run_kernel(const trace::event& at) {
    all_.book.work(at.device);
    all_.book.active();
    order_.launched(at);
  }

  void used(const trace::event& at, std::uint32_t index, trace::kernel_uses::place of) {
    using place = trace::kernel_uses::place;
    switch (of) {
      case place::of_kernel:
      case place::last_of_kernel:
        if (kernel_captured_) {
          all_.graphs.keep(kernel_stream_, at);
          captured_use(at, index);
        } else {
          kernel_use(at, index);
        }
        break;
      case place::of_refused: break;  // nothing ran
      case place::elsewhere:
        if (trace::as_use(at).form == trace::use_form::stored) {
          stored(at);
        } else {
          reported(at, index);
        }
        break;
    }
  }

  // A node holds the block: it is in use, though nothing runs.
  void captured_use(const trace::event& at, std::uint32_t index) {
    const std::uint32_t id = all_.book.holding(at.address);
    if (id == no_index) return;
    block_facts& block = all_.book.blocks()[id];
    const bool argument = trace::as_use(at).form == trace::use_form::argument;
    (argument ? block.by_kernel : block.in_structure) = true;
    all_.book.used(id, index, at);
  }

  void kernel_use(const trace::event& at, std::uint32_t index) {
    const std::uint32_t id = order_.used(at, index, at.address);
    if (id == no_index) return;
    block_facts& block = all_.book.blocks()[id];
    const bool argument = trace::as_use(at).form == trace::use_form::argument;
    (argument ? block.by_kernel : block.in_structure) = true;
    all_.book.used(id, index, at);
    copies_.touched(id);
    if (block.of == trace::kind::managed && argument)
      managed_.used(at, index, id, order_.last_work());
  }

  void stored(const trace::event& at) {
    const std::uint32_t id = all_.book.holding(at.address);
    if (id != no_index) all_.book.blocks()[id].stored = true;
  }

  void reported(const trace::event& at, std::uint32_t index) {
    order_.reported(at);
    const std::uint32_t id = all_.book.holding(at.address);
    if (id == no_index) return;
    all_.book.used(id, index, at);
    copies_.touched(id);
  }

  void copied(const trace::event& at, std::uint32_t index) {
    const trace::copy_operands copy = trace::as_copy(at);
    if (at.status != 0) {
      order_.refused(at, index, copy.to);
      order_.refused(at, index, copy.from);
      return;
    }
    ++all_.what.copies;
    if (all_.graphs.captures(at.stream)) {
      all_.graphs.keep(at.stream, at);
      for (const std::uint64_t side : {copy.to, copy.from}) {
        const std::uint32_t id = all_.book.holding(side);
        if (id == no_index) continue;
        all_.book.blocks()[id].in_structure =
            true;  // how far a node reaches is its launch's matter
        all_.book.used(id, index, at);
      }
      return;
    }
    const host_wait wait = wait_of(at, true, false, at.of);
    if (wait.own_work_goes_on) waited(at, index, wait);
    run_copy(at, index, false);
    if (!wait.own_work_goes_on) waited(at, index, wait);
  }

  void run_copy(const trace::event& at, std::uint32_t index, bool by_graph) {
    const trace::copy_operands copy = trace::as_copy(at);
    all_.book.work(at.device);
    order_.launched(at);
    const std::uint32_t to = order_.used(at, index, copy.to);
    if (to != no_index) all_.book.used(to, index, at);
    const std::uint32_t from = order_.used(at, index, copy.from);
    if (from != no_index && from != to) all_.book.used(from, index, at);
    copies_.copied(at, index, to, from, by_graph);
  }

  void set(const trace::event& at, std::uint32_t index) {
    if (at.status != 0) {
      order_.refused(at, index, at.address);
      return;
    }
    if (all_.graphs.captures(at.stream)) {
      all_.graphs.keep(at.stream, at);
      const std::uint32_t id = all_.book.holding(at.address);
      if (id != no_index) all_.book.used(id, index, at);
      return;
    }
    const std::uint32_t block = run_set(at, index);
    if (block != no_index)
      waited(at, index, wait_of(at, true, false, all_.book.blocks()[block].of));
  }

  std::uint32_t run_set(const trace::event& at, std::uint32_t index) {
    all_.book.work(at.device);
    order_.launched(at);
    const std::uint32_t block = order_.used(at, index, at.address);
    if (block == no_index) return block;
    all_.book.used(block, index, at);
    copies_.set(at, index, block);
    if (all_.book.blocks()[block].of == trace::kind::managed)
      managed_.written(block, index, at.stack);
    return block;
  }

  void prefetched(const trace::event& at, std::uint32_t index) {
    const std::uint32_t block = all_.book.holding(at.address);
    if (block == no_index) return;
    all_.book.used(block, index, at);
    managed_.prefetched(block);
  }

  void graph_launched(const trace::event& at, std::uint32_t index) {
    if (at.status != 0) return;
    if (all_.graphs.captures(at.stream)) {  // a graph within a graph
      all_.graphs.keep(at.stream, at);
      return;
    }
    all_.book.active();
    order_.launched(at);
    run_graph(at, index, 0);
  }

  void run_graph(const trace::event& at, std::uint32_t index, int depth) {
    const graph_book::graph* const graph = all_.graphs.find(trace::as_graph(at).graph);
    if (graph == nullptr || !graph->whole || depth == most_graph_depth) {
      all_.unknown_graphs = true;
      copies_.all_touched();
    }
    if (graph == nullptr || depth == most_graph_depth) return;
    for (const trace::event& node : graph->nodes) {
      trace::event run = node;
      run.stream = at.stream;
      run.time_ns = at.time_ns;
      run.duration_ns = 0;
      run_node(run, index, *graph, depth);
    }
  }

  void run_node(const trace::event& at, std::uint32_t index, const graph_book::graph& of,
                int depth) {
    switch (at.what) {
      case action::kernel: run_kernel(at); break;
      case action::use:
        if (!of.owns(at.address)) kernel_use(at, index);
        break;
      case action::copy:
        if (!of.owns(at.address) && !of.owns(trace::as_copy(at).from)) run_copy(at, index, true);
        break;
      case action::memset:
        if (!of.owns(at.address)) run_set(at, index);
        break;
      case action::free: {
        const std::uint32_t block = all_.book.holding(at.address);
        if (block == no_index || all_.book.blocks()[block].address != at.address) break;
        order_.freed(at, index, block);
        ++all_.what.frees;
        end(at, index, block);
        break;
      }
      case action::graph_launch: run_graph(at, index, depth + 1); break;
      default: break;
    }
  }

  std::vector<call_site_summary> call_sites() {
    std::vector<call_site_summary> made;
    for (const site_facts& each : all_.book.sites()) {
      call_site_summary& one = made.emplace_back();
      one.stack = each.stack;
      one.call = each.call;
      one.of = each.of;
      one.blocks = each.count;
      one.bytes = each.bytes;
      one.largest_bytes = each.largest_bytes;
      one.end_bytes = each.live_bytes;
      one.rounds = each.rounds;
      one.time_ns = each.recorded_ns;
      one.loss_ns = each.loss_ns;
      one.loss_after_ns = each.loss_after_ns;
      one.loss_estimated = each.loss_estimated;
      one.loses_by = each.loses_by;
    }
    const auto& blocks = all_.book.blocks();
    for (std::uint32_t id = 0; id < blocks.size(); ++id) {
      const block_facts& each = blocks[id];
      call_site_summary& one = made[each.site];
      const std::uint32_t peak_event = all_.book.on_device(each.device).peak_event;
      const bool at_peak =
          each.allocated <= peak_event && (each.freed == no_index || each.freed > peak_event);
      if (at_peak) one.peak_bytes += each.bytes;
      if (each.by_kernel || each.in_structure || each.stored) ++one.used_by_kernels;
      if (each.of == trace::kind::managed && managed_.touched_by_cpu(id)) ++one.touched_by_cpu;
    }
    std::ranges::stable_sort(made, [](const call_site_summary& a, const call_site_summary& b) {
      return a.peak_bytes != b.peak_bytes ? a.peak_bytes > b.peak_bytes : a.bytes > b.bytes;
    });
    return made;
  }

  void remarks() {
    auto& said = all_.what.remarks;
    if (!all_.what.kernel_pointers) {
      said.emplace_back(
          "the trace does not say which blocks kernels were given: uses, idleness and stream order "
          "were not "
          "analysed");
    }
    if (!all_.what.calls_known && all_.what.allocations > 0) {
      said.emplace_back(
          "the trace does not say which calls were made: waits and their cost were not analysed");
    }
    if (frees_.unknown_frees() > 0) {
      said.push_back(fmt::format("{} of blocks that the trace does not show allocated",
                                 plural(frees_.unknown_frees(), "free")));
    }
    if (all_.info.meta.dropped_events > 0) {
      said.push_back(fmt::format("the recorder dropped {}: what depends on them may be missing",
                                 plural(all_.info.meta.dropped_events, "event")));
    }
    if (all_.unknown_graphs) {
      said.emplace_back(
          "graphs were launched whose capture is not in the recording: unused memory, idleness and "
          "pinned memory were not analysed");
    }
    if (all_.clocks.overflowed()) {
      said.push_back(
          fmt::format("streams over {} were not checked for order", stream_clocks::most_streams));
    }
    for (const auto& [name, value] : all_.info.meta.notes) {
      if (name == "python_frames") said.push_back("Python's frames: " + value);
    }
    for (const std::string& each : all_.info.warnings) said.push_back(each);
  }

  analysis all_;
  free_check frees_{all_};
  order_check order_{all_};
  site_check sites_{all_};
  pool_check pools_{all_};
  copy_check copies_{all_};
  managed_check managed_{all_};
  segment_check segments_{all_};
  object_patterns objects_{all_};
  trace::kernel_uses kernel_uses_;
  std::uint64_t kernel_stream_ = 0;  // of the kernel whose uses follow
  bool kernel_captured_ = false;
  std::uint64_t first_ns_ = UINT64_MAX, last_ns_ = 0;
  std::set<std::pair<std::uint64_t, std::uint16_t>> streams_;
  std::pair<std::uint64_t, std::uint16_t> last_stream_;
  std::set<std::uint32_t> threads_;
  std::uint32_t last_thread_ = 0;
};

}  // namespace

result<explanation> explain(trace::trace_source& from, const explain_options& options) {
  analyser each(options, from.info());
  std::vector<trace::event> batch(4096);
  std::uint64_t index = 0;
  for (;;) {
    const auto got = from.read(batch);
    if (!got) return got.error();
    if (*got == 0) break;
    if (index + *got >= no_index) {
      return error{error_code::bad_input,
                   fmt::format("{}: expected fewer than 2^32 events", from.info().name)};
    }
    for (std::size_t at = 0; at < *got; ++at)
      each.add(batch[at], static_cast<std::uint32_t>(index++));
    if (options.progress) options.progress(index);
  }
  return each.finish();
}

}  // namespace millpond::advise
