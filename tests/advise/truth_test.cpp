// Small traces made by hand, in tests/data/truth, with the right answer known by reasoning and the
// measured numbers of an H200: what must be found and what must not, and what it costs.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <ostream>

#include "advise/by_call_site.hpp"
#include "advise/difference.hpp"
#include "advise/trace_maker.hpp"
#include "millpond/base/units.hpp"

namespace millpond::advise {
namespace {

constexpr double any = -1;  // a number that the row does not ask for
constexpr double us = 1e3, ms = 1e6, s = 1e9;

// All findings of one name together.
struct sums {
  double count = any, bytes = any, time_ns = any, after_ns = any, peak = any, peak_after = any;
};

struct right_answer {
  const char* file;
  std::map<std::string, sums> found;  // every one of them, and no other but what `may` names
  std::vector<std::string> may;       // of which the row says nothing
};
void PrintTo(const right_answer& of, std::ostream* out) {
  *out << of.file;
}

explained_trace explain_file(const std::string& name) {
  auto source = trace::open_trace(std::string(MILLPOND_SOURCE_DIR) + "/tests/data/truth/" + name);
  if (!source) throw std::runtime_error(source.error().message);
  auto made = explain(*source);
  if (!made) throw std::runtime_error(made.error().message);
  return {std::move(*made), source->take_info()};
}

std::map<std::string, sums> sum_up(const explanation& of) {
  std::map<std::string, sums> made;
  for (const finding& each : of.findings) {
    sums& mine = made.try_emplace(facts_of(each.which).name, sums{0, 0, 0, 0, 0, 0}).first->second;
    mine.count += static_cast<double>(each.count);
    mine.bytes += static_cast<double>(each.bytes);
    mine.time_ns += each.time_ns;
    mine.after_ns += each.time_after_ns;
    mine.peak += static_cast<double>(each.peak_bytes);
    mine.peak_after += static_cast<double>(each.peak_after_bytes);
  }
  return made;
}

// Counts and bytes are known; times are right within a factor.
constexpr double right_within = 1.5;
void expect_about(double is, double right, const char* what) {
  if (right == any) return;
  EXPECT_GE(is, right / right_within) << what;
  EXPECT_LE(is, right * right_within) << what;
}
void expect_exactly(double is, double right, const char* what) {
  if (right == any) return;
  EXPECT_EQ(is, right) << what;
}

class truth_test : public ::testing::TestWithParam<right_answer> {};

TEST_P(truth_test, is_what_explain_says) {
  const right_answer& right = GetParam();
  const std::map<std::string, sums> is = sum_up(explain_file(right.file).what);
  for (const auto& [name, mine] : is) {
    EXPECT_TRUE(right.found.contains(name) || std::ranges::count(right.may, name) > 0)
        << name << " must not be found";
  }
  for (const auto& [name, want] : right.found) {
    const auto found = is.find(name);
    if (found == is.end()) {
      ADD_FAILURE() << name << " is missing";
      continue;
    }
    SCOPED_TRACE(name);
    expect_exactly(found->second.count, want.count, "count");
    expect_exactly(found->second.bytes, want.bytes, "bytes");
    expect_about(found->second.time_ns, want.time_ns, "time");
    expect_about(found->second.after_ns, want.after_ns, "time after");
    expect_exactly(found->second.peak, want.peak, "peak");
    expect_exactly(found->second.peak_after, want.peak_after, "peak after");
  }
}

const double mib = static_cast<double>(MiB), gib = static_cast<double>(GiB);

INSTANTIATE_TEST_SUITE_P(
    must_not_be_found, truth_test,
    ::testing::Values(
        right_answer{"mt_near_sync_copy.mpt", {}, {}},
        right_answer{"uaf_near_graph_alloc.mpt", {}, {}},
        right_answer{"dead_near_graph.mpt", {}, {}},
        right_answer{"dead_near_captured_memset.mpt", {}, {}},
        right_answer{"over_near_read_whole.mpt", {}, {}},
        right_answer{"red_two_streams.mpt", {}, {}},
        right_answer{"adv_near_written_before.mpt", {}, {}},
        right_answer{"adv_near_small_control.mpt", {}, {}},
        right_answer{"stall_near_work_over.mpt", {{"allocation_churn", {50, any, 4.1 * ms}}}, {}},
        right_answer{"growth_near_bounded_cache.mpt", {}, {"leak"}},
        right_answer{"growth_near_loading.csv", {}, {}},
        right_answer{"frag_two_devices.csv", {}, {}},
        right_answer{"frag_two_devices.pickle", {}, {}},
        right_answer{"idle_other_device.mpt", {}, {}}, right_answer{"pin_near_dataset.mpt", {}, {}},
        right_answer{"churn_already_fast.mpt", {}, {}},
        right_answer{"double_near_dropped.mpt", {}, {}},
        right_answer{"double_near_paused.mpt", {}, {}},
        right_answer{"stall_near_dropped.mpt", {}, {"allocation_churn"}},
        right_answer{"pin_near_dropped.mpt", {}, {}},
        right_answer{"page_d2h_4bytes_once.mpt", {}, {}}),
    [](const auto& each) {
      std::string name = each.param.file;
      std::ranges::replace(name, '.', '_');
      return name;
    });

INSTANTIATE_TEST_SUITE_P(
    must_be_found, truth_test,
    ::testing::Values(
        right_answer{"leak_60_places.mpt", {{"leak", {60, 59 * mib + 10 * gib}}}, {}},
        right_answer{
            "churn_8_rounds_of_500.mpt", {{"allocation_churn", {4000, any, 328 * ms}}}, {}},
        right_answer{"churn_7_of_half_second.mpt", {{"allocation_churn", {7, any, 3.8 * s}}}, {}},
        right_answer{"thrash_many_blocks.mpt",
                     {{"managed_thrash", {50, 400 * mib, 50 * ms}}},
                     {"allocation_churn"}},
        right_answer{"mt_graph.mpt", {{"managed_touched_unsynchronised", {1}}}, {}},
        right_answer{"pin_flag.mpt", {{"pinned_overuse", {1, 1020 * mib}}}, {}},
        right_answer{"late_dev0_beside_dev1.mpt",
                     {{"late_deallocation", {1, 64 * mib, any, any, 256 * mib, 192 * mib}}},
                     {}}),
    [](const auto& each) {
      std::string name = each.param.file;
      std::ranges::replace(name, '.', '_');
      return name;
    });

INSTANTIATE_TEST_SUITE_P(
    have_their_numbers, truth_test,
    ::testing::Values(
        right_answer{"churn_batch10.mpt", {{"allocation_churn", {1000, any, 80 * ms}}}, {}},
        right_answer{"churn_batch10_timed.mpt", {{"allocation_churn", {1000, any, 82 * ms}}}, {}},
        right_answer{"churn_64mib.mpt", {{"allocation_churn", {100, any, 13.9 * ms}}}, {}},
        right_answer{"churn_1gib.mpt", {{"allocation_churn", {100, any, 78 * ms}}}, {}},
        right_answer{"churn_managed_64.mpt", {{"allocation_churn", {100, any, 54 * ms}}}, {}},
        right_answer{"churn_pinned_mixed.mpt", {{"allocation_churn", {100, any, 0.62 * s}}}, {}},
        right_answer{"churn_pinned_64mib.mpt", {{"allocation_churn", {100, any, 3.05 * s}}}, {}},
        right_answer{"churn_four_devices.mpt", {{"allocation_churn", {400, any, 32.5 * ms}}}, {}},
        right_answer{"leak_four_devices.mpt",
                     {{"leak", {40, 40 * mib}}},
                     {"allocation_churn", "unused_allocation"}},
        right_answer{"growth_two_devices.mpt", {{"growth_without_end", {64, 64 * mib}}}, {}},
        right_answer{"pool_1gib.mpt", {{"pool_gives_back", {49, any, 47 * ms}}}, {}},
        right_answer{"page_d2h_4bytes.mpt", {{"pageable_async_copy", {1000, any, 9 * ms}}}, {}},
        right_answer{
            "thrash_untimed.mpt", {{"managed_thrash", {1, 160 * mib, 22 * ms, 3 * ms}}}, {}},
        right_answer{
            "thrash_control_block.mpt", {{"managed_thrash", {1, any, 2.5 * ms, 0.5 * ms}}}, {}},
        right_answer{"thrash_pos.mpt", {{"managed_thrash", {1, any, 20 * ms, 3 * ms}}}, {}},
        right_answer{"adv_far.mpt", {{"wrong_advice", {1, 256 * mib, 220 * ms}}}, {}},
        right_answer{"adv_far_ten.mpt", {{"wrong_advice", {10, 2560 * mib, 2.2 * s}}}, {}},
        right_answer{"dead_d2d.mpt", {{"dead_write", {1, any, 0.5 * ms}}}, {}},
        right_answer{
            "dead_pageable.mpt", {{"dead_write", {1, any, 33.5 * ms}}}, {"pageable_async_copy"}},
        right_answer{"over_four.mpt",
                     {{"overallocation", {4, 240 * mib, any, any, 320 * mib, 80 * mib}}},
                     {"redundant_allocation"}},
        right_answer{"unused_rounds.mpt",
                     {{"unused_allocation", {100, 1 * mib, any, any, 65 * mib, 64 * mib}}},
                     {"allocation_churn"}},
        right_answer{"idle_short_gap.mpt", {{"temporary_idleness", {1}}}, {}},
        right_answer{"alloctime_threads4.mpt", {{"allocator_time", {any, any, 319 * ms}}}, {}},
        right_answer{"alloctime_ranges.mpt", {{"allocator_time", {any, any, 20.8 * ms}}}, {}},
        right_answer{"failed_two_devices.mpt", {{"failed_allocation", {1}}}, {}},
        right_answer{"failed_invalid.mpt", {{"failed_allocation", {1}}}, {}},
        right_answer{"wrong_kind_then_right.mpt", {{"wrong_kind_free", {1, 0}}}, {}}),
    [](const auto& each) {
      std::string name = each.param.file;
      std::ranges::replace(name, '.', '_');
      return name;
    });

// What a summary must say.
struct right_words {
  const char* file;
  std::vector<std::string> said, not_said;
};
void PrintTo(const right_words& of, std::ostream* out) {
  *out << of.file;
}
class truth_words_test : public ::testing::TestWithParam<right_words> {};

TEST_P(truth_words_test, are_in_the_summary) {
  const explained_trace of = explain_file(GetParam().file);
  ASSERT_FALSE(of.what.findings.empty());
  std::string all;
  for (const finding& each : of.what.findings) all += each.summary + '\n';
  for (const std::string& each : GetParam().said) EXPECT_THAT(all, testing::HasSubstr(each));
  for (const std::string& each : GetParam().not_said)
    EXPECT_THAT(all, testing::Not(testing::HasSubstr(each)));
}

INSTANTIATE_TEST_SUITE_P(
    all, truth_words_test,
    ::testing::Values(
        right_words{"idle_short_gap.mpt", {"The gap lasts 1", "takes about 2."}, {}},
        right_words{"alloctime_threads4.mpt", {"4 threads together: 40.0% of each one's"}, {}},
        right_words{"alloctime_ranges.mpt", {"for each of the 100 ranges `request`"}, {"`layer`"}},
        right_words{"failed_two_devices.mpt", {"0 B were live on device 0"}, {"100 GiB"}},
        right_words{"failed_invalid.mpt", {"status 1", "not for want of memory"}, {}},
        right_words{
            "wrong_kind_then_right.mpt", {"event 3 frees the block rightly"}, {"stays allocated"}},
        right_words{"churn_four_devices.mpt", {"on 4 devices"}, {}}),
    [](const auto& each) {
      std::string name = each.param.file;
      std::ranges::replace(name, '.', '_');
      return name;
    });

TEST(truth_order_test, what_costs_most_comes_first_whatever_its_kind) {
  const explained_trace of = explain_file("order_stall_behind_leaks.mpt");
  ASSERT_FALSE(of.what.findings.empty());
  EXPECT_EQ(of.what.findings.front().which, flaw::device_wide_stall);
  expect_about(of.what.findings.front().time_ns, 5 * s, "time");
  EXPECT_EQ(explain_file("leak_60_places.mpt").what.findings.front().bytes, 10 * GiB);
}

TEST(truth_order_test, idleness_that_parking_would_outlast_is_a_note) {
  EXPECT_EQ(explain_file("idle_short_gap.mpt").what.findings.front().how_bad, severity::note);
}

// What `advise` says of a place: what to use, and the times that `explain` has too.
struct right_advice {
  const char* file;
  const char* use;
  double now_ns = any;
};
void PrintTo(const right_advice& of, std::ostream* out) {
  *out << of.file;
}
class truth_advice_test : public ::testing::TestWithParam<right_advice> {};

TEST_P(truth_advice_test, is_what_explain_says_too) {
  const explained_trace of = explain_file(GetParam().file);
  const whole_advice made = advise_call_sites(of.what, of.info, {}, nullptr);
  ASSERT_FALSE(made.call_sites.empty());
  const call_site_advice& first = made.call_sites.front();
  EXPECT_EQ(first.use, GetParam().use);
  expect_about(first.time_now_ns, GetParam().now_ns, "time");
  for (const finding& each : of.what.findings) {
    if (each.time_ns != first.time_now_ns) continue;
    EXPECT_EQ(first.time_then_ns, std::min(each.time_ns, each.time_after_ns));
    EXPECT_EQ(first.time_estimated, each.time_estimated);
    return;
  }
  EXPECT_EQ(first.time_now_ns, 0) << "no finding has this time";
}

INSTANTIATE_TEST_SUITE_P(
    all, truth_advice_test,
    ::testing::Values(right_advice{"churn_already_fast.mpt", "leave", 0},
                      right_advice{"churn_batch10.mpt", "device + pool", 80 * ms},
                      right_advice{"churn_batch10_timed.mpt", "device + pool", 82 * ms},
                      right_advice{"churn_64mib.mpt", "device + pool", 13.9 * ms},
                      right_advice{"churn_1gib.mpt", "device + pool", 78 * ms},
                      right_advice{"churn_pinned_mixed.mpt", "pinned + pool", 0.62 * s},
                      right_advice{"churn_pinned_64mib.mpt", "pinned + pool", 3.05 * s},
                      right_advice{"thrash_pos.mpt", "managed + prefetch", 20 * ms},
                      right_advice{"thrash_control_block.mpt", "mapped", 2.5 * ms},
                      right_advice{"pool_pos.mpt", "driver pool, kept", 3.3 * ms},
                      right_advice{"pool_near_kept.mpt", "leave", 0}),
    [](const auto& each) {
      std::string name = each.param.file;
      std::ranges::replace(name, '.', '_');
      return name;
    });

difference between(const char* before, const char* after) {
  const explained_trace a = explain_file(before), b = explain_file(after);
  return compare({a.what, a.info}, {b.what, b.info});
}

TEST(truth_difference_test, a_finding_that_costs_more_than_before_is_a_regression) {
  const difference made = between("diff_cp1.mpt", "diff_cp2.mpt");
  EXPECT_TRUE(made.regressed());
  ASSERT_EQ(made.changed.size(), 1u);
  EXPECT_EQ(made.changed[0].after.which, flaw::pageable_async_copy);
  expect_about(made.changed[0].before.time_ns, 13 * ms, "before");
  expect_about(made.changed[0].after.time_ns, 3.4 * s, "after");
  EXPECT_FALSE(between("diff_cp2.mpt", "diff_cp1.mpt").regressed()) << "less is none";
}

TEST(truth_difference_test, each_device_has_a_peak_of_its_own) {
  const difference made = between("diff_dv1.mpt", "diff_dv2.mpt");
  EXPECT_TRUE(made.regressed());
  const auto worse = std::ranges::find_if(made.measures, &measure::regressed);
  ASSERT_NE(worse, made.measures.end());
  EXPECT_THAT(worse->name, testing::HasSubstr("device 0"));
}

TEST(truth_difference_test, a_place_of_another_name_that_costs_the_same_is_the_same) {
  const difference made = between("diff_fn1.mpt", "diff_fn2.mpt");
  EXPECT_FALSE(made.regressed());
  EXPECT_THAT(made.appeared, testing::IsEmpty());
  EXPECT_THAT(made.gone, testing::IsEmpty());
  EXPECT_THAT(made.call_sites, testing::IsEmpty());
}

}  // namespace
}  // namespace millpond::advise
