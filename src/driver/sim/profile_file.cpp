// A profile as a TOML file: written from the struct, read back strictly. An unknown or missing name
// is an error with its line, so that a misspelt constant is not silently the default.
#include <fmt/format.h>

#include <toml++/toml.h>
#include <unistd.h>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>

#include "base/output_file.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace millpond {
namespace {

// Thrown and caught in this file alone: reading goes through many small steps.
struct bad_profile {
  std::string text;
};

class reader {
 public:
  explicit reader(std::string path) : path_(std::move(path)) {}

  [[noreturn]] void fail(const toml::node& node, const std::string& why) const {
    throw bad_profile{fmt::format("{}:{}: {}", path_, node.source().begin.line, why)};
  }
  const toml::node& need(const toml::table& table, std::string_view name) const {
    const toml::node* const node = table.get(name);
    if (node == nullptr) fail(table, fmt::format("`{}` is missing", name));
    return *node;
  }
  double number(const toml::table& table, std::string_view name) const {
    return number(need(table, name), name);
  }
  double number(const toml::node& node, std::string_view name) const {
    const auto value = node.is_number() ? node.value<double>() : std::nullopt;
    if (!value) fail(node, fmt::format("`{}` should be a number", name));
    if (!(*value >= 0 && *value < 1e19))
      fail(node, fmt::format("`{}` should be from 0 to 1e19, it is {}", name, *value));
    return *value;
  }
  std::uint64_t bytes(const toml::node& node, std::string_view name) const {
    const auto value = node.is_integer() ? node.value<std::int64_t>() : std::nullopt;
    if (!value || *value < 0)
      fail(node, fmt::format("`{}` should be a whole number of 0 or more", name));
    return static_cast<std::uint64_t>(*value);
  }
  std::uint64_t bytes(const toml::table& table, std::string_view name) const {
    return bytes(need(table, name), name);
  }
  int whole(const toml::table& table, std::string_view name) const {
    const auto& node = need(table, name);
    const auto value = node.is_integer() ? node.value<std::int64_t>() : std::nullopt;
    if (!value || *value < -1 || *value > 1'000'000)
      fail(node, fmt::format("`{}` should be a small whole number", name));
    return static_cast<int>(*value);
  }
  bool truth(const toml::table& table, std::string_view name) const {
    const auto& node = need(table, name);
    if (!node.is_boolean()) fail(node, fmt::format("`{}` should be true or false", name));
    return *node.value<bool>();
  }
  std::string text(const toml::table& table, std::string_view name) const {
    const auto& node = need(table, name);
    if (!node.is_string()) fail(node, fmt::format("`{}` should be a string", name));
    return *node.value<std::string>();
  }
  const toml::table& table(const toml::table& parent, std::string_view name) const {
    const auto& node = need(parent, name);
    if (!node.is_table()) fail(node, fmt::format("`{}` should be a table", name));
    return *node.as_table();
  }
  // [[bytes, p50_ns, p99_ns], ...]
  cost_table costs(const toml::node& node, std::string_view name) const {
    const toml::array* const rows = node.as_array();
    if (rows == nullptr || rows->empty()) {
      fail(node, fmt::format("`{}` should be a list of [bytes, p50_ns, p99_ns]", name));
    }
    cost_table out;
    for (const toml::node& row : *rows) {
      const toml::array* const values = row.as_array();
      if (values == nullptr || values->size() != 3) {
        fail(row, fmt::format("a row of `{}` should be [bytes, p50_ns, p99_ns]", name));
      }
      const cost_point point{bytes((*values)[0], name), number((*values)[1], name),
                             number((*values)[2], name)};
      if (!out.points.empty() && point.bytes <= out.points.back().bytes) {
        fail(row, fmt::format("the sizes of `{}` should rise: {} comes after {}", name, point.bytes,
                              out.points.back().bytes));
      }
      if (point.p99_ns < point.p50_ns) {
        fail(row, fmt::format("`{}` has a p99 ({}) below its p50 ({})", name, point.p99_ns,
                              point.p50_ns));
      }
      out.points.push_back(point);
    }
    return out;
  }
  void only(const toml::table& table, const std::set<std::string_view>& names) const {
    for (const auto& [key, node] : table) {
      if (!names.contains(key.str()))
        fail(node, fmt::format("`{}` is not a name of a profile", key.str()));
    }
  }

 private:
  std::string path_;
};

// The names of the device table, in both directions.
template <class Visitor>
void visit_device(device_info& d, Visitor&& v) {
  v("name", d.name);
  v("compute_major", d.compute_major);
  v("compute_minor", d.compute_minor);
  v("multiprocessors", d.multiprocessors);
  v("total_bytes", d.total_bytes);
  v("granularity", d.granularity);
  v("host_granularity", d.host_granularity);
  v("virtual_memory", d.virtual_memory);
  v("memory_pools", d.memory_pools);
  v("concurrent_managed_access", d.concurrent_managed_access);
  v("pageable_memory_access", d.pageable_memory_access);
  v("posix_fd_export", d.posix_fd_export);
  v("unified_addressing", d.unified_addressing);
  v("host_numa_id", d.host_numa_id);
  v("l2_bytes", d.l2_bytes);
}

// The names of the rates table.
template <class Visitor>
void visit_rates(gpu_profile& p, Visitor&& v) {
  v("default_call_ns", p.default_call_ns);
  v("launch_latency_ns", p.launch_latency_ns);
  v("kernel_overhead_ns", p.kernel_overhead_ns);
  v("memory_bytes_per_s", p.memory_bytes_per_s);
  v("host_to_device_bytes_per_s", p.host_to_device_bytes_per_s);
  v("device_to_host_bytes_per_s", p.device_to_host_bytes_per_s);
  v("pageable_to_device_bytes_per_s", p.pageable_to_device_bytes_per_s);
  v("device_to_pageable_bytes_per_s", p.device_to_pageable_bytes_per_s);
  v("host_memory_bytes_per_s", p.host_memory_bytes_per_s);
  v("managed_fault_in_bytes_per_s", p.managed_fault_in_bytes_per_s);
  v("managed_together_share", p.managed_together_share);
  v("after_pageable_factor", p.after_pageable_factor);
  v("managed_prefetch_bytes_per_s", p.managed_prefetch_bytes_per_s);
  v("managed_prefetch_back_bytes_per_s", p.managed_prefetch_back_bytes_per_s);
  v("managed_fault_back_bytes_per_s", p.managed_fault_back_bytes_per_s);
}

struct field_reader {
  const reader& read;
  const toml::table& table;
  std::set<std::string_view> names{};
  void operator()(const char* name, std::string& out) {
    names.insert(name), out = read.text(table, name);
  }
  void operator()(const char* name, int& out) { names.insert(name), out = read.whole(table, name); }
  void operator()(const char* name, std::uint64_t& out) {
    names.insert(name), out = read.bytes(table, name);
  }
  void operator()(const char* name, bool& out) {
    names.insert(name), out = read.truth(table, name);
  }
  void operator()(const char* name, double& out) {
    names.insert(name), out = read.number(table, name);
  }
};

std::string toml_string(std::string_view text) {
  std::ostringstream out;
  out << toml::value<std::string>(std::string(text));
  return out.str();
}

// The shortest text that reads back as the same number.
std::string digits(double value) {
  std::array<char, 64> text{};
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  return {text.data(), end.ptr};
}

struct field_writer {
  std::string& out;
  void operator()(const char* name, const std::string& value) {
    out += fmt::format("{} = {}\n", name, toml_string(value));
  }
  void operator()(const char* name, int value) { out += fmt::format("{} = {}\n", name, value); }
  void operator()(const char* name, std::uint64_t value) {
    out += fmt::format("{} = {}\n", name, value);
  }
  void operator()(const char* name, bool value) { out += fmt::format("{} = {}\n", name, value); }
  void operator()(const char* name, double value) {
    out += fmt::format("{} = {}\n", name, digits(value));
  }
};

std::string rows_of(const cost_table& table) {
  std::string out = "[";
  for (const cost_point& point : table.points) {
    out += fmt::format("{}[{}, {}, {}]", out.size() > 1 ? ", " : "", point.bytes,
                       digits(point.p50_ns), digits(point.p99_ns));
  }
  return out + "]";
}

gpu_profile from_toml(const reader& read, const toml::table& root) {
  gpu_profile p;
  read.only(root,
            {"name", "source", "host_bytes", "device", "rates", "pools", "calls", "allocator"});
  p.name = read.text(root, "name");
  p.source = read.text(root, "source");
  p.host_bytes = read.bytes(root, "host_bytes");
  field_reader device{read, read.table(root, "device")};
  visit_device(p.device, device);
  read.only(device.table, device.names);
  field_reader rates{read, read.table(root, "rates")};
  visit_rates(p, rates);
  read.only(rates.table, rates.names);
  const toml::table& pools = read.table(root, "pools");
  read.only(pools, {"step_bytes", "growth", "shrink"});
  p.pool_step_bytes = read.bytes(pools, "step_bytes");
  p.pool_growth = read.costs(read.need(pools, "growth"), "growth");
  p.pool_shrink = read.costs(read.need(pools, "shrink"), "shrink");
  for (const auto& [key, node] : read.table(root, "calls")) {
    p.calls[std::string(key.str())] = read.costs(node, key.str());
  }
  if (root.get("allocator") != nullptr) {
    const toml::table& allocator = read.table(root, "allocator");
    read.only(allocator, {"source", "path_ns"});
    p.allocator_path_source = read.text(allocator, "source");
    for (const auto& [key, node] : read.table(allocator, "path_ns")) {
      p.allocator_path_ns[std::string(key.str())] = read.number(node, key.str());
    }
  }
  return p;
}

}  // namespace

result<gpu_profile> load_profile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return error{error_code::bad_input, fmt::format("{}: cannot be opened", path)};
  std::ostringstream text;
  text << file.rdbuf();
  try {
    const toml::table root = toml::parse(text.str(), path);
    return from_toml(reader(path), root);
  } catch (const toml::parse_error& failure) {
    return error{error_code::bad_input, fmt::format("{}:{}: {}", path, failure.source().begin.line,
                                                    failure.description())};
  } catch (const bad_profile& failure) {
    return error{error_code::bad_input, failure.text};
  }
}

result<void> save_profile(const gpu_profile& profile, const std::string& path) {
  gpu_profile p = profile;
  std::string out = fmt::format(
      "# A millpond profile: what one GPU and its host cost. Times in nanoseconds, sizes in "
      "bytes.\n"
      "name = {}\nsource = {}\nhost_bytes = {}\n\n[device]\n",
      toml_string(p.name), toml_string(p.source), p.host_bytes);
  visit_device(p.device, field_writer{out});
  out += "\n[rates]\n";
  visit_rates(p, field_writer{out});
  out += fmt::format(
      "\n# Rows are [bytes, p50_ns, p99_ns].\n[pools]\nstep_bytes = {}\ngrowth = {}\nshrink = "
      "{}\n\n[calls]\n",
      p.pool_step_bytes, rows_of(p.pool_growth), rows_of(p.pool_shrink));
  for (const auto& [call, table] : p.calls)
    out += fmt::format("{} = {}\n", toml_string(call), rows_of(table));
  if (!p.allocator_path_ns.empty()) {
    out += fmt::format("\n[allocator]\nsource = {}\n[allocator.path_ns]\n",
                       toml_string(p.allocator_path_source));
    for (const auto& [name, cost] : p.allocator_path_ns)
      out += fmt::format("{} = {}\n", toml_string(name), digits(cost));
  }
  auto file = output_file::create(path);
  if (!file) return file.error();
  if (auto done = file->write({reinterpret_cast<const std::uint8_t*>(out.data()), out.size()});
      !done)
    return done;
  return file->put_in_place();
}

result<gpu_profile> find_profile(const std::string& name_or_path) {
  if (name_or_path == "h200") return gpu_profile::h200();
  if (access(name_or_path.c_str(), F_OK) != 0) {
    return error{
        error_code::bad_input,
        fmt::format(
            "{}: no profile of that name (h200 is the one that is built in), and no such file; "
            "`millpond calibrate` writes one of a card",
            name_or_path)};
  }
  return load_profile(name_or_path);
}

}  // namespace millpond
