// Profiles: the built-in one, files of them, and how a bad file is refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "millpond/base/units.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace millpond {
namespace {

class sim_profile : public ::testing::Test {
 protected:
  std::string path =
      ::testing::TempDir() + "/millpond_profile_" + std::to_string(::getpid()) + ".toml";
  void TearDown() override { std::remove(path.c_str()); }
  std::string saved() {
    EXPECT_TRUE(save_profile(gpu_profile::h200(), path).has_value());
    std::ifstream in(path);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }
  // What loading says after one change to a good file, and the line that changed.
  std::string complaint(const std::string& from, const std::string& to) {
    std::string text = saved();
    const auto at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    std::ofstream(path) << text;
    const auto loaded = load_profile(path);
    EXPECT_FALSE(loaded.has_value());
    return loaded.has_value() ? "" : loaded.error().message;
  }
};

TEST_F(sim_profile, what_is_saved_is_loaded) {
  gpu_profile before = gpu_profile::h200();
  before.allocator_path_ns["cache_pop"] = 12.5;
  before.allocator_path_source = "results/paths.json";
  before.source = "a \"quoted\" source\nof two lines";
  ASSERT_TRUE(save_profile(before, path).has_value());
  const auto loaded = load_profile(path);
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
  EXPECT_EQ(loaded->source, before.source);
  EXPECT_EQ(loaded->device.total_bytes, before.device.total_bytes);
  EXPECT_EQ(loaded->host_bytes, before.host_bytes);
  EXPECT_EQ(loaded->launch_latency_ns, before.launch_latency_ns);
  EXPECT_EQ(loaded->managed_fault_in_bytes_per_s, before.managed_fault_in_bytes_per_s);
  EXPECT_EQ(loaded->pool_step_bytes, before.pool_step_bytes);
  EXPECT_EQ(loaded->allocator_path_ns, before.allocator_path_ns);
  ASSERT_EQ(loaded->calls.size(), before.calls.size());
  for (const auto& [call, table] : before.calls) {
    const auto& other = loaded->calls.at(call);
    ASSERT_EQ(other.points.size(), table.points.size()) << call;
    for (const std::uint64_t bytes : {1 * KiB, 3 * MiB, 5 * GiB}) {
      EXPECT_EQ(other.p50_ns(bytes), table.p50_ns(bytes)) << call;
      EXPECT_EQ(other.p99_ns(bytes), table.p99_ns(bytes)) << call;
    }
  }
  EXPECT_TRUE(simulated_gpu::create({.profile = *loaded}).has_value());
}

TEST_F(sim_profile, the_built_in_tables_are_the_measured_points) {
  const gpu_profile p = gpu_profile::h200();
  EXPECT_EQ(p.calls.at("cuMemAlloc").p50_ns(1 * MiB), 43'000);
  EXPECT_EQ(p.calls.at("cuMemAlloc").p99_ns(1 * GiB), 465'000);
  EXPECT_EQ(p.calls.at("cuMemHostAlloc").p50_ns(1 * GiB), 435'009'000);
  // Between points on the line, beyond the last on the same line.
  EXPECT_NEAR(p.calls.at("cuMemAlloc").p50_ns(544 * MiB), (51'000 + 183'000) / 2.0, 1);
  EXPECT_NEAR(p.calls.at("cuMemAlloc").p50_ns(2 * GiB), 183'000 + 132'000 * 1024.0 / 960, 1);
  EXPECT_EQ(p.calls.at("cuMemAlloc").p50_ns(1), 45'000);
  EXPECT_EQ(find_profile("h200")->name, "h200");
}

TEST_F(sim_profile, a_bad_file_is_reported_its_line) {
  EXPECT_NE(load_profile("/nonexistent/profile.toml").error().message.find("cannot be opened"),
            std::string::npos);
  EXPECT_NE(complaint("[rates]", "[rates").find(path + ":"), std::string::npos);
  const std::string unknown = complaint("launch_latency_ns", "lunch_latency_ns");
  EXPECT_NE(unknown.find("`launch_latency_ns` is missing"), std::string::npos) << unknown;
  const std::string extra = complaint("[rates]\n", "[rates]\nwarp_speed = 9\n");
  EXPECT_NE(extra.find("`warp_speed` is not a name"), std::string::npos) << extra;
  const std::string type = complaint("l2_bytes = 62914560", "l2_bytes = \"sixty\"");
  EXPECT_NE(type.find("`l2_bytes` should be a whole number"), std::string::npos) << type;
  const std::string negative = complaint("memory_bytes_per_s = ", "memory_bytes_per_s = -");
  EXPECT_NE(negative.find("from 0"), std::string::npos) << negative;
  const std::string nan =
      complaint("memory_bytes_per_s = 4170000000000", "memory_bytes_per_s = nan");
  EXPECT_NE(nan.find("from 0"), std::string::npos) << nan;
  const std::string order = complaint("[1048576, 43000, 57000]", "[1000, 43000, 57000]");
  EXPECT_NE(order.find("should rise"), std::string::npos) << order;
  const std::string tail = complaint("[1048576, 43000, 57000]", "[1048576, 43000, 5]");
  EXPECT_NE(tail.find("p99"), std::string::npos) << tail;
  const std::string row = complaint("[1048576, 43000, 57000]", "[1048576, 43000]");
  EXPECT_NE(row.find("[bytes, p50_ns, p99_ns]"), std::string::npos) << row;
}

TEST_F(sim_profile, the_line_in_the_message_is_the_line_in_the_file) {
  const std::string message = complaint("host_bytes", "bad = 1\nhost_bytes");
  std::ifstream in(path);
  std::string line;
  int number = 0;
  do ++number;
  while (std::getline(in, line) && line != "bad = 1");
  EXPECT_NE(message.find(path + ":" + std::to_string(number) + ":"), std::string::npos) << message;
}

TEST_F(sim_profile, a_profile_that_cannot_be_modelled_is_refused) {
  gpu_profile p = gpu_profile::h200();
  p.device.granularity = 64 * KiB;
  EXPECT_FALSE(simulated_gpu::create({.profile = p}).has_value());
  p = gpu_profile::h200();
  p.pool_step_bytes = 0;
  EXPECT_FALSE(simulated_gpu::create({.profile = p}).has_value());
}

}  // namespace
}  // namespace millpond
