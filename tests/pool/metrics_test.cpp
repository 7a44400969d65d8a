// Metrics in the text format of Prometheus, read back by a parser that is strict about it.
#include "millpond/pool/metrics.hpp"

#include <gmock/gmock.h>

#include <cctype>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

#include "millpond/base/units.hpp"
#include "millpond/memory/adaptors.hpp"
#include "millpond/pool/pool.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace millpond {
namespace {

struct read_sample {
  std::string name;
  std::map<std::string, std::string> labels;
  double value = 0;
};
struct read_family {
  std::string type, help;
  std::vector<read_sample> samples;
};

// https://prometheus.io/docs/instrumenting/exposition_formats: lines, escapes, names, and each
// family in one piece with its HELP and TYPE before it.
class text_parser {
 public:
  std::map<std::string, read_family> families;
  std::string fault;

  explicit text_parser(const std::string& text) {
    if (!text.empty() && text.back() != '\n') fault = "the last line does not end";
    std::istringstream lines(text);
    for (std::string line; fault.empty() && std::getline(lines, line);) {
      if (line.starts_with("# HELP ") || line.starts_with("# TYPE ")) {
        comment(line);
      } else {
        sample(line);
      }
      if (!fault.empty()) fault += ": " + line;
    }
  }

 private:
  static bool name_letter(char each, bool first) {
    return std::isalpha(static_cast<unsigned char>(each)) != 0 || each == '_' || each == ':' ||
           (!first && std::isdigit(static_cast<unsigned char>(each)) != 0);
  }
  std::string take_name(const std::string& line, std::size_t& at) {
    const std::size_t begin = at;
    while (at < line.size() && name_letter(line[at], at == begin)) ++at;
    if (at == begin) fault = "a name was expected";
    return line.substr(begin, at - begin);
  }
  void comment(const std::string& line) {
    std::size_t at = 7;
    const std::string name = take_name(line, at);
    if (at >= line.size() || line[at] != ' ') {
      fault = "a blank was expected";
      return;
    }
    const bool help = line[2] == 'H';
    if (help && families.contains(name)) fault = "a family twice";
    read_family& of = families[name];
    (help ? of.help : of.type) = line.substr(at + 1);
    if (!help && !of.samples.empty()) fault = "a type behind samples";
    current_ = name;
  }
  void sample(const std::string& line) {
    std::size_t at = 0;
    read_sample made;
    made.name = take_name(line, at);
    if (at < line.size() && line[at] == '{') {
      ++at;
      while (fault.empty() && at < line.size() && line[at] != '}') {
        const std::string label = take_name(line, at);
        if (line.substr(at, 2) != "=\"") {
          fault = "=\" was expected";
          return;
        }
        std::string value;
        for (at += 2; at < line.size() && line[at] != '"'; ++at) {
          if (line[at] != '\\') {
            value += line[at];
            continue;
          }
          ++at;
          if (at >= line.size() || (line[at] != '\\' && line[at] != '"' && line[at] != 'n')) {
            fault = "an unknown escape";
            return;
          }
          value += line[at] == 'n' ? '\n' : line[at];
        }
        ++at;
        if (!made.labels.emplace(label, value).second) fault = "a label twice";
        if (at < line.size() && line[at] == ',') ++at;
      }
      ++at;
    }
    if (at >= line.size() || line[at] != ' ') {
      fault = "a blank was expected before the value";
      return;
    }
    std::size_t used = 0;
    const std::string number = line.substr(at + 1);
    try {
      made.value = std::stod(number, &used);
    } catch (...) {
      used = 0;
    }
    if (used != number.size()) fault = "a number was expected";
    read_family& of = families[current_];
    const bool part = of.type == "histogram" &&
                      (made.name == current_ + "_bucket" || made.name == current_ + "_sum" ||
                       made.name == current_ + "_count");
    if (made.name != current_ && !part) fault = "a sample outside its family";
    of.samples.push_back(std::move(made));
  }
  std::string current_;
};

class metrics : public ::testing::Test {
 protected:
  metrics()
      : gpu_(simulated_gpu::create().value()), pool_(pool::create(gpu_).value()), counted_(*pool_) {
    EXPECT_TRUE(gpu_->bind_thread().ok());
    EXPECT_TRUE(gpu_->stream_create(&stream_).ok());
  }
  ~metrics() override { (void)gpu_->stream_synchronize(stream_); }

  const read_sample* find(const text_parser& in, const std::string& name,
                          const std::string& source) const {
    const auto family = in.families.find(name);
    if (family == in.families.end()) return nullptr;
    for (const read_sample& each : family->second.samples) {
      if (each.labels.at("source") == source) return &each;
    }
    return nullptr;
  }

  std::shared_ptr<simulated_gpu> gpu_;
  std::shared_ptr<pool> pool_;
  statistics_resource counted_;
  stream_handle stream_ = nullptr;
};

TEST_F(metrics, are_the_pools_own_numbers_in_a_text_that_a_strict_parser_reads) {
  void* const kept = pool_->allocate(5 * MiB, stream_);
  for (int n = 0; n < 7; ++n) counted_.deallocate(counted_.allocate(3000, stream_), 3000, stream_);
  const metric_source sources[] = {{"all", pool_.get()}, {"requests", &counted_}};
  const text_parser read(metrics_text(sources));
  EXPECT_EQ(read.fault, "");
  const pool_statistics now = pool_->statistics();
  ASSERT_NE(find(read, "millpond_pool_live_bytes", "all"), nullptr);
  EXPECT_EQ(find(read, "millpond_pool_live_bytes", "all")->value,
            static_cast<double>(now.live_bytes));
  EXPECT_EQ(find(read, "millpond_pool_reserved_bytes", "all")->value,
            static_cast<double>(now.reserved_bytes));
  EXPECT_EQ(find(read, "millpond_pool_allocations_total", "all")->value,
            static_cast<double>(now.allocations));
  EXPECT_EQ(find(read, "millpond_resource_allocations_total", "requests")->value, 7);
  const auto& labels = find(read, "millpond_pool_live_bytes", "all")->labels;
  EXPECT_EQ(labels.at("kind"), "device");
  EXPECT_EQ(labels.at("device"), "0");
  EXPECT_EQ(labels.at("simulated"), "yes") << "a simulated number says so";
  pool_->deallocate(kept, 5 * MiB, stream_);
}

TEST_F(metrics, have_types_and_units_that_go_with_their_names) {
  const metric_source sources[] = {{"all", pool_.get()}, {"requests", &counted_}};
  const text_parser read(metrics_text(sources));
  ASSERT_EQ(read.fault, "");
  for (const auto& [name, family] : read.families) {
    EXPECT_FALSE(family.help.empty()) << name;
    EXPECT_TRUE(name.starts_with("millpond_")) << name;
    EXPECT_EQ(name.ends_with("_total"), family.type == "counter") << name;
    if (family.type == "histogram") {
      EXPECT_TRUE(name.ends_with("_bytes")) << name;
    } else {
      EXPECT_EQ(family.samples.size(), name == "millpond_deallocation_errors_total" ? 2u : 1u)
          << name;
    }
  }
}

TEST_F(metrics, a_histogram_counts_up_to_each_bound_and_ends_with_all) {
  for (const std::uint64_t bytes : {100, 100, 600, 5000})
    counted_.deallocate(counted_.allocate(bytes, stream_), bytes, stream_);
  const metric_source sources[] = {{"r", &counted_}};
  const text_parser read(metrics_text(sources));
  ASSERT_EQ(read.fault, "");
  std::map<std::string, double> buckets;
  double sum = 0, count = 0;
  for (const read_sample& each :
       read.families.at("millpond_resource_allocation_size_bytes").samples) {
    if (each.name.ends_with("_bucket")) buckets[each.labels.at("le")] = each.value;
    if (each.name.ends_with("_sum")) sum = each.value;
    if (each.name.ends_with("_count")) count = each.value;
  }
  EXPECT_EQ(buckets,
            (std::map<std::string, double>{{"127", 2}, {"1023", 3}, {"8191", 4}, {"+Inf", 4}}));
  EXPECT_EQ(sum, 5800);
  EXPECT_EQ(count, 4);
}

TEST_F(metrics, names_of_any_letters_are_escaped) {
  const std::string odd = "a \"pool\"\\\nof mine";
  const metric_source sources[] = {{odd, pool_.get()}};
  const text_parser read(metrics_text(sources));
  EXPECT_EQ(read.fault, "");
  EXPECT_NE(find(read, "millpond_pool_live_bytes", odd), nullptr);
}

TEST_F(metrics, without_sources_there_is_no_text) {
  EXPECT_EQ(metrics_text(std::span<const metric_source>()), "");
}

// docs/how_to/metrics.md is what people build dashboards from.
TEST_F(metrics, the_document_names_each_and_no_other) {
  std::ifstream file(std::string(MILLPOND_SOURCE_DIR) + "/docs/how_to/metrics.md");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  std::map<std::string, std::string> reported;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| `millpond_")) continue;
    const std::size_t end = line.find('`', 3);
    const std::size_t type = line.find("| ", end) + 2;
    reported[line.substr(3, end - 3)] = line.substr(type, line.find(' ', type) - type);
  }
  static const char* const types[] = {"gauge", "counter", "histogram"};
  std::map<std::string, std::string> there;
  for (const metric_family& each : collect_metrics({}))
    there[each.name] = types[static_cast<std::size_t>(each.type)];
  EXPECT_EQ(reported, there);
}

}  // namespace
}  // namespace millpond
