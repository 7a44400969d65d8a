// The data behind the page, against sums taken from the events themselves.
#include "report/picture.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "advise/explain.hpp"
#include "base/random.hpp"
#include "report/columns.hpp"
#include "report/page.hpp"
#include "trace/exporters.hpp"

namespace millpond::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

trace::trace_source from_text(std::string text) {
  auto opened = trace::open_trace_bytes("made.csv", std::move(text));
  EXPECT_TRUE(opened) << opened.error().message;
  return std::move(*opened);
}

picture read(const std::string& text, const picture_options& options = {}) {
  auto source = from_text(text);
  auto made = read_picture(source, options);
  EXPECT_TRUE(made) << made.error().message;
  EXPECT_TRUE(choose_windows(*made, {}, options));
  return std::move(*made);
}

const std::string small =
    "action,time_us,addr,size,stream\n"
    "segment_alloc,0,10000,4000,0\n"
    "alloc,1,10000,1000,0\n"
    "alloc,2,10400,2000,1\n"
    "free_requested,3,10000,1000,0\n"
    "free_completed,9,10000,1000,0\n"
    "alloc,10,10000,500,0\n"
    "free_requested,11,10400,2000,1\n"
    "free_completed,11,10400,2000,1\n";

// A random history of `count` allocations, with the bytes that it leaves live and the most that was
// live.
struct history {
  std::string text = "action,time_us,addr,size,stream\n";
  std::uint64_t allocations = 0, frees = 0, live = 0, peak = 0, allocated = 0;
};
history random_history(std::uint64_t seed, int count) {
  random numbers(seed);
  history made;
  std::map<std::uint64_t, std::uint64_t> live;
  std::uint64_t next = 0x700000000000;
  for (int n = 0; n < count; ++n) {
    if (!live.empty() && numbers.below(5) < 2) {
      auto victim =
          std::next(live.begin(), static_cast<std::ptrdiff_t>(numbers.below(live.size())));
      made.text += fmt::format("free_requested,{},{:x},{},0\nfree_completed,{},{:x},{},0\n", n,
                               victim->first, victim->second, n, victim->first, victim->second);
      made.live -= victim->second;
      ++made.frees;
      live.erase(victim);
    } else {
      const std::uint64_t bytes = 512 * (1 + numbers.below(5000));
      made.text += fmt::format("alloc,{},{:x},{},{}\n", n, next, bytes, numbers.below(12));
      live[next] = bytes;
      next += bytes + (numbers.below(100) == 0 ? 64 * MiB : 0);
      made.live += bytes;
      made.allocated += bytes;
      ++made.allocations;
      made.peak = std::max(made.peak, made.live);
    }
  }
  return made;
}

TEST(picture, counts_and_sums_are_those_of_the_trace) {
  const picture made = read(small);
  EXPECT_EQ(made.events, 8u);
  EXPECT_EQ(made.allocations, 3u);
  EXPECT_EQ(made.frees, 2u);
  EXPECT_EQ(made.allocated_bytes, 3500u);
  EXPECT_EQ(made.freed_bytes, 3000u);
  EXPECT_EQ(made.peak_bytes, 3000u);
  EXPECT_EQ(made.peak_event, 2u);
  EXPECT_EQ(made.end_bytes, 500u);
  EXPECT_EQ(made.end_blocks, 1u);
  EXPECT_EQ(made.peak_reserved_bytes, 4000u);
  ASSERT_EQ(made.blocks.size(), 3u);
  EXPECT_EQ(made.blocks[0].end_event, 3u);
  EXPECT_EQ(made.blocks[0].held_event, 0u)
      << "a completion right behind its free keeps nothing back";
  EXPECT_EQ(made.blocks[2].end_event, lives_on);
  EXPECT_EQ(live_at(made, 2), 3000u);
  EXPECT_EQ(live_at(made, 3), 2000u);
}

TEST(picture, random_traces_sum_to_the_same_in_every_view) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const history truth = random_history(seed, 3000);
    picture_options options;
    options.most_bins = 97;
    options.most_sites = 5;
    const picture made = read(truth.text, options);
    ASSERT_EQ(made.allocations, truth.allocations) << "seed " << seed;
    ASSERT_EQ(made.frees, truth.frees) << "seed " << seed;
    ASSERT_EQ(made.peak_bytes, truth.peak) << "seed " << seed;
    ASSERT_EQ(made.end_bytes, truth.live) << "seed " << seed;
    ASSERT_EQ(live_at(made, made.peak_event), truth.peak) << "seed " << seed;
    std::uint64_t most = 0, allocations = 0, frees = 0;
    for (const picture_bin& bin : made.bins) {
      const auto sum = [](const auto& of) {
        return std::accumulate(of.begin(), of.end(), std::uint64_t{0});
      };
      ASSERT_EQ(sum(bin.by_kind), bin.live_bytes) << "seed " << seed;
      ASSERT_EQ(sum(bin.by_stream), bin.live_bytes) << "seed " << seed;
      ASSERT_EQ(sum(bin.by_site), bin.live_bytes) << "seed " << seed;
      most = std::max(most, bin.live_bytes);
      allocations += bin.allocations;
      frees += bin.frees;
    }
    ASSERT_LE(made.bins.size(), 97u);
    ASSERT_EQ(most, truth.peak) << "seed " << seed;
    ASSERT_EQ(allocations, truth.allocations) << "seed " << seed;
    ASSERT_EQ(frees, truth.frees) << "seed " << seed;
    std::uint64_t at_peak = 0, by_site = 0, blocks = 0;
    for (const picture_site& site : made.sites)
      at_peak += site.peak_bytes, by_site += site.bytes, blocks += site.blocks;
    ASSERT_EQ(at_peak, truth.peak) << "seed " << seed;
    ASSERT_EQ(by_site, truth.allocated) << "seed " << seed;
    ASSERT_EQ(blocks, truth.allocations) << "seed " << seed;
    ASSERT_LE(made.sites.size(), 5u);
    std::uint64_t lives = 0;
    for (const picture_cell& cell : made.lifetimes) lives += cell.blocks;
    ASSERT_EQ(lives, truth.allocations) << "seed " << seed;
  }
}

TEST(picture, every_block_has_a_place_on_the_shortened_axis) {
  const picture made = read(random_history(3, 2000).text);
  ASSERT_GT(made.regions.size(), 1u);
  for (std::size_t n = 1; n < made.regions.size(); ++n) {
    EXPECT_EQ(made.regions[n].position, made.regions[n - 1].position + made.regions[n - 1].bytes);
    EXPECT_GT(made.regions[n].address - (made.regions[n - 1].address + made.regions[n - 1].bytes),
              2 * MiB);
  }
  for (const picture_block& each : made.blocks) {
    const bool inside = std::ranges::any_of(made.regions, [&](const picture_region& region) {
      return each.address >= region.address &&
             each.address + each.bytes <= region.address + region.bytes;
    });
    ASSERT_TRUE(inside) << each.address;
  }
}

TEST(picture, free_memory_and_holes_are_measured_within_what_is_reserved) {
  const picture made = read(small);
  ASSERT_FALSE(made.fragmentation.empty());
  for (const picture_fragmentation& each : made.fragmentation) {
    EXPECT_EQ(each.live_bytes + each.free_bytes, 4000u) << "event " << each.event;
    EXPECT_LE(each.largest_hole, each.free_bytes);
  }
}

TEST(picture, an_unmapped_part_leaves_the_rest_reserved) {
  const picture made = read(
      "action,time_us,addr,size,stream\nsegment_map,0,10000,4000,0\nalloc,1,10000,100,0\nsegment_"
      "unmap,2,10400,1000,0\n");
  std::uint64_t open = 0;
  for (const picture_segment& each : made.segments)
    open += each.end_event == lives_on ? each.bytes : 0;
  EXPECT_EQ(open, 3000u);
}

TEST(picture, a_block_over_a_live_one_ends_it) {
  const picture made =
      read("action,time_us,addr,size,stream\nalloc,0,10000,4096,0\nalloc,1,10800,4096,0\n");
  EXPECT_EQ(made.blocks[0].end_event, 1u);
  EXPECT_EQ(made.end_bytes, 4096u);
  EXPECT_EQ(made.peak_bytes, 4096u);
}

TEST(picture, a_long_trace_is_shown_round_its_peak_and_its_findings) {
  const history truth = random_history(7, 20000);
  auto source = from_text(truth.text);
  auto made = read_picture(source);
  ASSERT_TRUE(made);
  const std::uint64_t call_sites[] = {10, made->events - 10};
  picture_options options;
  options.most_events = 4000;
  ASSERT_TRUE(choose_windows(*made, call_sites, options));
  EXPECT_LE(made->events_shown, 4000u);
  for (const std::uint64_t wanted : {std::uint64_t{10}, made->events - 10, made->peak_event}) {
    EXPECT_TRUE(std::ranges::any_of(made->windows, [&](const picture_window& each) {
      return each.first <= wanted && wanted < each.end;
    })) << wanted;
  }
  for (std::size_t n = 1; n < made->windows.size(); ++n)
    EXPECT_GT(made->windows[n].first, made->windows[n - 1].end);
}

TEST(picture, from_and_to_are_events_or_times) {
  using in = picture_call_site::unit;
  EXPECT_EQ(parse_call_site("1200")->in, in::event);
  EXPECT_EQ(parse_call_site("1200")->value, 1200u);
  EXPECT_EQ(parse_call_site("1.5ms")->value, 1'500'000u);
  EXPECT_EQ(parse_call_site("2s")->in, in::nanoseconds);
  for (const char* bad : {"", "x", "-1", "1.5", "3 s", "1h", "nan", "1e99s"})
    EXPECT_FALSE(parse_call_site(bad)) << bad;

  const history truth = random_history(9, 5000);
  auto source = from_text(truth.text);
  auto made = read_picture(source);
  picture_options options;
  options.from = parse_call_site("1000");
  options.to = parse_call_site("3ms");
  ASSERT_TRUE(choose_windows(*made, {}, options));
  ASSERT_EQ(made->windows.size(), 1u);
  EXPECT_EQ(made->windows[0].first, 1000u);
  EXPECT_LT(made->windows[0].end, made->events);
  options.from = parse_call_site("4s");
  const auto refused = choose_windows(*made, {}, options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, error_code::invalid_argument);
}

TEST(column, known_bytes) {
  EXPECT_EQ(base64({}), "");
  EXPECT_EQ(base64({'M'}), "TQ==");
  EXPECT_EQ(base64({'M', 'a'}), "TWE=");
  EXPECT_EQ(base64({'M', 'a', 'n'}), "TWFu");
}

// What the page carries for one trace.
nlohmann::json page_of(const std::string& text, const picture_options& options = {}) {
  auto source = from_text(text);
  auto again = from_text(text);
  page whole;
  page_trace one;
  one.explained = *advise::explain(again);
  one.shown = *read_picture(source, options);
  EXPECT_TRUE(choose_windows(one.shown, {}, options));
  one.info = &source.info();
  whole.traces.push_back(std::move(one));
  return nlohmann::json::parse(page_json(whole));
}

TEST(page, carries_each_block_and_says_what_is_left_out) {
  const history truth = random_history(11, 4000);
  const auto whole = page_of(truth.text)["traces"][0];
  EXPECT_EQ(whole["blocks"]["count"], truth.allocations);
  EXPECT_EQ(whole["peak_bytes"], truth.peak);
  EXPECT_EQ(whole["left_out"], "");
  picture_options options;
  options.most_events = 500;
  const auto part = page_of(truth.text, options)["traces"][0];
  EXPECT_LT(part["blocks"]["count"], truth.allocations);
  EXPECT_THAT(part["left_out"].get<std::string>(), HasSubstr("are shown one by one"));
}

TEST(page, a_name_in_the_trace_cannot_end_the_data) {
  if (embedded_page_files().d3.empty()) GTEST_SKIP() << "built without D3";
  auto source = from_text(small);
  page whole;
  page_trace one;
  one.shown = *read_picture(source);
  one.shown.name = "</script><script>alert(1)</script>";
  one.info = &source.info();
  whole.traces.push_back(std::move(one));
  const auto html = page_html(whole);
  ASSERT_TRUE(html);
  EXPECT_EQ(html->find("</script><script>alert"), std::string::npos);
  EXPECT_EQ(html->find("/*millpond:"), std::string::npos)
      << "every call site of the page is filled";
  for (const char* loads : {"<script src", "<link rel=\"stylesheet", "@import", "url("})
    EXPECT_EQ(html->find(loads), std::string::npos) << loads;
}

}  // namespace
}  // namespace millpond::report
