#include "millpond/pool/metrics.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "millpond/driver/driver.hpp"
#include "millpond/memory/adaptors.hpp"
#include "millpond/pool/pool.hpp"

namespace millpond {
namespace {

struct pool_metric {
  const char* name;
  const char* help;
  metric_type type;
  std::uint64_t pool_statistics::* of;
};

constexpr auto gauge = metric_type::gauge;
constexpr auto counter = metric_type::counter;
using p = pool_statistics;

// In the order of docs/how_to/metrics.md.
constexpr std::array pool_metrics{
    pool_metric{"millpond_pool_live_bytes", "Bytes asked for and not freed.", gauge,
                &p::live_bytes},
    pool_metric{"millpond_pool_live_blocks", "Blocks allocated and not freed.", gauge,
                &p::live_blocks},
    pool_metric{"millpond_pool_reserved_bytes", "Physical memory that the pool holds.", gauge,
                &p::reserved_bytes},
    pool_metric{"millpond_pool_peak_reserved_bytes",
                "The most physical memory that the pool has held.", gauge, &p::peak_reserved_bytes},
    pool_metric{"millpond_pool_peak_out_bytes",
                "The largest sum of blocks that were live or kept by a cache.", gauge,
                &p::peak_out_bytes},
    pool_metric{"millpond_pool_mapped_bytes", "Addresses mapped; memory counts once a mapping.",
                gauge, &p::mapped_bytes},
    pool_metric{"millpond_pool_cached_bytes", "Free blocks in thread caches and stream caches.",
                gauge, &p::cached_bytes},
    pool_metric{"millpond_pool_pending_bytes",
                "Freed, waiting for a fence before other streams may have it.", gauge,
                &p::pending_bytes},
    pool_metric{"millpond_pool_idle_bytes", "Free for any stream.", gauge, &p::idle_bytes},
    pool_metric{"millpond_pool_capture_bytes", "Owned by captured graphs.", gauge,
                &p::capture_bytes},
    pool_metric{"millpond_pool_asleep_bytes", "Physical memory that is away while the pool sleeps.",
                gauge, &p::asleep_bytes},
    pool_metric{"millpond_pool_metadata_bytes", "Host memory of the pool's own books.", gauge,
                &p::metadata_bytes},
    pool_metric{"millpond_pool_streams", "Streams that the pool keeps books of.", gauge,
                &p::streams},
    pool_metric{"millpond_pool_thread_caches", "Thread caches: a thread on a stream.", gauge,
                &p::thread_caches},
    pool_metric{"millpond_pool_captures", "Captures and graphs that own memory.", gauge,
                &p::captures},
    pool_metric{"millpond_pool_graph_arenas", "Arenas that captured graphs share.", gauge,
                &p::graph_arenas},
    pool_metric{"millpond_pool_allocations_total", "Allocations served.", counter, &p::allocations},
    pool_metric{"millpond_pool_deallocations_total", "Blocks freed.", counter, &p::deallocations},
    pool_metric{"millpond_pool_thread_cache_hits_total",
                "Allocations served by a thread cache, with no lock.", counter,
                &p::thread_cache_hits},
    pool_metric{"millpond_pool_stream_cache_hits_total", "Allocations served by a stream cache.",
                counter, &p::stream_cache_hits},
    pool_metric{"millpond_pool_heap_hits_total", "Allocations served by the heap.", counter,
                &p::heap_hits},
    pool_metric{"millpond_pool_growths_total", "Physical handles created.", counter, &p::growths},
    pool_metric{"millpond_pool_stitches_total", "Handles mapped once more, for a stitched range.",
                counter, &p::stitches},
    pool_metric{"millpond_pool_given_back_bytes_total",
                "Bytes given back to the driver by trim, age, pressure and sleep.", counter,
                &p::given_back_bytes},
    pool_metric{"millpond_pool_seals_total", "Events recorded to fence frees.", counter, &p::seals},
    pool_metric{"millpond_pool_fence_queries_total",
                "Times the driver was asked whether a fence has passed.", counter,
                &p::fence_queries},
    pool_metric{"millpond_pool_stream_waits_total",
                "Waits put on a stream, where the policy allows them.", counter, &p::stream_waits},
    pool_metric{"millpond_pool_host_waits_total",
                "Times an allocation waited on the host for a fence.", counter, &p::host_waits},
    pool_metric{"millpond_pool_lock_waits_total", "Times a thread found the heap's lock taken.",
                counter, &p::lock_waits},
    pool_metric{"millpond_pool_thread_caches_flushed_total",
                "Thread caches of other threads emptied under pressure.", counter,
                &p::thread_caches_flushed},
    pool_metric{"millpond_pool_pressure_callbacks_total", "Calls of the program's on_pressure.",
                counter, &p::pressure_callbacks},
    pool_metric{"millpond_pool_soft_limit_passes_total", "Growths past the soft limit.", counter,
                &p::soft_limit_passes},
    pool_metric{"millpond_pool_out_of_memory_total", "Allocations that got no memory.", counter,
                &p::out_of_memory},
};

struct counted_metric {
  const char* name;
  const char* help;
  metric_type type;
  std::uint64_t allocation_statistics::* of;
};
using s = allocation_statistics;
constexpr std::array counted_metrics{
    counted_metric{"millpond_resource_live_bytes", "Bytes asked for and not freed.", gauge,
                   &s::live_bytes},
    counted_metric{"millpond_resource_live_blocks", "Blocks allocated and not freed.", gauge,
                   &s::live_blocks},
    counted_metric{"millpond_resource_peak_live_bytes", "The most bytes that were live at once.",
                   gauge, &s::peak_live_bytes},
    counted_metric{"millpond_resource_allocations_total", "Allocations that succeeded.", counter,
                   &s::allocations},
    counted_metric{"millpond_resource_deallocations_total", "Blocks freed.", counter,
                   &s::deallocations},
    counted_metric{"millpond_resource_failed_allocations_total", "Allocations that failed.",
                   counter, &s::failed_allocations},
    counted_metric{"millpond_resource_failed_deallocations_total", "Frees that failed.", counter,
                   &s::failed_deallocations},
};
constexpr const char* errors_counter = "millpond_deallocation_errors_total";
constexpr const char* size_histogram = "millpond_resource_allocation_size_bytes";

using labels = std::vector<std::pair<std::string, std::string>>;

labels labels_of(const metric_source& source, const memory_resource& of) {
  labels made{{"source", source.name}, {"kind", to_string(of.kind())}};
  if (const driver* const gpu = of.gpu()) {
    made.emplace_back("device", std::to_string(gpu->info().ordinal));
    // A simulated number must not pass for a card's.
    if (gpu->simulated()) made.emplace_back("simulated", "yes");
  }
  return made;
}

metric_sample sizes_of(const allocation_statistics& of, labels with) {
  metric_sample made{std::move(with), static_cast<double>(of.allocated_bytes), of.allocations, {}};
  std::uint64_t count = 0;
  for (const auto& each : of.classes) {
    count += each.allocations;
    // A class ends before a power of two; sizes are whole.
    made.buckets.emplace_back(static_cast<double>(each.to_bytes - 1), count);
  }
  made.count = count;
  return made;
}

// As the text format wants it: backslash and newline, in values the quote too.
std::string escaped(std::string_view text, bool quotes) {
  std::string made;
  for (const char each : text) {
    if (each == '\\') {
      made += "\\\\";
    } else if (each == '\n') {
      made += "\\n";
    } else if (quotes && each == '"') {
      made += "\\\"";
    } else {
      made += each;
    }
  }
  return made;
}

std::string number(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return fmt::format("{:.0f}", value);
  return fmt::format("{}", value);
}

std::string label_text(const labels& of, std::string_view less_or_equal = {}) {
  std::string made;
  for (const auto& [name, value] : of)
    made += fmt::format("{}{}=\"{}\"", made.empty() ? "" : ",", name, escaped(value, true));
  if (!less_or_equal.empty())
    made += fmt::format("{}le=\"{}\"", made.empty() ? "" : ",", less_or_equal);
  return made.empty() ? made : "{" + made + "}";
}

}  // namespace

std::vector<metric_family> collect_metrics(std::span<const metric_source> sources) {
  std::vector<metric_family> made;
  made.reserve(pool_metrics.size() + counted_metrics.size() + 2);
  for (const pool_metric& each : pool_metrics)
    made.push_back({each.name, each.help, each.type, {}});
  for (const counted_metric& each : counted_metrics)
    made.push_back({each.name, each.help, each.type, {}});
  const std::size_t sizes = made.size(), errors = sizes + 1;
  made.push_back(
      {size_histogram, "Sizes of allocations as asked for.", metric_type::histogram, {}});
  made.push_back(
      {errors_counter, "Frees that failed and were reported to the error sink.", counter, {}});
  const auto tell_errors = [&](const memory_resource& of, const labels& with) {
    made[errors].samples.push_back({with, static_cast<double>(of.deallocation_errors()), 0, {}});
  };
  for (const metric_source& source : sources) {
    if (const auto* const whole = std::get_if<const pool*>(&source.of)) {
      const pool_statistics now = (*whole)->statistics();
      const labels with = labels_of(source, **whole);
      for (std::size_t n = 0; n < pool_metrics.size(); ++n) {
        made[n].samples.push_back({with, static_cast<double>(now.*pool_metrics[n].of), 0, {}});
      }
      tell_errors(**whole, with);
      continue;
    }
    const statistics_resource& counted = *std::get<const statistics_resource*>(source.of);
    const allocation_statistics now = counted.statistics();
    const labels with = labels_of(source, counted);
    for (std::size_t n = 0; n < counted_metrics.size(); ++n) {
      made[pool_metrics.size() + n].samples.push_back(
          {with, static_cast<double>(now.*counted_metrics[n].of), 0, {}});
    }
    made[sizes].samples.push_back(sizes_of(now, with));
    tell_errors(counted, with);
  }
  return made;
}

std::string metrics_text(std::span<const metric_family> families) {
  static constexpr const char* types[] = {"gauge", "counter", "histogram"};
  std::string made;
  for (const metric_family& family : families) {
    if (family.samples.empty()) continue;
    made += fmt::format("# HELP {} {}\n# TYPE {} {}\n", family.name, escaped(family.help, false),
                        family.name, types[static_cast<std::size_t>(family.type)]);
    for (const metric_sample& each : family.samples) {
      if (family.type != metric_type::histogram) {
        made += fmt::format("{}{} {}\n", family.name, label_text(each.labels), number(each.value));
        continue;
      }
      for (const auto& [most, count] : each.buckets) {
        made += fmt::format("{}_bucket{} {}\n", family.name, label_text(each.labels, number(most)),
                            count);
      }
      made +=
          fmt::format("{}_bucket{} {}\n", family.name, label_text(each.labels, "+Inf"), each.count);
      made +=
          fmt::format("{}_sum{} {}\n", family.name, label_text(each.labels), number(each.value));
      made += fmt::format("{}_count{} {}\n", family.name, label_text(each.labels), each.count);
    }
  }
  return made;
}

std::string metrics_text(std::span<const metric_source> sources) {
  const std::vector<metric_family> families = collect_metrics(sources);
  return metrics_text(std::span<const metric_family>(families));
}

}  // namespace millpond
