#include "driver/sim/pages/space.hpp"

#include <algorithm>

#include "base/bits.hpp"

namespace millpond::sim::pages {
namespace {

double copy_ns(std::uint64_t bytes, double bytes_per_s) {
  return bytes == 0 || bytes_per_s <= 0 ? 0 : static_cast<double>(bytes) / bytes_per_s * 1e9;
}
std::uint64_t bytes_of(const page_mask& pages) {
  return pages.count() * base_page_bytes;
}
// The device's share of a batch that one block's faults make: 256 faults lie in some four blocks.
constexpr std::uint64_t faults_a_service = 64;

}  // namespace

void space::add(std::uint64_t address, std::uint64_t bytes) {
  range made{bytes, std::vector<block>(divide_up(bytes, block_bytes))};
  const std::uint64_t rest = bytes % block_bytes;
  if (rest != 0) made.blocks.back().pages = static_cast<unsigned>(divide_up(rest, base_page_bytes));
  ranges_[address] = std::move(made);
}

void space::remove(std::uint64_t address) {
  const auto found = ranges_.find(address);
  if (found == ranges_.end()) return;
  for (const block& b : found->second.blocks) chunks_ -= b.on_device.any() ? 1 : 0;
  ranges_.erase(found);
  uses_ = {};
  if (options_.device_bytes == 0) return;
  for (auto& [start, r] : ranges_) {
    for (block& b : r.blocks) {
      if (b.on_device.any()) uses_.push({b.used, &b});
    }
  }
}

block* space::find(std::uint64_t address, unsigned& page, std::uint64_t& blocks_of_range) {
  auto it = ranges_.upper_bound(address);
  if (it == ranges_.begin()) return nullptr;
  --it;
  if (address - it->first >= it->second.bytes) return nullptr;
  const std::uint64_t index = (address - it->first) / base_page_bytes;
  page = static_cast<unsigned>(index % pages_a_block);
  blocks_of_range = it->second.blocks.size();
  return &it->second.blocks[index / pages_a_block];
}

void space::advise(std::uint64_t address, std::uint64_t bytes, managed_advice advice,
                   memory_location location) {
  using where = block_policy::location;
  visit(address, bytes, [&](block& b, unsigned, unsigned, std::uint64_t) {
    block_policy& p = b.policy;
    switch (advice) {
      case managed_advice::set_read_mostly: p.read_mostly = true; break;
      case managed_advice::unset_read_mostly: {
        p.read_mostly = false;
        // The copies go; the page is where it was preferred, else on the device, and writable
        // there.
        const page_mask twice = b.duplicated();
        if (twice.none()) break;
        if (p.preferred == where::host) {
          b.on_device &= ~twice;
          chunks_ -= b.on_device.any() ? 0 : 1;
          b.mapped &= ~twice;
        } else {
          b.on_host &= ~twice;
          b.writable |= twice;
        }
        ++b.generation;
        break;
      }
      case managed_advice::set_preferred_location:
        p.preferred = location == memory_location::host ? where::host : where::device;
        break;
      case managed_advice::unset_preferred_location: p.preferred = where::none; break;
      case managed_advice::set_accessed_by:
        (location == memory_location::host ? p.accessed_by_host : p.accessed_by_device) = true;
        // The device's mappings are made now for pages that are on the host.
        if (location == memory_location::device) map_remotely(b, b.on_host & ~b.on_device);
        break;
      case managed_advice::unset_accessed_by:
        (location == memory_location::host ? p.accessed_by_host : p.accessed_by_device) = false;
        break;
    }
  });
}

page_state space::look(const block& b, unsigned page, access_kind kind) const noexcept {
  if (!b.mapped[page] || (writes(kind) && !b.writable[page])) return page_state::fault;
  return b.on_device[page] ? page_state::local : page_state::remote;
}

void space::map_remotely(block& b, const page_mask& pages) {
  const page_mask fresh = pages & ~b.mapped;
  b.mapped |= pages;
  b.writable |= pages;
  counts_.remote_mappings += fresh.count();
}

// A fault of one side on pages of a block. Nanoseconds that it waits for pages that the other side
// is to have for a while; in `stay` the pages that are pinned where they are, on the host.
double space::ask_for(block& b, const page_mask& faulted, side by, double now_ns, page_mask& stay) {
  stay.reset();
  const page_mask suspect = faulted & b.thrash.thrashing();
  if (suspect.none()) return 0;
  // All pages of a batch are asked for at one moment, and those that are to wait do so together:
  // the service turns to others meanwhile.
  double until = now_ns;
  page_mask throttled;
  const auto pin = [&](unsigned page) {
    if (!b.pinned_known[page]) ++counts_.thrash_pins;
    b.pinned_known.set(page);
    stay.set(page);
  };
  using kind = thrash_state::hint::kind;
  for (unsigned page = 0; page < b.pages; ++page) {
    if (!suspect[page]) continue;
    const auto hint = b.thrash.ask(page, by, now_ns, costs_);
    if (hint.what == kind::pin) pin(page);
    if (hint.what != kind::throttle) continue;
    ++counts_.throttles;
    throttled.set(page);
    until = std::max(until, hint.until_ns);
  }
  const double waited = (until - now_ns) * (by == side::host ? costs_.thrash_nap : 1);
  for (unsigned page = 0; throttled.any() && page < b.pages; ++page) {
    if (throttled[page] && b.thrash.ask(page, by, now_ns + waited + 1, costs_).what == kind::pin)
      pin(page);
  }
  if (stay.any()) has_pins_ = true;
  return waited;
}

// Pages whose pin has run out are mapped remotely no more: the next touch faults.
void space::release_pins(double now_ns) {
  if (!has_pins_) return;
  has_pins_ = false;
  for (auto& [start, r] : ranges_) {
    for (block& b : r.blocks) {
      if (b.pinned_known.none()) continue;
      const page_mask over = b.thrash.unpin(now_ns);
      if (over.any()) {
        const page_mask remote = over & ~b.on_device;
        b.pinned_known &= ~over;
        if (!b.policy.accessed_by_device && b.policy.preferred != block_policy::location::host) {
          b.mapped &= ~remote;
          b.writable &= ~remote;
          ++b.generation;
        }
      }
      has_pins_ = has_pins_ || b.pinned_known.any();
    }
  }
}

double space::make_room(block& wanting) {
  if (wanting.on_device.any()) return 0;
  double ns = 0;
  while (options_.device_bytes != 0 && (chunks_ + 1) * block_bytes > options_.device_bytes &&
         chunks_ > 0) {
    // The least recently used block goes, whole.
    block* oldest = nullptr;
    while (!uses_.empty() && oldest == nullptr) {
      const use_entry top = uses_.top();
      uses_.pop();
      if (top.which != &wanting && top.which->used == top.at && top.which->on_device.any())
        oldest = top.which;
    }
    if (oldest == nullptr) break;
    const page_mask only_here = oldest->on_device & ~oldest->on_host;
    ++counts_.evictions;
    counts_.evicted_bytes += bytes_of(only_here);
    ns += costs_.block_service_ns + bring_to_host(*oldest, oldest->on_device, keep::nothing);
  }
  ++chunks_;
  return ns;
}

// Pages that are on the host are copied, pages that are nowhere are made.
double space::bring_to_device(block& b, const page_mask& wanted, keep what) {
  const page_mask moving = wanted & ~b.on_device;
  if (moving.none()) {
    b.mapped |= wanted;
    if (what == keep::nothing) b.writable |= wanted & ~b.on_host;
    return 0;
  }
  double ns = make_room(b);
  if ((moving & b.mapped).any()) ++b.generation;  // they were reached over the link
  const page_mask copied = moving & b.on_host;
  const page_mask fresh = moving & ~b.on_host;
  counts_.bytes_to_device += bytes_of(copied);
  counts_.populated_bytes += bytes_of(fresh);
  ns += copy_ns(bytes_of(copied), costs_.to_device_bytes_per_s) +
        costs_.populate_block_ns * static_cast<double>(fresh.count()) / pages_a_block;
  b.on_device |= moving;
  b.mapped |= wanted;
  if (what == keep::original) {
    counts_.duplicated_bytes += bytes_of(copied);
    ns += costs_.duplicate_block_ns * static_cast<double>(copied.count()) / pages_a_block;
    b.writable &= ~copied;
    b.writable |= fresh;
  } else {
    b.on_host &= ~moving;
    b.writable |= wanted;
  }
  return ns;
}

double space::bring_to_host(block& b, const page_mask& wanted, keep what) {
  const page_mask here = wanted & b.on_device;
  const page_mask copied = here & ~b.on_host;
  counts_.bytes_to_host += bytes_of(copied);
  const double ns = copy_ns(bytes_of(copied), costs_.to_host_bytes_per_s);
  b.on_host |= here;
  if (what == keep::original) {
    b.writable &= ~here;
  } else if (here.any()) {
    b.on_device &= ~here;
    b.mapped &= ~here;
    b.writable &= ~here;
    if (b.on_device.none()) --chunks_;
  }
  ++b.generation;
  return ns;
}

// Duplicated pages are written: every copy but one goes, a page at a time. With the CPU as the
// preferred location the one that stays is the host's, reached over the link.
double space::collapse(block& b, const page_mask& written, std::uint64_t blocks_of_range) {
  const page_mask twice = written & b.duplicated();
  counts_.collapses += twice.count();
  ++b.generation;
  if (b.policy.preferred != block_policy::location::host) {
    b.on_host &= ~twice;
    b.writable |= twice;
    return static_cast<double>(twice.count()) * costs_.collapse_ns;
  }
  b.on_device &= ~twice;
  if (twice.any() && b.on_device.none()) --chunks_;
  map_remotely(b, twice);
  return static_cast<double>(twice.count()) *
         (costs_.collapse_to_host_ns +
          costs_.collapse_block_ns *
              static_cast<double>(blocks_of_range -
                                  std::min(blocks_of_range, costs_.collapse_blocks)));
}

double space::serve(block& b, std::uint64_t blocks_of_range, const page_mask& faulted,
                    std::uint64_t entries, access_kind kind, double now_ns) {
  note_use(b);
  counts_.faults += entries;
  // A kernel that goes through whole pages faults again on a page that it waits for: its loads
  // always, its stores while the page is on the link.
  const bool again = loads_ == loads::of_whole_pages &&
                     (!writes(kind) || (faulted & b.on_host & ~b.on_device).any());
  const double each =
      (costs_.fault_ns + (again ? costs_.replay_ns : 0)) * static_cast<double>(entries);
  // A write to what is duplicated. Where it collapses to the host, its cost is by the page.
  const page_mask collapsing = writes(kind) ? page_mask(faulted & b.duplicated()) : page_mask{};
  if (collapsing.any()) {
    ++counts_.block_services;
    double ns = each + collapse(b, collapsing, blocks_of_range);
    const page_mask others = faulted & ~collapsing;
    if (others.any()) ns += serve(b, blocks_of_range, others, 0, kind, now_ns);
    return ns;
  }
  ++counts_.block_services;
  double ns = costs_.block_service_ns + each;
  const bool duplicates = b.policy.read_mostly && !writes(kind);
  const bool stays = b.policy.preferred == block_policy::location::host && !duplicates;
  const bool mapped_there = b.policy.accessed_by_device &&
                            b.policy.preferred == block_policy::location::none && !duplicates;
  if (stays || mapped_there) {
    // Mapped where it is: no growth, since the prefetcher does not work away from the preferred
    // location. What nobody has touched is made on the host where that is preferred, else on the
    // device.
    const page_mask fresh = faulted & ~b.touched();
    if (stays) b.on_host |= fresh;
    const page_mask there = faulted & b.on_host & ~b.on_device;
    map_remotely(b, there);
    ns += costs_.remote_map_ns * static_cast<double>(there.count());
    const page_mask local = faulted & b.on_device;
    b.mapped |= local;
    b.writable |= local & ~b.on_host;
    if (mapped_there) ns += bring_to_device(b, fresh, keep::nothing);
    return ns;
  }
  page_mask coming = faulted;
  const page_mask from_host = faulted & b.on_host & ~b.on_device;
  if (from_host.any() && !duplicates) {
    page_mask pinned;
    ns += ask_for(b, from_host, side::device, now_ns + ns, pinned);
    if (pinned.any()) {
      map_remotely(b, pinned);
      ns += costs_.remote_map_ns * static_cast<double>(pinned.count());
      coming &= ~pinned;
      if (coming.none()) return ns;
    }
  }
  const page_mask wanted = grow_by_density(coming, b.on_device, b.pages, costs_.density_percent) &
                           (coming | ~b.thrash.thrashing());
  const page_mask moving = wanted & ~b.on_device;
  ns += costs_.region_ns * static_cast<double>(regions_of(moving)) +
        costs_.big_page_ns * static_cast<double>(big_pages_of(moving));
  const page_mask copied = moving & b.on_host;
  ns += bring_to_device(b, wanted, duplicates ? keep::original : keep::nothing);
  if (duplicates)
    b.thrash.forget(copied);
  else
    b.thrash.moved(copied, side::device, now_ns + ns, costs_);
  return ns;
}

double space::count_remote(block& b, std::uint64_t touches) {
  b.remote_touches += touches;
  if (options_.access_counters != options::counters::move ||
      b.remote_touches < costs_.counter_threshold)
    return 0;
  b.remote_touches = 0;
  if (b.policy.preferred == block_policy::location::host || (b.on_host & ~b.on_device).none())
    return 0;
  ++counts_.counter_moves;
  return costs_.block_service_ns + bring_to_device(b, b.on_host, keep::nothing);
}

double space::stream(std::uint64_t address, std::uint64_t bytes, access_kind kind, double now_ns,
                     std::uint64_t& remote_bytes) {
  double ns = 0;
  std::uint64_t faulted_blocks = 0;
  set_loads(loads::of_whole_pages);
  release_pins(now_ns);
  visit(address, bytes, [&](block& b, unsigned first, unsigned last, std::uint64_t blocks) {
    note_use(b);
    bool faulted = false;
    const page_mask touched = mask_of(first, last);
    const auto pass = [&](access_kind step) {
      const page_mask missing =
          touched & (writes(step) ? page_mask(~b.mapped | ~b.writable) : page_mask(~b.mapped));
      if (missing.none()) return;
      faulted = true;
      // Growth serves eight pages for one fault; a page mapped where it is has a fault of its own.
      const bool grows = !(b.policy.preferred == block_policy::location::host &&
                           !(b.policy.read_mostly && !writes(step))) &&
                         !(writes(step) && (missing & b.duplicated()).any()) &&
                         (missing & b.thrash.thrashing()).none();
      const std::uint64_t entries = grows ? stream_faults(missing.count()) : missing.count();
      const std::uint64_t services = divide_up(entries, faults_a_service);
      ns += serve(b, blocks, missing, entries, step, now_ns + ns) +
            static_cast<double>(services - 1) * costs_.block_service_ns +
            static_cast<double>(services) * costs_.batch_ns / 4;
      counts_.batches += divide_up(services, 4);
    };
    if (kind == access_kind::read_write) pass(access_kind::read);
    pass(kind);
    faulted_blocks += faulted ? 1 : 0;
    const std::uint64_t remote = bytes_of(touched & ~b.on_device);
    remote_bytes += remote;
    counts_.remote_bytes += remote;
    if (remote != 0) ns += count_remote(b, (touched & ~b.on_device).count());
  });
  if (faulted_blocks > 0) ns += costs_.first_fault_ns;
  return faulted_blocks > 1 ? ns + costs_.more_blocks_ns : ns;
}

double space::host_fault(block& b, unsigned page, access_kind kind, double now_ns) {
  ++counts_.host_faults;
  page_mask faulted, pinned;
  faulted.set(page);
  double ns = costs_.host_fault_ns + ask_for(b, faulted, side::host, now_ns, pinned);
  const page_mask wanted = grow_by_density(faulted, b.on_host, b.pages, costs_.density_percent) &
                           (b.on_device | faulted) & (faulted | ~b.thrash.thrashing());
  const bool duplicates = b.policy.read_mostly && !writes(kind);
  const page_mask copied = wanted & b.on_device & ~b.on_host;
  ns += costs_.host_page_ns * static_cast<double>(copied.count());
  ns += bring_to_host(b, wanted, duplicates ? keep::original : keep::nothing);
  if (duplicates) {
    b.thrash.forget(copied);
  } else if (pinned.any()) {
    map_remotely(b, pinned);  // both sides use it where it is now
  } else {
    b.thrash.moved(copied, side::host, now_ns + ns, costs_);
  }
  return ns;
}

double space::touch_by_host(std::uint64_t address, std::uint64_t bytes, access_kind kind,
                            double now_ns) {
  double ns = 0;
  visit(address, bytes, [&](block& b, unsigned first, unsigned last, std::uint64_t) {
    const page_mask touched = mask_of(first, last);
    const page_mask fresh = touched & ~b.touched();
    if (fresh.any()) {
      ns += costs_.host_populate_page_ns * static_cast<double>(fresh.count());
      b.on_host |= fresh;
      if (b.policy.accessed_by_device) map_remotely(b, fresh);
    }
    for (unsigned page = first; page < last; ++page) {
      if (!b.on_host[page]) ns += host_fault(b, page, kind, now_ns + ns);
    }
    if (writes(kind) && (touched & b.duplicated()).any()) {
      // The CPU writes its copy: the device's goes.
      const page_mask twice = touched & b.duplicated();
      counts_.collapses += twice.count();
      ns += costs_.host_fault_ns + bring_to_host(b, twice, keep::nothing);
    }
    if (b.policy.accessed_by_device) map_remotely(b, touched & b.on_host & ~b.on_device);
  });
  return ns;
}

double space::prefetch(std::uint64_t address, std::uint64_t bytes, memory_location to, double) {
  double ns = 0;
  bool moved = false;
  visit(address, bytes, [&](block& b, unsigned first, unsigned last, std::uint64_t) {
    const page_mask wanted = mask_of(first, last);
    const keep what = b.policy.read_mostly ? keep::original : keep::nothing;
    if (to == memory_location::device) {
      note_use(b);
      b.thrash.forget(wanted);
      const std::size_t missing = (wanted & ~b.on_device).count();
      moved = moved || missing > 0;
      ns += costs_.prefetch_block_ns * static_cast<double>(missing) / pages_a_block;
      ns += bring_to_device(b, wanted, what);
    } else {
      moved = moved || (wanted & ~b.on_host).any();
      b.thrash.forget(wanted);
      b.on_host |= wanted & ~b.touched();
      ns += bring_to_host(b, wanted, what);
      if (b.policy.accessed_by_device) map_remotely(b, wanted & b.on_host & ~b.on_device);
    }
  });
  return moved ? ns + (to == memory_location::device ? costs_.prefetch_call_ns
                                                     : costs_.prefetch_back_call_ns)
               : ns;
}

std::uint64_t space::resident(std::uint64_t address, std::uint64_t bytes) {
  std::uint64_t total = 0;
  visit(address, bytes, [&](block& b, unsigned first, unsigned last, std::uint64_t) {
    total += bytes_of(b.on_device & mask_of(first, last));
  });
  return total;
}

}  // namespace millpond::sim::pages
