// millpond pages: what managed memory will do under one pattern of access, and what would be
// better.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>

#include "advise/page_alternatives.hpp"
#include "cli/command.hpp"
#include "cli/option_values.hpp"
#include "millpond/base/units.hpp"
#include "report/table.hpp"

namespace millpond::cli {
namespace {

namespace pages = sim::pages;
using nlohmann::ordered_json;

struct pages_arguments {
  std::string size = "256MiB", page, stride, device_memory;
  std::string pattern = "stream", access = "read-write", start = "host", mode;
  std::vector<std::string> advice;
  bool prefetch = false;
  bool access_counters = false;
  std::uint64_t touches = 0;
  std::uint64_t rounds = 1;
  std::uint64_t seed = 1;
};

struct named_advice {
  const char* name;
  pages::advice_given given;
};
constexpr named_advice advices[] = {
    {"read-mostly", {managed_advice::set_read_mostly, memory_location::device}},
    {"preferred-host", {managed_advice::set_preferred_location, memory_location::host}},
    {"preferred-device", {managed_advice::set_preferred_location, memory_location::device}},
    {"accessed-by-host", {managed_advice::set_accessed_by, memory_location::host}},
    {"accessed-by-device", {managed_advice::set_accessed_by, memory_location::device}},
};

result<std::uint64_t> bytes_of(const char* option, const std::string& text) {
  std::uint64_t bytes = 0;
  if (parse_bytes(text, bytes) && bytes > 0) return bytes;
  return error{error_code::invalid_argument,
               fmt::format("{}: expected a number of bytes as 1048576, 64k or 1MiB, found `{}`",
                           option, text)};
}

result<std::uint64_t> ideal_page(const std::string& text) {
  auto bytes = bytes_of("--page", text);
  if (!bytes) return bytes;
  const bool power = (*bytes & (*bytes - 1)) == 0;
  if (power && *bytes >= pages::base_page_bytes && *bytes <= pages::block_bytes) return bytes;
  return error{error_code::invalid_argument,
               fmt::format("--page: expected a power of two from 4KiB to 2MiB, the pages that a "
                           "fault can move, found `{}`",
                           text)};
}

error refused(std::string why) {
  return {error_code::invalid_argument, std::move(why)};
}

// What the program does with its memory.
result<void> take_pattern(const pages_arguments& a, pages::run_options& o) {
  const auto size = bytes_of("--size", a.size);
  if (!size) return size.error();
  o.bytes = *size;
  const auto kind = pages::parse_pattern(a.pattern);
  if (!kind)
    return refused(fmt::format(
        "--pattern: expected stream, stride, random, blocked or ping-pong, found `{}`", a.pattern));
  o.pattern = *kind;
  if (!a.stride.empty()) {
    const auto stride = bytes_of("--stride", a.stride);
    if (!stride) return stride.error();
    o.stride = *stride;
  }
  if ((o.pattern == pages::pattern_kind::stride) != (o.stride != 0)) {
    return refused(
        "--stride BYTES and --pattern stride go together: one byte is touched in each stride");
  }
  o.touches = a.touches;
  o.access = a.access == "read"    ? access_kind::read
             : a.access == "write" ? access_kind::write
                                   : access_kind::read_write;
  o.start = a.start == "untouched" ? pages::start_location::untouched
            : a.start == "device"  ? pages::start_location::device
                                   : pages::start_location::host;
  for (const std::string& name : a.advice) {
    for (const named_advice& each : advices) {
      if (name == each.name) o.advice.push_back(each.given);
    }
  }
  if (a.prefetch) o.each_kernel = pages::run_options::before::prefetch;
  o.rounds = a.rounds;
  o.seed = a.seed;
  return {};
}

// Which machine it does it on.
result<void> take_machine(const pages_arguments& a, const gpu_profile& profile,
                          pages::run_options& o) {
  if (a.access_counters) o.access_counters = pages::space::options::counters::move;
  o.device_bytes = profile.device.total_bytes;
  if (!a.device_memory.empty()) {
    const auto limit = bytes_of("--device-memory", a.device_memory);
    if (!limit) return limit.error();
    if (*limit < 8 * pages::block_bytes)
      return refused("--device-memory: at least 16MiB, eight blocks of 2 MiB");
    o.device_bytes = *limit;
  }
  if (a.page.empty()) {
    if (a.mode == "ideal")
      return refused("--mode ideal needs --page: the bytes that one fault moves");
    return {};
  }
  const auto page = ideal_page(a.page);
  if (!page) return page.error();
  if (a.mode == "driver")
    return refused("--page is the idealised machine's; the driver chooses its pages itself");
  if (!o.advice.empty())
    return refused(
        "--page is the idealised machine's, which knows no advice; leave one of them out");
  o.ideal_page_bytes = *page;
  return {};
}

// An error where the options cannot be had together or on this machine.
result<pages::run_options> options_of(const pages_arguments& a, const gpu_profile& profile) {
  pages::run_options o;
  if (const auto done = take_pattern(a, o); !done) return done.error();
  if (const auto done = take_machine(a, profile, o); !done) return done.error();
  if (!profile.device.concurrent_managed_access && (a.prefetch || !o.advice.empty())) {
    return error{error_code::not_supported,
                 fmt::format("{} has no concurrent managed access: there all managed memory is on "
                             "the device while a kernel runs, and advice and prefetch are refused",
                             profile.name)};
  }
  if (o.bytes > profile.host_bytes + o.device_bytes) {
    return error{error_code::bad_input,
                 fmt::format("--size: {} is more than the {} of host memory and the {} of device "
                             "memory of {} together",
                             format_bytes(o.bytes), format_bytes(profile.host_bytes),
                             format_bytes(o.device_bytes), profile.name)};
  }
  return o;
}

struct finding {
  const advise::page_alternative* best = nullptr;  // null: nothing is clearly faster
  std::string text;
};

finding judge(const pages::run_report& r, const std::vector<advise::page_alternative>& others) {
  const double own = r.total_ns();
  if (others.empty() || others.front().ns > 0.9 * own)
    return {nullptr, "nothing else here is clearly faster"};
  const auto& best = others.front();
  return {&best,
          fmt::format("{}: {} instead of {}, {:.1f} times faster; {}", best.what,
                      format_duration(best.ns), format_duration(own), own / best.ns, best.why)};
}

ordered_json as_json(const pages_arguments& a, const pages::run_options& o,
                     const gpu_profile& profile, const pages::run_report& r,
                     const std::vector<advise::page_alternative>& others) {
  const pages::page_counts& c = r.counts;
  ordered_json out{{"mode", o.ideal_page_bytes != 0 ? "ideal" : "driver"},
                   {"profile", profile.name},
                   {"simulated", true},
                   {"size_bytes", o.bytes},
                   {"pattern", to_string(o.pattern)},
                   {"access", a.access},
                   {"start", a.start},
                   {"advice", a.advice},
                   {"prefetch", a.prefetch},
                   {"rounds", o.rounds},
                   {"device_bytes", o.device_bytes}};
  if (o.ideal_page_bytes != 0) out["page_bytes"] = o.ideal_page_bytes;
  if (o.stride != 0) out["stride_bytes"] = o.stride;
  out["faults"] = c.faults;
  out["merged_faults"] = c.merged_faults;
  out["fault_batches"] = c.batches;
  out["host_faults"] = c.host_faults;
  out["tlb"] = {{"lookups", r.tlb.lookups},
                {"hits", r.tlb.hits()},
                {"misses", r.tlb.misses},
                {"first_level_hits", r.tlb.first_hits},
                {"second_level_hits", r.tlb.second_hits},
                {"last_level_hits", r.tlb.last_hits}};
  out["bytes_to_device"] = c.bytes_to_device;
  out["bytes_to_host"] = c.bytes_to_host;
  out["populated_bytes"] = c.populated_bytes;
  out["remote_bytes"] = c.remote_bytes;
  out["duplicated_bytes"] = c.duplicated_bytes;
  out["collapses"] = c.collapses;
  out["evictions"] = c.evictions;
  out["evicted_bytes"] = c.evicted_bytes;
  out["throttles"] = c.throttles;
  out["thrash_pins"] = c.thrash_pins;
  out["counter_moves"] = c.counter_moves;
  out["time_ms"] = r.total_ns() / 1e6;
  out["prefetch_ms"] = r.prefetch_ns / 1e6;
  out["fault_ms"] = r.fault_ns / 1e6;
  out["access_ms"] = r.access_ns / 1e6;
  out["host_ms"] = r.host_ns / 1e6;
  out["round_us"] = {{"p50", r.round_at_ns(0.5) / 1e3},
                     {"p99", r.round_at_ns(0.99) / 1e3},
                     {"max", r.round_at_ns(1) / 1e3}};
  const finding found = judge(r, others);
  out["better"] = found.best != nullptr ? ordered_json(found.best->what) : ordered_json(nullptr);
  out["alternatives"] = ordered_json::array();
  for (const auto& each : others)
    out["alternatives"].push_back(
        {{"what", each.what}, {"time_ms", each.ns / 1e6}, {"why", each.why}});
  return out;
}

std::string as_text(const pages_arguments& a, const pages::run_options& o,
                    const gpu_profile& profile, const pages::run_report& r,
                    const std::vector<advise::page_alternative>& others) {
  const pages::page_counts& c = r.counts;
  const std::string title = fmt::format(
      "{} of managed memory, {} ({}), data {}; predicted for {}{}", format_bytes(o.bytes),
      to_string(o.pattern), a.access, a.start == "untouched" ? "untouched" : "on the " + a.start,
      profile.name,
      o.ideal_page_bytes != 0
          ? fmt::format(", idealised: one fault moves {}", format_bytes(o.ideal_page_bytes))
          : std::string(", as the driver does it"));
  std::string text = report::wrapped(title, 80, 0) + "\n\n";
  report::table t({"what", "number"});
  const auto count = [&](const char* name, std::uint64_t value, bool always) {
    if (always || value != 0) t.add({name, report::grouped(value)});
  };
  const auto size = [&](const char* name, std::uint64_t value, bool always) {
    if (always || value != 0) t.add({name, format_bytes(value)});
  };
  count("faults", c.faults, true);
  count("fault batches", c.batches, true);
  count("faults merged as duplicates", c.merged_faults, false);
  count("CPU faults", c.host_faults, false);
  count("TLB hits", r.tlb.hits(), true);
  count("TLB misses", r.tlb.misses, true);
  size("moved to the device", c.bytes_to_device, true);
  size("moved to the host", c.bytes_to_host, true);
  size("first touched on the device", c.populated_bytes, false);
  size("touched over the link", c.remote_bytes, false);
  size("duplicated for reading", c.duplicated_bytes, false);
  count("duplicates collapsed by a write", c.collapses, false);
  count("blocks evicted", c.evictions, false);
  count("faults throttled as thrashing", c.throttles, false);
  count("blocks pinned against thrashing", c.thrash_pins, false);
  count("blocks moved by access counters", c.counter_moves, false);
  t.add({"time", format_duration(r.total_ns())});
  if (r.prefetch_ns > 0) t.add({"  prefetching", format_duration(r.prefetch_ns)});
  if (r.fault_ns > 0) t.add({"  waiting for pages", format_duration(r.fault_ns)});
  t.add({"  the kernels themselves", format_duration(r.access_ns)});
  if (r.host_ns > 0) t.add({"  the CPU's side", format_duration(r.host_ns)});
  if (o.rounds > 1) {
    t.add({"a round, p50", format_duration(r.round_at_ns(0.5))});
    t.add({"a round, p99", format_duration(r.round_at_ns(0.99))});
  }
  text += t.text();
  text += "\n" + report::paragraph("Better: ", judge(r, others).text);
  for (const auto& each : others)
    text += fmt::format("  {:>10}  {}\n", format_duration(each.ns), each.what);
  return text;
}

exit_status pages_command(session& here, const pages_arguments& arguments) {
  if (here.gpu().what == gpu_choice::kind::card) {
    return here.fail(
        exit_status::usage,
        fmt::format("--gpu {}: pages predicts from a profile and measures nothing on a "
                    "card: leave --gpu out, or name a profile (sim:PROFILE)",
                    here.gpu().ordinal));
  }
  gpu_profile profile = gpu_profile::h200();
  if (!here.gpu().profile.empty()) {
    auto found = find_profile(here.gpu().profile);
    if (!found) return here.fail(found.error());
    profile = std::move(*found);
  }
  auto options = options_of(arguments, profile);
  if (!options) return here.fail(options.error());
  here.progress("running the page machine");
  const pages::page_costs costs = pages::page_costs::from(profile);
  const pages::run_report report = pages::run(*options, costs);
  const auto others = advise::page_alternatives(*options, costs);
  here.end_progress();
  if (here.json()) {
    here.out() << document_of(as_json(arguments, *options, profile, report, others));
  } else {
    here.out() << as_text(arguments, *options, profile, report, others);
  }
  return exit_status::done;
}

}  // namespace

command_body add_pages(CLI::App& app) {
  const auto a = std::make_shared<pages_arguments>();
  std::vector<std::string> advice_names;
  for (const named_advice& each : advices) advice_names.emplace_back(each.name);
  app.add_option("--size", a->size, "Of the managed allocation")
      ->type_name("BYTES")
      ->capture_default_str();
  app.add_option("--pattern", a->pattern,
                 "stream, stride, random, blocked, or ping-pong with the CPU")
      ->capture_default_str();
  app.add_option("--stride", a->stride, "With --pattern stride: one byte is touched in each")
      ->type_name("BYTES");
  app.add_option("--touches", a->touches,
                 "With --pattern random: so many; otherwise one for each 4 KiB")
      ->type_name("N")
      ->check(whole_number());
  app.add_option("--access", a->access, "What kernels do")
      ->check(CLI::IsMember({"read", "write", "read-write"}))
      ->capture_default_str();
  app.add_option("--start", a->start, "Where the data is before")
      ->check(CLI::IsMember({"untouched", "host", "device"}))
      ->capture_default_str();
  app.add_option("--advice", a->advice,
                 fmt::format("cudaMemAdvise: {}", fmt::join(advice_names, ", ")))
      ->check(CLI::IsMember(advice_names))
      ->delimiter(',')
      ->type_name("NAME");
  app.add_flag("--prefetch", a->prefetch, "cudaMemPrefetchAsync to the device before each kernel");
  app.add_option("--rounds", a->rounds, "Kernels, one after the other")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1000000}))
      ->capture_default_str();
  app.add_option("--page", a->page,
                 "The idealised machine: one fault moves exactly this many bytes")
      ->type_name("BYTES");
  app.add_option("--mode", a->mode, "driver: as it really is; ideal: the textbook's, with --page")
      ->check(CLI::IsMember({"driver", "ideal"}));
  app.add_option("--device-memory", a->device_memory, "For managed pages; less than --size evicts")
      ->type_name("BYTES");
  app.add_flag("--access-counters", a->access_counters,
               "Move remotely mapped blocks that are touched often, as machines with address "
               "translation services do");
  app.add_option("--seed", a->seed, "Of random touches")->capture_default_str();
  return [a](session& here) { return pages_command(here, *a); };
}

}  // namespace millpond::cli
