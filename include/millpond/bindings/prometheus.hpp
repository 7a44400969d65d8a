// millpond's metrics for prometheus-cpp: a Collectable that reads pools and counted resources when
// it is asked, for an Exposer (HTTP), a Gateway, or a registry of the program's own.
//
//     auto metrics = std::make_shared<millpond::prometheus_collectable>(
//         std::vector<millpond::metric_source>{{"activations", &pool}});
//     prometheus::Exposer exposer("127.0.0.1:9464");
//     exposer.RegisterCollectable(metrics);      // http://127.0.0.1:9464/metrics
//
// The sources must outlive the collectable. Thread-safe as metrics.hpp is. Includes
// prometheus-cpp's headers (Debian: prometheus-cpp-dev), which are the user's to have; the program
// links prometheus-cpp::pull for an Exposer.
#pragma once
#include "millpond/detail/language.hpp"

#include <prometheus/client_metric.h>
#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <limits>
#include <utility>
#include <vector>

#include "millpond/pool/metrics.hpp"

namespace millpond {

class prometheus_collectable final : public prometheus::Collectable {
 public:
  explicit prometheus_collectable(std::vector<metric_source> sources)
      : sources_(std::move(sources)) {}

  [[nodiscard]] std::vector<prometheus::MetricFamily> Collect() const override {
    std::vector<prometheus::MetricFamily> made;
    for (const metric_family& family : collect_metrics(sources_)) {
      if (family.samples.empty()) continue;
      prometheus::MetricFamily out;
      out.name = family.name;
      out.help = family.help;
      out.type = family.type == metric_type::gauge     ? prometheus::MetricType::Gauge
                 : family.type == metric_type::counter ? prometheus::MetricType::Counter
                                                       : prometheus::MetricType::Histogram;
      for (const metric_sample& each : family.samples)
        out.metric.push_back(sample(family.type, each));
      made.push_back(std::move(out));
    }
    return made;
  }

 private:
  static prometheus::ClientMetric sample(metric_type type, const metric_sample& of) {
    prometheus::ClientMetric made;
    for (const auto& [name, value] : of.labels) made.label.push_back({name, value});
    switch (type) {
      case metric_type::gauge: made.gauge.value = of.value; break;
      case metric_type::counter: made.counter.value = of.value; break;
      case metric_type::histogram:
        made.histogram.sample_count = of.count;
        made.histogram.sample_sum = of.value;
        for (const auto& [most, count] : of.buckets) made.histogram.bucket.push_back({count, most});
        made.histogram.bucket.push_back({of.count, std::numeric_limits<double>::infinity()});
        break;
    }
    return made;
  }

  std::vector<metric_source> sources_;
};

}  // namespace millpond
