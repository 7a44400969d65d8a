// Traces written for other tools, read back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "report/perfetto.hpp"
#include "report/torch_snapshot.hpp"
#include "trace/exporters.hpp"
#include "trace/lifetimes.hpp"
#include "trace/writer.hpp"

namespace millpond::report {
namespace {

trace::trace_source recorded(const char* name) {
  auto opened =
      trace::open_trace(std::string(MILLPOND_SOURCE_DIR) + "/data/traces/" + name + ".csv.gz");
  EXPECT_TRUE(opened) << opened.error().message;
  return std::move(*opened);
}

TEST(perfetto, has_a_slice_an_event_counters_and_an_arrow_for_each_reuse) {
  auto source = recorded("multistream_serving");
  std::string text;
  const auto sink = trace::make_memory_sink(text);
  const auto counts = export_perfetto(source, *sink);
  ASSERT_TRUE(counts) << counts.error().message;
  const auto whole = nlohmann::json::parse(text);
  std::map<std::string, std::uint64_t> by_phase;
  std::map<std::uint64_t, double> begun;
  std::uint64_t most = 0, tracks = 0;
  for (const auto& each : whole["traceEvents"]) {
    const std::string phase = each["ph"];
    ++by_phase[phase];
    if (phase == "C" && each["name"] == "live device")
      most = std::max(most, each["args"]["bytes"].get<std::uint64_t>());
    if (phase == "M" && each["name"] == "thread_name") ++tracks;
    if (phase == "X") {
      EXPECT_GT(each["dur"].get<double>(), 0);
    }
    if (phase == "s") begun[each["id"]] = each["ts"];
    if (phase == "f") {
      ASSERT_TRUE(begun.contains(each["id"])) << "an arrow ends that never began";
      EXPECT_LE(begun[each["id"]], each["ts"].get<double>());
    }
  }
  auto again = trace::load_trace(recorded("multistream_serving"));
  const auto lives = trace::find_lifetimes(*again);
  ASSERT_TRUE(lives);
  EXPECT_EQ(most, lives->peak_live_bytes);
  EXPECT_EQ(by_phase["s"], lives->frees);
  EXPECT_GT(by_phase["f"], lives->frees / 2);
  EXPECT_GE(by_phase["X"], lives->blocks.size() + lives->frees);
  EXPECT_GE(tracks, 4u);
}

// A slice that begins within another of its track and ends after it is one that Perfetto drops.
TEST(perfetto, slices_of_a_track_lie_within_each_other_or_apart) {
  std::size_t tracks_of_more = 0;
  for (const auto& file : std::filesystem::directory_iterator(std::string(MILLPOND_SOURCE_DIR) +
                                                              "/data/traces/faulty")) {
    if (file.path().extension() != ".mpt") continue;
    auto source = trace::open_trace(file.path().string());
    ASSERT_TRUE(source);
    std::string text;
    ASSERT_TRUE(export_perfetto(*source, *trace::make_memory_sink(text)));
    std::map<std::uint64_t, std::vector<std::pair<double, double>>> by_track;
    const auto whole = nlohmann::json::parse(text);
    for (const auto& each : whole["traceEvents"]) {
      if (each["ph"] == "X")
        by_track[each["tid"]].emplace_back(each["ts"],
                                           each["ts"].get<double>() + each["dur"].get<double>());
    }
    for (auto& [track, slices] : by_track) {
      tracks_of_more += track > 1'000'000 ? 1 : 0;
      std::ranges::sort(slices, [](const auto& a, const auto& b) {
        return a.first != b.first ? a.first < b.first : a.second > b.second;
      });
      std::vector<double> open;
      for (const auto& [begin, end] : slices) {
        while (!open.empty() && open.back() <= begin + 1e-6) open.pop_back();
        EXPECT_TRUE(open.empty() || end <= open.back() + 1e-6)
            << file.path() << " track " << track << " at " << begin;
        open.push_back(end);
      }
    }
  }
  EXPECT_GE(tracks_of_more, 1u)
      << "no recording has calls of two threads on one stream: this test saw nothing";
}

TEST(torch_snapshot, reads_back_as_the_same_blocks) {
  for (const char* name : {"multistream_serving", "resnet_serving"}) {
    auto source = recorded(name);
    std::string bytes;
    const auto sink = trace::make_memory_sink(bytes);
    const auto counts = export_torch_snapshot(source, *sink);
    ASSERT_TRUE(counts) << counts.error().message;
    EXPECT_GT(std::ranges::count(bytes, 'e'), static_cast<std::ptrdiff_t>(counts->written / 1000))
        << "lists are appended to by the thousand";
    auto opened = trace::open_trace_bytes("back.pickle", bytes);
    ASSERT_TRUE(opened) << opened.error().message;
    auto back = trace::load_trace(std::move(*opened));
    ASSERT_TRUE(back) << back.error().message;
    auto first = trace::load_trace(recorded(name));
    const auto before = trace::find_lifetimes(*first), after = trace::find_lifetimes(*back);
    ASSERT_TRUE(before && after);
    EXPECT_EQ(after->blocks.size(), before->blocks.size()) << name;
    EXPECT_EQ(after->peak_live_bytes, before->peak_live_bytes) << name;
    EXPECT_EQ(after->end_live_bytes, before->end_live_bytes) << name;
    EXPECT_EQ(after->allocated_bytes, before->allocated_bytes) << name;
    EXPECT_EQ(after->faults.total(), 0u) << name;
  }
}

}  // namespace
}  // namespace millpond::report
