// The numbers of pools and counted resources as metrics, in the text format of Prometheus.
//
//     const millpond::metric_source sources[] = {{"activations", &pool}, {"requests", &counted}};
//     answer(millpond::metrics_text(sources));   // content type: millpond::metrics_content_type
//
// docs/how_to/metrics.md lists the names. Serving them over HTTP is the program's own affair, or
// that of millpond/bindings/prometheus.hpp (prometheus-cpp).
#pragma once
#include "millpond/detail/language.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace millpond {

class pool;
class statistics_resource;

// Whose numbers, and the value of their label `source`: distinct names where there are several.
// Read at each call, from any thread; must live until it returns.
struct metric_source {
  std::string name = {};
  std::variant<const pool*, const statistics_resource*> of = {};
};

enum class metric_type : std::uint8_t { gauge, counter, histogram };

struct metric_sample {
  std::vector<std::pair<std::string, std::string>> labels = {};
  double value = 0;         // of a histogram: the sum of what was observed
  std::uint64_t count = 0;  // of a histogram: how many observations
  std::vector<std::pair<double, std::uint64_t>>
      buckets;  // of a histogram: up to and with, counted from the smallest on
};

// What has one name. Units are in the name: _bytes; a counter's name ends in _total.
struct metric_family {
  std::string name = {}, help = {};
  metric_type type = metric_type::gauge;
  std::vector<metric_sample> samples = {};
};

// Every family, also one without samples. No driver call, no lock that an allocation on the fast
// path takes; the values are a moment's, as pool::statistics() says.
[[nodiscard]] std::vector<metric_family> collect_metrics(std::span<const metric_source> sources);

// Version 0.0.4 of the text format: UTF-8, lines ended by a newline. Families without samples are
// left out.
[[nodiscard]] std::string metrics_text(std::span<const metric_family> families);
[[nodiscard]] std::string metrics_text(std::span<const metric_source> sources);
inline constexpr std::string_view metrics_content_type = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace millpond
