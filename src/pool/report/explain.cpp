// A pool's memory report, and in one sentence why a request cannot be served.
#include <algorithm>

#include "millpond/base/units.hpp"
#include "pool/core.hpp"

namespace millpond {
memory_report pool::core::explain(const block_request* what, std::vector<ladder_step> ladder) {
  memory_report out;
  const pool_statistics now = statistics();
  out.pool = options_.name;
  out.kind = options_.kind;
  out.ladder = std::move(ladder);
  out.live_bytes = now.live_bytes;
  out.live_blocks = now.live_blocks;
  out.reserved_bytes = now.reserved_bytes;
  out.peak_reserved_bytes = now.peak_reserved_bytes;
  out.asleep_bytes = now.asleep_bytes;
  out.limit_bytes = memory_.limit_bytes();
  out.soft_limit_bytes = options_.soft_limit_bytes;
  if (memory_.budget() != nullptr) {
    const memory_budget& shared = memory_.budget()->budget();
    out.budget_hard_bytes = shared.limits().hard_bytes;
    out.budget_soft_bytes = shared.limits().soft_bytes;
    out.budget_used_bytes = shared.used_bytes();
    for (auto& share : shared.shares())
      out.budget_shares.push_back({std::move(share.name), share.bytes});
  }
  std::uint64_t free = 0;
  std::uint64_t total = 0;
  if (gpu_->memory_info(&free, &total).ok()) {
    out.device_free_bytes = free;
    out.device_total_bytes = total;
  }
  find_keepers(out);
  if (what != nullptr && what->stream != nullptr) {
    // What the stream itself freed is no obstacle to it, only the pieces that it is in.
    for (memory_keeper& k : out.keepers) {
      if (k.what == keeper_kind::fence && k.stream_id == what->stream->batches->id())
        k.what = keeper_kind::idle_between;
    }
  }
  const heap::owner_id owner = what != nullptr ? what->owner : heap::anyone;
  {
    const block_store::locked books(blocks_);
    out.largest_bytes =
        std::max(books.heap().largest_free(owner), books.heap().largest_free(heap::anyone));
  }
  out.last_failure = memory_.last_failure().message;
  out.fence_failure = streams_.last_failure().message;
  if (what != nullptr) {
    out.asked_bytes = what->bytes;
    out.asked_alignment = what->alignment;
    out.asked_stream = reinterpret_cast<std::uintptr_t>(what->handle);
    explain_reason(out);
  }
  return out;
}

namespace {

// The sums that decide what stands in the way of a request.
struct obstacles {
  std::uint64_t idle = 0, waiting = 0, graphs = 0, live = 0;
  std::uint64_t others = 0;  // held on the device outside this pool
  bool own_limit = false, shared_limit = false;
  std::string border;  // what the pool cannot grow beyond

  explicit obstacles(const memory_report& of)
      : idle(sum(of, {keeper_kind::idle_between, keeper_kind::idle_span})),
        waiting(sum(of, {keeper_kind::fence, keeper_kind::dead_stream, keeper_kind::recorded_use})),
        graphs(sum(of, {keeper_kind::graph, keeper_kind::capture_live})),
        live(sum(of, {keeper_kind::live})),
        others(of.device_total_bytes -
               std::min(of.device_total_bytes, of.device_free_bytes + of.reserved_bytes)),
        own_limit(refuses(of.limit_bytes, of.reserved_bytes, of.asked_bytes)),
        shared_limit(refuses(of.budget_hard_bytes, of.budget_used_bytes, of.asked_bytes)),
        border(own_limit      ? "the pool's limit of " + format_bytes(of.limit_bytes)
               : shared_limit ? "the budget's limit of " + format_bytes(of.budget_hard_bytes)
                              : "the device's memory") {}

 private:
  static std::uint64_t sum(const memory_report& of, std::initializer_list<keeper_kind> kinds) {
    std::uint64_t bytes = 0;
    for (const memory_keeper& k : of.keepers) {
      if (std::find(kinds.begin(), kinds.end(), k.what) != kinds.end()) bytes += k.bytes;
    }
    return bytes;
  }
  static bool refuses(std::uint64_t limit, std::uint64_t used, std::uint64_t asked) {
    return limit != 0 && limit - std::min(limit, used) < asked;
  }
};

// By the largest part of what is missing: what stands in the way, and what to try first.
void name_obstacle(memory_report& out, const obstacles& found, const pool_options& options) {
  const std::string asked = format_bytes(out.asked_bytes);
  if (found.waiting >= out.asked_bytes ||
      (found.waiting > found.idle && found.waiting > found.graphs &&
       found.waiting * 4 > out.asked_bytes)) {
    out.reason = format_bytes(found.waiting) +
                 " are freed, but the GPU has not been seen to pass the frees, and " +
                 found.border + " is reached";
    const std::string now = options.max_wait_ns == 0
                                ? "0: it never waits"
                                : format_duration(static_cast<double>(options.max_wait_ns));
    out.remedies.push_back("raise max_wait_ns (now " + now +
                           "), so that the allocation waits longer for the GPU");
    out.remedies.push_back(
        "free on the stream that used the block last, and call the pool now and then on streams "
        "that freed");
  } else if (found.idle >= out.asked_bytes) {
    out.reason = format_bytes(found.idle) + " are free, but not in one piece of " + asked +
                 ": live blocks lie between, and " + found.border +
                 " leaves no room to bring pieces together";
    out.remedies.push_back(
        "free or move the blocks named as neighbours; allocate long-lived blocks before "
        "short-lived ones");
  } else if (found.graphs >= out.asked_bytes) {
    out.reason = format_bytes(found.graphs) +
                 " belong to captured graphs until the graphs are destroyed, and " + found.border +
                 " is reached";
    out.remedies.push_back("destroy graphs that will not be launched again, and their executables");
  } else if (found.own_limit || found.shared_limit) {
    out.reason = "the program holds " + format_bytes(found.live) + ", and " + asked +
                 " more would pass " + found.border;
    out.remedies.push_back(
        found.own_limit ? "raise limit_bytes"
                        : "raise the budget's hard limit, or free what its other members hold");
  } else if (found.others > out.reserved_bytes / 8 && out.device_free_bytes < out.asked_bytes) {
    out.reason = "the device has " + format_bytes(out.device_free_bytes) +
                 " left: " + format_bytes(found.others) +
                 " are held outside this pool, by other pools, the CUDA context or other processes";
    out.remedies.push_back(
        "nvidia-smi names the processes; give the pools of one process a common memory_budget");
  } else {
    out.reason = "the program holds " + format_bytes(found.live) + ", and " + found.border +
                 " leaves " + format_bytes(out.device_free_bytes);
  }
}

}  // namespace

void pool::core::explain_reason(memory_report& out) const {
  if (asleep()) {
    out.reason = "the pool sleeps";
    out.remedies.push_back("call wake() first");
    return;
  }
  const obstacles found(out);
  if (out.limit_bytes != 0 && out.asked_bytes > out.limit_bytes) {
    out.reason = format_bytes(out.asked_bytes) + " is more than " + found.border + " allows at all";
    out.remedies.push_back("raise limit_bytes, or ask for less");
    return;
  }
  name_obstacle(out, found, options_);
  if (!options_.on_pressure)
    out.remedies.push_back("set on_pressure to free or spill what the program can do without");
  if (found.idle < out.asked_bytes && !found.own_limit && !found.shared_limit)
    out.remedies.push_back(
        "ask for less: smaller batches, or blocks allocated when they are needed");
}

}  // namespace millpond
