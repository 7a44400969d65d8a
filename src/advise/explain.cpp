#include "advise/explain.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "advise/analysis.hpp"
#include "advise/checks/copy_check.hpp"
#include "advise/checks/free_check.hpp"
#include "advise/checks/managed_check.hpp"
#include "advise/checks/object_patterns.hpp"
#include "advise/checks/order_check.hpp"
#include "advise/checks/pool_check.hpp"
#include "advise/checks/segment_check.hpp"
#include "advise/checks/site_check.hpp"
#include "advise/recorded_part.hpp"
#include "trace/kernel_uses.hpp"
#include "trace/on_stream.hpp"

namespace millpond::advise {
namespace {

using trace::action;

// Sends each event to the checks that it concerns, in the order in which their knowledge depends on
// each other.
class analyser {
 public:
  analyser(const explain_options& options, const trace::trace_info& info)
      : all_{options, info, {}, {}, {}, {}, {}} {}

  void add(const trace::event& at, std::uint32_t index) {
    // Calls are known by their begin, and threads' calls lie over each other.
    first_ns_ = std::min(first_ns_, at.time_ns);
    last_ns_ = std::max(last_ns_, at.time_ns + at.duration_ns);
    if (trace::on_stream(at)) on_stream(at);
    const trace::kernel_uses::place use_of = kernel_uses_.see(at);
    switch (at.what) {
      case action::allocate: allocated(at, index); break;
      case action::free: freed(at, index); break;
      case action::use: used(at, index, use_of); break;
      case action::kernel:
        if (at.status != 0) break;
        ++all_.what.kernels;
        all_.book.kernel();
        order_.launched(at);
        if (trace::as_kernel(at).uses > 0) all_.what.kernel_pointers = true;
        break;
      case action::copy: copied(at, index); break;
      case action::memset: set(at, index); break;
      case action::prefetch: prefetched(at, index); break;
      case action::advise: managed_.advised(at, index); break;
      case action::pages: managed_.pages(at, index); break;
      case action::stream_synchronize:
      case action::event_synchronize:
      case action::device_synchronize: synchronised(at); break;
      case action::event_record: order_.recorded(at); break;
      case action::event_wait: order_.waited(at); break;
      case action::stream_create:
        all_.clocks.stream_created(at.stream, at.device,
                                   trace::as_stream_create(at).waits_for_default_stream);
        break;
      case action::capture_begin: order_.capture_began(at); break;
      case action::capture_end: order_.capture_ended(at); break;
      case action::graph_launch: order_.graph_launched(at, index); break;
      case action::graph_destroy: order_.graph_destroyed(at); break;
      case action::pool_set: pools_.set(at); break;
      case action::segment_allocate:
      case action::segment_map: segments_.reserved(at, index); break;
      case action::segment_free:
      case action::segment_unmap: segments_.given_back(at, index); break;
      case action::mark: ++all_.marks[trace::as_mark(at).text]; break;
      case action::stream_destroy:
      case action::free_complete: break;
    }
    all_.what.events = std::uint64_t{index} + 1;
  }

  explanation finish() {
    analysed& what = all_.what;
    what.duration_ns = last_ns_ > first_ns_ ? last_ns_ - first_ns_ : 0;
    what.peak_live_bytes = all_.book.peak_bytes();
    what.peak_event = all_.book.peak_event();
    what.end_live_bytes = all_.book.live_bytes();
    what.end_live_blocks = all_.book.live_blocks();
    what.streams = streams_.size();
    what.allocating_threads = threads_.size();
    // Places ask what the pages did.
    managed_.finish();
    pools_.finish();
    sites_.finish();
    copies_.finish();
    segments_.finish();
    objects_.finish();
    remarks();
    explanation made;
    made.call_sites = call_sites();
    made.findings = all_.found.take();
    leave_unfounded_out(part_of(all_.info.meta), made.findings, what.remarks);
    std::ranges::stable_sort(made.findings, [](const finding& a, const finding& b) {
      if (a.how_bad != b.how_bad) return a.how_bad < b.how_bad;
      if (a.which != b.which) return a.which < b.which;
      if (a.time_ns != b.time_ns) return a.time_ns > b.time_ns;
      return a.bytes > b.bytes;
    });
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
    spent(at);
    if (at.status != 0) {
      sites_.failed(at, index);
      return;
    }
    if (at.address == 0) return;
    ++all_.what.allocations;
    const std::uint32_t block = all_.book.allocate(at, index);
    order_.allocated(at, index, block);
    pools_.allocated(at, index, block);
    copies_.allocated(at);
    managed_.allocated(at, block);
  }

  void freed(const trace::event& at, std::uint32_t index) {
    spent(at);
    const std::uint32_t block = frees_.freed(at, index);
    if (block == no_index) return;
    ++all_.what.frees;
    sites_.freed(at, block);
    order_.freed(at, index, block);
    pools_.freed(block);
    copies_.freed(block);
    if (at.of != trace::kind::pinned) managed_.freed(at, block);
    all_.book.free(block, at, index);
  }

  void used(const trace::event& at, std::uint32_t index, trace::kernel_uses::place of) {
    using place = trace::kernel_uses::place;
    switch (of) {
      case place::of_kernel:
      case place::last_of_kernel: kernel_use(at, index); break;
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

  void kernel_use(const trace::event& at, std::uint32_t index) {
    const std::uint32_t id = order_.used(at, index, at.address);
    if (id == no_index) return;
    block_facts& block = all_.book.blocks()[id];
    const bool argument = trace::as_use(at).form == trace::use_form::argument;
    (argument ? block.by_kernel : block.in_structure) = true;
    all_.book.used(id, index);
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
    all_.book.used(id, index);
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
    all_.book.kernel();
    order_.launched(at);
    const std::uint32_t to = order_.used(at, index, copy.to);
    if (to != no_index) all_.book.used(to, index);
    const std::uint32_t from = order_.used(at, index, copy.from);
    if (from != no_index && from != to) all_.book.used(from, index);
    copies_.copied(at, index, to, from);
    if (!copy.asynchronous && copy.direction == trace::copy_direction::device_to_host) {
      all_.clocks.host_waits_for_stream(at.stream, at.device);
      copies_.synchronised();
    }
  }

  void set(const trace::event& at, std::uint32_t index) {
    if (at.status != 0) {
      order_.refused(at, index, at.address);
      return;
    }
    all_.book.kernel();
    order_.launched(at);
    const std::uint32_t block = order_.used(at, index, at.address);
    if (block == no_index) return;
    all_.book.used(block, index);
    copies_.set(at, index, block);
    if (all_.book.blocks()[block].of == trace::kind::managed)
      managed_.written(block, index, at.stack);
  }

  void prefetched(const trace::event& at, std::uint32_t index) {
    const std::uint32_t block = all_.book.holding(at.address);
    if (block == no_index) return;
    all_.book.used(block, index);
    managed_.prefetched(block);
  }

  void synchronised(const trace::event& at) {
    if (at.status != 0) return;
    order_.synchronised(at);
    pools_.synchronised();
    copies_.synchronised();
    managed_.synchronised(at);
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
      one.time_ns = each.allocate_ns + each.free_ns;
    }
    const auto& blocks = all_.book.blocks();
    for (std::uint32_t id = 0; id < blocks.size(); ++id) {
      const block_facts& each = blocks[id];
      call_site_summary& one = made[each.site];
      const bool at_peak = each.allocated <= all_.book.peak_event() &&
                           (each.freed == no_index || each.freed > all_.book.peak_event());
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
