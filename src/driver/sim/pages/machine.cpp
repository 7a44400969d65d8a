#include "driver/sim/pages/machine.hpp"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "driver/sim/pages/tlb.hpp"

namespace millpond::sim::pages {
namespace {

constexpr std::uint64_t base = block_bytes;  // where the allocation is: any multiple of 2 MiB
double transfer_ns(std::uint64_t bytes, double bytes_per_s) {
  return bytes_per_s > 0 ? static_cast<double>(bytes) / bytes_per_s * 1e9 : 0;
}

class machine {
 public:
  machine(const run_options& options, const page_costs& costs)
      : options_(options),
        costs_(costs),
        space_(costs_, {options.device_bytes, options.access_counters}),
        pattern_({options.pattern, options.bytes, options.stride, options.touches, options.seed},
                 costs_),
        second_(costs_.second_tlb_entries),
        last_(costs_.last_tlb_entries) {
    // The textbook's machine has one accessor, that waits for each of its faults.
    const unsigned accessors = options_.ideal_page_bytes != 0 ? 1 : costs_.multiprocessors;
    for (unsigned i = 0; i < accessors; ++i) processors_.emplace_back(costs_.first_tlb_entries);
    in_flight_ = options_.ideal_page_bytes != 0 ? 1 : pattern_.in_flight();
    depth_limit_ = costs_.batch_faults;
    if (pattern_.bytes_a_touch() == base_page_bytes) {
      const std::uint64_t runs = divide_up(pattern_.count(), pattern_.run_length());
      depth_limit_ =
          std::clamp<std::uint64_t>(costs_.batch_faults / std::max<std::uint64_t>(1, runs),
                                    costs_.stream_run_faults, costs_.stream_run_most_faults);
    }
  }

  run_report run() {
    space_.add(base, options_.bytes);
    for (const advice_given& each : options_.advice)
      space_.advise(base, options_.bytes, each.what, each.location);
    place_data();
    space_.reset_counts();
    for (std::uint64_t round = 0; round < options_.rounds; ++round) {
      const double before = now_ns_;
      if (options_.pattern == pattern_kind::ping_pong) by_host(access_kind::write);
      if (options_.each_kernel == run_options::before::prefetch) {
        const double ns = space_.prefetch(base, options_.bytes, memory_location::device, now_ns_);
        report_.prefetch_ns += ns;
        now_ns_ += ns;
      }
      kernel();
      if (options_.pattern == pattern_kind::ping_pong) by_host(access_kind::read);
      report_.round_ns.push_back(now_ns_ - before);
    }
    report_.counts = space_.counts();
    return std::move(report_);
  }

 private:
  struct pending_touch {
    std::uint64_t page = 0;
    access_kind next = access_kind::read;  // the half of it that faulted
  };
  struct processor {
    explicit processor(unsigned entries) : first(entries) {}
    tlb first;
    std::uint64_t at = 0, end = 0;       // touches of its run not begun yet
    std::vector<pending_touch> waiting;  // that faulted
  };

  void place_data() {
    if (options_.start == start_location::untouched) return;
    now_ns_ += space_.touch_by_host(base, options_.bytes, access_kind::write, now_ns_);
    if (options_.start == start_location::device) {
      now_ns_ += space_.prefetch(base, options_.bytes, memory_location::device, now_ns_);
    }
    now_ns_ += 2 * costs_.thrash_reset_ns;  // setting up is long ago when the first kernel runs
  }

  void by_host(access_kind kind) {
    const double ns = space_.touch_by_host(base, options_.bytes, kind, now_ns_);
    report_.host_ns += ns;
    now_ns_ += ns;
  }

  // Translates: the largest page that the block's state allows. Fills what missed.
  void translate(processor& on, const block& b, std::uint64_t page, unsigned in_block) {
    ++report_.tlb.lookups;
    const bool whole = b.on_device.count() == pages_a_block && b.mapped.count() == pages_a_block;
    tlb::key wanted{page, static_cast<std::uint32_t>(base_page_bytes), b.generation};
    if (whole) {
      wanted = {page / pages_a_block, static_cast<std::uint32_t>(block_bytes), b.generation};
    } else {
      const unsigned leaf = in_block / pages_a_big_page * pages_a_big_page;
      const page_mask big = mask_of(leaf, leaf + pages_a_big_page);
      if ((b.on_device & b.mapped & big) == big) {
        wanted = {page / pages_a_big_page, static_cast<std::uint32_t>(big_page_bytes),
                  b.generation};
      }
    }
    if (on.first.find(wanted)) {
      ++report_.tlb.first_hits;
      return;
    }
    if (second_.find(wanted)) {
      ++report_.tlb.second_hits;
    } else if (last_.find(wanted)) {
      ++report_.tlb.last_hits;
      second_.put(wanted);
    } else {
      ++report_.tlb.misses;
      walk_ns_ += costs_.walk_ns;
      second_.put(wanted);
      last_.put(wanted);
    }
    on.first.put(wanted);
  }

  // One touch, from the half that `next` names on. True when it is done; else `next` is the half
  // that faults.
  bool touch(processor& on, pending_touch& t, bool first_try) {
    unsigned in_block = 0;
    std::uint64_t blocks = 0;
    block* const b = space_.find(base + t.page * base_page_bytes, in_block, blocks);
    MILLPOND_CHECK(b != nullptr, "a touch outside the allocation", t.page);
    for (;;) {
      const page_state state = space_.look(*b, in_block, t.next);
      if (state == page_state::fault) {
        if (first_try) {
          // The walk that found no page.
          ++report_.tlb.lookups;
          ++report_.tlb.misses;
        }
        return false;
      }
      if (t.next == access_kind::read && writes(options_.access)) {
        t.next = access_kind::write;
        continue;
      }
      if (first_try) {
        translate(on, *b, t.page, in_block);
      } else {
        // The replay finds what the fault's service has left in the tables; its miss is counted
        // already.
        --report_.tlb.lookups;
        const tlb_counts before = report_.tlb;
        translate(on, *b, t.page, in_block);
        report_.tlb.first_hits = before.first_hits;
        report_.tlb.second_hits = before.second_hits;
        report_.tlb.last_hits = before.last_hits;
        report_.tlb.misses = before.misses;
      }
      if (b != last_used_) {
        space_.note_use(*b);
        last_used_ = b;
      }
      if (state == page_state::remote) {
        const std::uint64_t bytes = pattern_.bytes_a_touch();
        space_.counts().remote_bytes += bytes;
        remote_bytes_ += bytes;
        kernel_wait_ns_ += space_.count_remote(*b, 1);
      } else {
        local_bytes_ += pattern_.bytes_a_touch();
      }
      return true;
    }
  }

  void advance(processor& on) {
    std::erase_if(on.waiting, [&](pending_touch& t) { return touch(on, t, false); });
    for (;;) {
      if (on.at == on.end) {
        if (!on.waiting.empty() || next_run_ >= pattern_.count()) return;
        on.at = next_run_;
        on.end = next_run_ = std::min(pattern_.count(), next_run_ + pattern_.run_length());
      }
      while (on.at < on.end && on.waiting.size() < in_flight_) {
        pending_touch t{pattern_.page(on.at++),
                        reads(options_.access) ? access_kind::read : access_kind::write};
        if (!touch(on, t, true)) on.waiting.push_back(t);
      }
      if (!on.waiting.empty()) return;
    }
  }

  struct fault {
    std::uint64_t page = 0;
    access_kind kind = access_kind::read;
  };

  bool thrashes(std::uint64_t page) {
    unsigned in_block = 0;
    std::uint64_t blocks = 0;
    const block* const b = space_.find(base + page * base_page_bytes, in_block, blocks);
    return b != nullptr && b->thrash.thrashing()[in_block];
  }

  // The next batch: processors take turns, each gives its oldest faults first. Duplicates are
  // merged. Most faults of a processor are never seen, since the page has come with another's
  // before the batch is read; those of thrashing pages, which come alone, all are.
  void collect(std::vector<fault>& batch) {
    batch.clear();
    std::unordered_set<std::uint64_t> seen;
    bool more = true;
    for (std::size_t depth = 0; more && batch.size() < costs_.batch_faults; ++depth) {
      more = false;
      for (std::size_t i = 0; i < processors_.size() && batch.size() < costs_.batch_faults; ++i) {
        const processor& p = processors_[(turn_ + i) % processors_.size()];
        if (depth >= p.waiting.size()) continue;
        const pending_touch& t = p.waiting[depth];
        if (depth >= depth_limit_ && !thrashes(t.page)) continue;
        more = true;
        if (seen.insert(t.page).second) {
          batch.push_back({t.page, t.next});
        } else {
          ++space_.counts().merged_faults;
        }
      }
    }
    turn_ = (turn_ + 1) % processors_.size();
    std::ranges::sort(batch, {}, &fault::page);
  }

  double serve(const std::vector<fault>& batch) {
    double ns = costs_.batch_ns;
    ++space_.counts().batches;
    for (std::size_t i = 0; i < batch.size();) {
      const std::uint64_t number = batch[i].page / pages_a_block;
      page_mask read, written;
      std::uint64_t read_count = 0, write_count = 0;
      for (; i < batch.size() && batch[i].page / pages_a_block == number; ++i) {
        const bool write = writes(batch[i].kind);
        (write ? written : read).set(batch[i].page % pages_a_block);
        ++(write ? write_count : read_count);
      }
      unsigned page = 0;
      std::uint64_t blocks = 0;
      block* const b = space_.find(base + number * block_bytes, page, blocks);
      if (options_.ideal_page_bytes != 0) {
        ns += serve_ideally(*b, blocks, read | written);
        continue;
      }
      if (read_count != 0)
        ns += space_.serve(*b, blocks, read, read_count, access_kind::read, now_ns_ + ns);
      if (write_count != 0)
        ns += space_.serve(*b, blocks, written, write_count, access_kind::write, now_ns_ + ns);
    }
    return ns;
  }

  // The textbook's machine: one fault moves one page of the size asked for.
  double serve_ideally(block& b, std::uint64_t, const page_mask& faulted) {
    const auto granule = static_cast<unsigned>(options_.ideal_page_bytes / base_page_bytes);
    double ns = costs_.block_service_ns;
    ++space_.counts().block_services;
    for (unsigned first = 0; first < b.pages; first += granule) {
      const page_mask whole = mask_of(first, std::min(b.pages, first + granule));
      if ((faulted & whole).none()) continue;
      ++space_.counts().faults;
      ns += costs_.fault_ns + costs_.region_ns + costs_.big_page_ns + space_.move_exactly(b, whole);
    }
    return ns;
  }

  void kernel() {
    next_run_ = 0;
    space_.release_pins(now_ns_);
    space_.set_loads(pattern_.bytes_a_touch() == base_page_bytes ? space::loads::of_whole_pages
                                                                 : space::loads::of_bytes);
    remote_bytes_ = local_bytes_ = 0;
    walk_ns_ = kernel_wait_ns_ = 0;
    last_used_ = nullptr;
    std::vector<fault> batch;
    double waited = 0;
    bool several = false;  // blocks
    const double began = now_ns_;
    for (;;) {
      for (processor& p : processors_) advance(p);
      collect(batch);
      if (batch.empty()) break;
      if (options_.ideal_page_bytes == 0) {
        if (waited == 0) waited += costs_.first_fault_ns;
        if (!several && (batch.back().page / pages_a_block != batch.front().page / pages_a_block)) {
          several = true;
          waited += costs_.more_blocks_ns;
        }
      }
      const double ns = serve(batch);
      waited += ns;
      now_ns_ += ns;
    }
    waited += kernel_wait_ns_;
    const bool both = options_.access == access_kind::read_write;
    double access = costs_.launch_ns + walk_ns_ +
                    transfer_ns(local_bytes_, both ? costs_.read_write_pass_bytes_per_s
                                                   : costs_.read_pass_bytes_per_s);
    if (remote_bytes_ != 0)
      access += costs_.remote_round_trip_ns + transfer_ns(remote_bytes_, costs_.remote_bytes_per_s);
    report_.fault_ns += waited;
    report_.access_ns += access;
    now_ns_ = began + waited + access;
  }

  const run_options& options_;
  page_costs costs_;
  space space_;
  pattern pattern_;
  std::vector<processor> processors_;
  tlb second_, last_;
  run_report report_;
  double now_ns_ = 0;
  double walk_ns_ = 0, kernel_wait_ns_ = 0;
  std::uint64_t next_run_ = 0;
  std::uint64_t in_flight_ = 1;
  std::size_t depth_limit_ = 1;  // faults of one processor in a batch
  std::size_t turn_ = 0;
  std::uint64_t remote_bytes_ = 0, local_bytes_ = 0;
  block* last_used_ = nullptr;
};

}  // namespace

double run_report::round_at_ns(double share) const {
  if (round_ns.empty()) return 0;
  std::vector<double> sorted = round_ns;
  std::ranges::sort(sorted);
  const double last = static_cast<double>(sorted.size() - 1);
  return sorted[static_cast<std::size_t>(std::llround(std::clamp(share, 0.0, 1.0) * last))];
}

run_report run(const run_options& options, const page_costs& costs) {
  MILLPOND_CHECK(options.bytes > 0, "the page machine needs memory");
  return machine(options, costs).run();
}

}  // namespace millpond::sim::pages
