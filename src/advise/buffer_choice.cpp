#include "advise/buffer_choice.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "driver/sim/pages/costs.hpp"
#include "driver/usual_costs.hpp"
#include "millpond/base/units.hpp"

namespace millpond::advise {
namespace {

using question = buffer_question;
using pages_costs = sim::pages::page_costs;

// Of a machine's memory, at most this share is pinned by one program.
constexpr double pinned_share = 0.5;
// Fewer than these in a program, and gone within this, is memory that a pool holds for nobody most
// of the time.
constexpr double few_allocations = 10, short_life_s = 10;

double link_ns(std::uint64_t bytes, double bytes_per_s) {
  return bytes_per_s > 0 ? static_cast<double>(bytes) / bytes_per_s * 1e9 : 0;
}

struct costs : usual_costs {
  explicit costs(const gpu_profile& p) : usual_costs(p), profile(p), pages(pages_costs::from(p)) {
    copy_call_ns = call_ns("cuMemcpyAsync", 0) + p.launch_latency_ns + p.kernel_overhead_ns;
  }
  const gpu_profile& profile;
  pages_costs pages;
  double copy_call_ns = 0;
};

bool on_host(const question& q) {
  return includes(q.writers, memory_side::host) || includes(q.readers, memory_side::host);
}
bool on_device(const question& q) {
  return includes(q.writers, memory_side::device) || includes(q.readers, memory_side::device);
}
std::uint64_t exchanged(const question& q) {
  return q.exchange_bytes != 0 ? std::min(q.exchange_bytes, q.bytes) : q.bytes;
}

buffer_option finish(buffer_option made, const question& q) {
  made.total_ns =
      made.setup_ns + q.allocations * (made.allocation_ns + q.exchanges * made.exchange_ns);
  return made;
}

buffer_option in_pool(const question& q, const costs& c) {
  return finish({memory_kind::device, "device memory from a pool",
                 c.call_ns("cuMemCreate", q.bytes) + c.call_ns("cuMemSetAccess", q.bytes),
                 c.pool_pair_ns, 0, 0},
                q);
}
buffer_option by_calls(const question& q, const costs& c) {
  return finish({memory_kind::device,
                 "device memory by cuMemAlloc and cuMemFree, which waits for the whole device", 0,
                 c.device_pair_ns(q.bytes), 0, 0},
                q);
}
buffer_option pinned_copies(const question& q, const costs& c) {
  const std::uint64_t bytes = exchanged(q);
  return finish({memory_kind::pinned, "pinned memory from a pool, copied to and from device memory",
                 static_cast<double>(q.bytes) * usual_costs::pin_ns_a_byte, 2 * c.pool_pair_ns,
                 c.copy_call_ns + link_ns(bytes, c.profile.host_to_device_bytes_per_s) +
                     link_ns(bytes, c.pages.read_pass_bytes_per_s),
                 0},
                q);
}
buffer_option mapped(const question& q, const costs& c) {
  return finish(
      {memory_kind::pinned, "pinned memory from a pool, mapped: kernels touch it over the link",
       static_cast<double>(q.bytes) * usual_costs::pin_ns_a_byte, c.pool_pair_ns,
       c.pages.remote_round_trip_ns + link_ns(exchanged(q), c.profile.host_memory_bytes_per_s), 0},
      q);
}
buffer_option pageable_copies(const question& q, const costs& c) {
  const double rate = includes(q.writers, memory_side::host)
                          ? c.profile.pageable_to_device_bytes_per_s
                          : c.profile.device_to_pageable_bytes_per_s;
  return finish({memory_kind::pageable, "pageable memory with plain copies", 0,
                 usual_costs::pageable_pair_ns + c.pool_pair_ns,
                 c.copy_call_ns + link_ns(exchanged(q), rate), 0},
                q);
}
buffer_option managed_prefetched(const question& q, const costs& c) {
  const std::uint64_t bytes = exchanged(q);
  const bool back =
      includes(q.writers, memory_side::device) && includes(q.readers, memory_side::host);
  const double prefetch =
      c.pages.prefetch_call_ns + link_ns(bytes, back ? c.profile.managed_prefetch_back_bytes_per_s
                                                     : c.profile.managed_prefetch_bytes_per_s);
  return finish({memory_kind::managed, "managed memory, prefetched before each use", 0,
                 c.managed_pair_ns(q.bytes), prefetch, 0},
                q);
}
buffer_option host_only(const question& q) {
  return finish({memory_kind::pageable, "pageable memory", 0, usual_costs::pageable_pair_ns, 0, 0},
                q);
}

result<void> check(const question& q, const gpu_profile& p) {
  const auto wrong = [](const char* what) {
    return error{error_code::invalid_argument, std::string("choose: ") + what};
  };
  if (q.bytes == 0) return wrong("a buffer of 0 bytes needs no memory");
  if (!on_host(q) && !on_device(q)) return wrong("nobody writes or reads it");
  if (!(q.allocations >= 0) || !(q.exchanges >= 0) || !(q.lifetime_s >= 0))
    return wrong("counts and times are not negative");
  const auto too_large = [&](const char* where, std::uint64_t has, const char* instead) {
    return error{error_code::out_of_memory,
                 fmt::format("choose: {} is more than the {} of {}; {}", format_bytes(q.bytes),
                             format_bytes(has), where, instead)};
  };
  if (on_device(q) && !on_host(q) && q.bytes > p.device.total_bytes) {
    return too_large("device memory", p.device.total_bytes,
                     "work on it in parts, from pinned memory, or in managed memory that is larger "
                     "than the device");
  }
  if (on_host(q) && q.bytes > p.host_bytes)
    return too_large("host memory", p.host_bytes, "work on it in parts");
  return {};
}

void fill_settings(buffer_choice& made, const question& q, const gpu_profile& profile,
                   const costs& c) {
  const bool repeats = q.requests == question::pattern::repeating;
  switch (made.kind) {
    case memory_kind::device:
      made.pool = repeats                                           ? "planned_resource"
                  : made.cost.how.find("pool") != std::string::npos ? "millpond::pool"
                                                                    : "none";
      if (repeats)
        made.settings.push_back(
            "planned_resource over millpond::pool: each iteration at fixed offsets");
      else
        made.settings.push_back("pool::create(gpu), one cache a stream: pool.cache(stream)");
      if (q.size == question::growth::grows) {
        made.settings.push_back(
            profile.device.virtual_memory
                ? fmt::format(
                      "growable_buffer<T>: it grows in place, {} a step, and nothing is copied",
                      format_duration(c.call_ns("cuMemCreate", 32 * MiB) +
                                      c.call_ns("cuMemMap", 32 * MiB) +
                                      c.call_ns("cuMemSetAccess", 32 * MiB)))
                : "buffer<T>: reserve for the usual size; a resize copies on the stream");
      }
      // A pool keeps what it has for the next one. Where there is none, others may want it.
      if (!repeats && q.allocations < few_allocations && q.lifetime_s < short_life_s) {
        made.settings.push_back(
            "pool.trim(), or background_give_back: few such buffers and none for long, so the pool "
            "need not keep the memory between them");
      }
      break;
    case memory_kind::pinned:
      made.pool = "pinned pool";
      made.settings.push_back(fmt::format("make_pinned_pool(gpu, {{.initial_bytes = {}}})",
                                          std::max<std::uint64_t>(q.bytes, 32 * MiB)));
      if (made.cost.how.find("mapped") != std::string::npos && q.bytes <= 8)
        made.settings.push_back("control_block<T>");
      if (made.cost.how.find("mapped") == std::string::npos)
        made.settings.push_back("copy_async from it to a block of a device pool");
      if (q.writers == memory_side::host && q.readers == memory_side::device) {
        made.settings.push_back(".caching = write_combined where the CPU only writes it");
      }
      break;
    case memory_kind::managed:
      made.pool = "none";
      made.settings.push_back(
          "managed_resource with its use stated (streaming, or ping-pong where both write), and "
          "managed_buffer's views");
      break;
    case memory_kind::pageable:
      made.pool = "none";
      if (on_device(q)) {
        made.settings.push_back(
            exchanged(q) >= MiB
                ? "staging::to_device: several threads through a pinned buffer, at the pinned rate"
                : "copy_async: the driver stages it");
      }
      break;
    case memory_kind::driver_pool: break;
  }
}

std::vector<buffer_option> options_for(const question& q, const gpu_profile& profile,
                                       const costs& c) {
  if (!on_device(q)) return {host_only(q)};
  if (!on_host(q)) return {in_pool(q, c), by_calls(q, c)};
  std::vector<buffer_option> all{pageable_copies(q, c)};
  if (static_cast<double>(q.bytes) <= pinned_share * static_cast<double>(profile.host_bytes)) {
    all.push_back(pinned_copies(q, c));
    all.push_back(mapped(q, c));
  }
  if (profile.device.concurrent_managed_access) all.push_back(managed_prefetched(q, c));
  return all;
}

struct decision {
  std::size_t taken = 0;
  std::string rule;
};

const char* rule_of(const buffer_option& taken) {
  if (taken.kind == memory_kind::pageable)
    return "it goes over so seldom that pinning would not pay for itself";
  if (taken.kind == memory_kind::managed)
    return "it is larger than the device, and the driver moves what is needed";
  return taken.how.find("mapped") != std::string::npos
             ? "both sides touch it and it is small beside what a copy costs to start: no copy at "
               "all"
             : "it goes to and fro often enough to pay for pinning";
}

// `all`: the cheapest first.
decision decide(const std::vector<buffer_option>& all, const question& q,
                const gpu_profile& profile) {
  const auto first = [&](auto&& fits) {
    return static_cast<std::size_t>(std::ranges::find_if(all, fits) - all.begin());
  };
  if (!on_device(q))
    return {0,
            "the device never touches it, and pinning would take memory from every other process"};
  if (!on_host(q)) {
    return {first([](const auto& o) { return o.how.find("pool") != std::string::npos; }),
            q.requests == question::pattern::repeating
                ? "only the device touches it, and each iteration asks for the same: its call site "
                  "can be planned"
                : "only the device touches it: device memory, and a pool, whose free waits for "
                  "nobody"};
  }
  const std::size_t managed = first([](const auto& o) { return o.kind == memory_kind::managed; });
  if (q.program == question::stage::prototype && managed < all.size())
    return {managed, "a prototype: one pointer for both sides, prefetched"};
  // In production managed memory is chosen only where nothing else holds the data: when its pages
  // move is the driver's decision, and its worst cases are a thousand times its best.
  const std::size_t taken =
      q.bytes <= profile.device.total_bytes
          ? first([](const auto& o) { return o.kind != memory_kind::managed; })
          : 0;
  return {taken, rule_of(all[taken])};
}

}  // namespace

result<buffer_choice> choose(const buffer_question& q, const gpu_profile& profile) {
  if (auto good = check(q, profile); !good) return good.error();
  const costs c(profile);
  std::vector<buffer_option> all = options_for(q, profile, c);
  std::ranges::stable_sort(all, {}, &buffer_option::total_ns);
  const decision made_by = decide(all, q, profile);
  buffer_choice made;
  made.kind = all[made_by.taken].kind;
  made.cost = all[made_by.taken];
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i != made_by.taken) made.others.push_back(all[i]);
  }
  made.reason =
      fmt::format("{} ({} over the program", made_by.rule, format_duration(made.cost.total_ns));
  if (made.cost.exchange_ns > 0)
    made.reason += fmt::format(", {} an exchange of {}", format_duration(made.cost.exchange_ns),
                               format_bytes(exchanged(q)));
  made.reason += ")";
  for (const buffer_option& each : made.others) {
    made.reason += fmt::format("; {}: {}", each.how, format_duration(each.total_ns));
  }
  fill_settings(made, q, profile, c);
  return made;
}

}  // namespace millpond::advise
