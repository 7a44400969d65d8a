// The page machine: the textbook's counts exactly, the card's times within its bounds, and each
// mechanism alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <set>
#include <sstream>
#include <tuple>

#include "driver/sim/pages/cases.hpp"
#include "millpond/base/units.hpp"

namespace millpond::sim::pages {
namespace {

const page_costs& h200() {
  static const page_costs made = page_costs::from(gpu_profile::h200());
  return made;
}

run_options streaming(std::uint64_t bytes) {
  run_options o;
  o.bytes = bytes;
  return o;
}

advice_given advice(managed_advice what, memory_location location = memory_location::device) {
  return {what, location};
}

TEST(pages, the_textbooks_faults_of_a_gibibyte) {
  run_options o = streaming(GiB);
  o.ideal_page_bytes = 64 * KiB;
  const run_report small = run(o, h200());
  o.ideal_page_bytes = 2 * MiB;
  const run_report large = run(o, h200());
  EXPECT_EQ(small.counts.faults, 16384u);
  EXPECT_EQ(large.counts.faults, 512u);
  EXPECT_EQ(small.counts.bytes_to_device, GiB);
  EXPECT_EQ(large.counts.bytes_to_device, GiB);
  EXPECT_EQ(small.tlb.misses, 16384u);
  EXPECT_EQ(large.tlb.misses, 512u);
  EXPECT_EQ(small.tlb.hits() + small.tlb.misses, GiB / base_page_bytes);
  EXPECT_GT(small.total_ns(), 4 * large.total_ns());
}

// The rows of the first runs within 30%, those of later ones within 40%, but for those that
// docs/measured/managed_memory.md names as missed: one that is met leaves the list.
TEST(pages, predicts_the_measured_rows) {
  std::size_t rows = 0;
  const std::set<std::tuple<std::string, std::string, std::uint64_t>> missed{
      {"h200_checked_2", "preferred location CPU and read-mostly; the kernel writes", 128 * MiB},
      {"h200_checked_2", "preferred location CPU and read-mostly; the kernel writes",
       256 * MiB},                                              // 8.7 s on one host, 2.8 on this
      {"h200_checked_2", "to and fro; a round p50", 64 * KiB},  // one run of two
      {"h200_checked_2", "to and fro; a round p50", 256 * KiB},
      {"h200_checked_3", "to and fro; a round p99", MiB},
      {"h200_seen_4", "preferred location CPU and read-mostly; the kernel writes", 8 * MiB},
      {"h200_seen_4", "preferred location CPU and read-mostly; the kernel writes", 48 * MiB},
      {"h200_seen_4", "preferred location CPU and read-mostly; the kernel writes", 96 * MiB},
      {"h200_seen_4", "to and fro; a round p50", 512 * KiB},
      {"h200_checked_5", "to and fro; a round p99", 2 * MiB}};
  for (const auto& [file, bound] : {std::pair{"h200_fitted", 0.30},
                                    {"h200_fitted_2", 0.30},
                                    {"h200_checked", 0.40},
                                    {"h200_checked_2", 0.40},
                                    {"h200_checked_3", 0.40},
                                    {"h200_seen_4", 0.40},
                                    {"h200_checked_5", 0.40}}) {
    const std::string path = MILLPOND_SOURCE_DIR "/data/managed/" + std::string(file) + ".csv";
    // Later files tell the rates of the machine that they were measured on.
    gpu_profile machine = gpu_profile::h200();
    EXPECT_EQ(read_rates(path, machine),
              std::string(file) == "h200_seen_4" || std::string(file) == "h200_checked_5");
    const page_costs costs = page_costs::from(machine);
    const auto cases = read_cases(path);
    ASSERT_TRUE(cases) << cases.error().message;
    for (const page_case& one : *cases) {
      const double predicted = predict_ms(one, costs);
      ++rows;
      if (missed.contains({file, one.name, one.what.bytes})) {
        EXPECT_GT(std::abs(predicted / one.middle_ms() - 1), bound)
            << one.name
            << " is met now: take it off the list, and say so in docs/measured/managed_memory.md";
        continue;
      }
      EXPECT_NEAR(predicted / one.middle_ms(), 1, bound)
          << file << ": " << one.name << ", " << format_bytes(one.what.bytes) << ": predicted "
          << predicted << " ms, measured " << one.low_ms << " to " << one.high_ms;
    }
  }
  EXPECT_GE(rows, 190u);
}

TEST(pages, a_fault_grows_to_its_big_page_and_then_by_density) {
  page_mask one;
  one.set(37);
  EXPECT_EQ(grow_by_density(one, {}, pages_a_block, 51), mask_of(32, 48));
  // The neighbour is there: two of two are more than 51%.
  EXPECT_EQ(grow_by_density(one, mask_of(48, 64), pages_a_block, 51), mask_of(32, 64));
  // 16 of 32 big pages are not more than 51%, 17 are.
  EXPECT_EQ(grow_by_density(one, mask_of(272, 512), pages_a_block, 51), mask_of(32, 48));
  EXPECT_EQ(grow_by_density(one, mask_of(256, 512), pages_a_block, 51).count(), 512u);
  // It never leaves a short last block.
  page_mask last;
  last.set(3);
  EXPECT_EQ(grow_by_density(last, {}, 5, 51), mask_of(0, 5));
}

TEST(pages, the_cpu_faults_a_block_back_in_six_faults) {
  space s(h200());
  s.add(block_bytes, 2 * MiB);
  s.touch_by_host(block_bytes, 2 * MiB, access_kind::write, 0);
  s.prefetch(block_bytes, 2 * MiB, memory_location::device, 0);
  s.reset_counts();
  s.touch_by_host(block_bytes, 2 * MiB, access_kind::write, 1e12);
  EXPECT_EQ(s.counts().host_faults, 6u);  // pages 0, 16, 32, 64, 128 and 256
  EXPECT_EQ(s.counts().bytes_to_host, 2 * MiB);
  EXPECT_EQ(s.resident(block_bytes, 2 * MiB), 0u);
}

TEST(pages, a_prefetch_leaves_nothing_to_fault) {
  run_options o = streaming(64 * MiB);
  o.each_kernel = run_options::before::prefetch;
  const run_report r = run(o, h200());
  EXPECT_EQ(r.counts.faults, 0u);
  EXPECT_EQ(r.counts.bytes_to_device, 64 * MiB);
}

TEST(pages, memory_preferred_on_the_host_is_mapped_page_by_page_and_never_moves) {
  run_options o = streaming(16 * MiB);
  o.advice = {advice(managed_advice::set_preferred_location, memory_location::host)};
  o.rounds = 2;
  const run_report r = run(o, h200());
  EXPECT_EQ(r.counts.faults, 4096u);
  EXPECT_EQ(r.counts.remote_mappings, 4096u);
  EXPECT_EQ(r.counts.bytes_to_device, 0u);
  EXPECT_EQ(r.counts.remote_bytes, 2 * (16 * MiB));
}

TEST(pages, memory_accessed_by_the_device_is_mapped_without_a_fault) {
  run_options o = streaming(16 * MiB);
  o.advice = {advice(managed_advice::set_accessed_by)};
  const run_report r = run(o, h200());
  EXPECT_EQ(r.counts.faults, 0u);
  EXPECT_EQ(r.counts.remote_bytes, 16 * MiB);
}

TEST(pages, reading_duplicates_and_writing_collapses) {
  run_options o = streaming(16 * MiB);
  o.advice = {advice(managed_advice::set_read_mostly)};
  o.access = access_kind::read;
  const run_report reads = run(o, h200());
  EXPECT_EQ(reads.counts.duplicated_bytes, 16 * MiB);
  EXPECT_EQ(reads.counts.collapses, 0u);
  o.access = access_kind::read_write;
  const run_report writes = run(o, h200());
  EXPECT_EQ(writes.counts.collapses, 4096u);
  // A duplicated page that the CPU reads costs it nothing.
  space s(h200());
  s.add(block_bytes, 2 * MiB);
  s.advise(block_bytes, 2 * MiB, managed_advice::set_read_mostly, memory_location::device);
  s.touch_by_host(block_bytes, 2 * MiB, access_kind::write, 0);
  s.prefetch(block_bytes, 2 * MiB, memory_location::device, 0);
  EXPECT_EQ(s.touch_by_host(block_bytes, 2 * MiB, access_kind::read, 0), 0);
  EXPECT_EQ(s.resident(block_bytes, 2 * MiB), 2 * MiB);
  s.advise(block_bytes, 2 * MiB, managed_advice::unset_read_mostly, memory_location::device);
  EXPECT_GT(s.touch_by_host(block_bytes, 2 * MiB, access_kind::read, 0), 0);
}

TEST(pages, more_than_the_device_holds_evicts_the_least_recently_used) {
  run_options o = streaming(128 * MiB);
  o.device_bytes = 64 * MiB;
  o.rounds = 2;
  const run_report r = run(o, h200());
  EXPECT_GE(r.counts.evictions, 32u + 64u - 4u);
  EXPECT_GE(r.counts.evicted_bytes, 128 * MiB);
  EXPECT_LE(r.counts.bytes_to_device, r.counts.evicted_bytes + 64 * MiB);
  o.device_bytes = 128 * MiB;
  EXPECT_EQ(run(o, h200()).counts.evictions, 0u);
}

TEST(pages, a_page_that_goes_to_and_fro_is_throttled_and_then_stays) {
  run_options o = streaming(4 * KiB);
  o.pattern = pattern_kind::ping_pong;
  o.rounds = 500;
  const run_report r = run(o, h200());
  EXPECT_EQ(r.counts.throttles, h200().thrash_throttles);
  EXPECT_EQ(r.counts.thrash_pins, 1u);
  EXPECT_LT(r.round_at_ns(0.5), 20e3);
  EXPECT_GT(r.round_at_ns(0.995), 500e3);
}

TEST(pages, thrashing_is_kept_by_page) {
  using kind = thrash_state::hint::kind;
  const page_costs& costs = h200();
  thrash_state state;
  page_mask two, one;
  two.set(3).set(200);
  one.set(3);
  double now = 0;
  // The first move makes no books, the second is the first that they know; then three within the
  // lapse.
  const side sides[] = {side::device, side::host};
  for (int i = 0; i < 6; ++i) state.moved(two, sides[i % 2], now += 100e3, costs);
  EXPECT_TRUE(state.thrashing()[3] && state.thrashing()[200]);
  EXPECT_EQ(state.thrashing().count(), 2u);
  // One side has it for a lapse, the other waits; a page that does not thrash is nobody's concern.
  EXPECT_EQ(state.ask(3, side::device, now, costs).what, kind::none);
  const auto waits = state.ask(3, side::host, now + 10e3, costs);
  EXPECT_EQ(waits.what, kind::throttle);
  EXPECT_EQ(waits.until_ns, now + costs.thrash_lapse_ns);
  EXPECT_EQ(state.ask(4, side::host, now, costs).what, kind::none);
  // A page that stays longer than a lapse is as any other again; the rest of the block is not
  // touched by it.
  state.moved(one, side::host, now + 2 * costs.thrash_lapse_ns, costs);
  EXPECT_FALSE(state.thrashing()[3]);
  EXPECT_TRUE(state.thrashing()[200]);
  state.forget(two);
  EXPECT_TRUE(state.thrashing().none());
}

TEST(pages, pins_run_out) {
  const page_costs& costs = h200();
  thrash_state state;
  page_mask page;
  page.set(7);
  double now = 0;
  auto to = side::device;
  bool pinned = false;
  for (int i = 0; i < 200 && !pinned; ++i) {
    auto hint = state.ask(7, to, now, costs);
    if (hint.what == thrash_state::hint::kind::throttle)
      hint = state.ask(7, to, now = hint.until_ns + 1, costs);
    pinned = hint.what == thrash_state::hint::kind::pin;
    if (!pinned) state.moved(page, to, now, costs);
    to = to == side::device ? side::host : side::device;
    now += 100e3;
  }
  ASSERT_TRUE(pinned);
  EXPECT_TRUE(state.unpin(now).none());
  EXPECT_EQ(state.unpin(now + costs.thrash_pin_ns), page);
  EXPECT_TRUE(state.thrashing().none());
}

TEST(pages, access_counters_move_a_block_only_where_the_machine_lets_them) {
  run_options o = streaming(8 * MiB);
  o.advice = {advice(managed_advice::set_accessed_by)};
  o.rounds = 2;
  EXPECT_EQ(run(o, h200()).counts.counter_moves, 0u);
  o.access_counters = space::options::counters::move;
  const run_report r = run(o, h200());
  EXPECT_EQ(r.counts.counter_moves, 4u);
  EXPECT_EQ(r.counts.bytes_to_device, 8 * MiB);
}

TEST(pages, random_reads_past_the_last_translation_buffer_walk) {
  page_costs small = h200();
  small.last_tlb_entries = 64;
  small.second_tlb_entries = 16;
  run_options o = streaming(256 * MiB);
  o.pattern = pattern_kind::random;
  o.touches = 40'000;
  o.start = start_location::device;
  const run_report r = run(o, small);
  // 64 of 128 pages of 2 MiB are kept, so about half of the touches walk.
  EXPECT_NEAR(static_cast<double>(r.tlb.misses) / 40'000, 0.5, 0.1);
  o.bytes = 64 * MiB;
  EXPECT_LT(run(o, small).tlb.misses, 200u);
}

TEST(pages, one_step_over_a_range_costs_what_fault_by_fault_does) {
  for (const std::uint64_t bytes : {64 * MiB, 256 * MiB}) {
    for (const bool on_host : {true, false}) {
      run_options o = streaming(bytes);
      o.start = on_host ? start_location::host : start_location::untouched;
      space s(h200());
      s.add(block_bytes, bytes);
      if (on_host) s.touch_by_host(block_bytes, bytes, access_kind::write, 0);
      std::uint64_t remote = 0;
      const double step = s.stream(block_bytes, bytes, access_kind::read_write, 1e12, remote);
      EXPECT_NEAR(step / run(o, h200()).fault_ns, 1, 0.15) << format_bytes(bytes);
    }
  }
}

TEST(pages, is_the_same_on_every_run) {
  run_options o = streaming(32 * MiB);
  o.pattern = pattern_kind::random;
  o.device_bytes = 16 * MiB;
  const run_report a = run(o, h200()), b = run(o, h200());
  EXPECT_EQ(a.counts.faults, b.counts.faults);
  EXPECT_EQ(a.total_ns(), b.total_ns());
}

// docs/measured/managed_memory.md shows every row as it is predicted now. A failure prints the line
// that belongs there.
TEST(page_cases, the_documents_table_is_what_the_machine_predicts) {
  std::stringstream document;
  document << std::ifstream(MILLPOND_SOURCE_DIR "/docs/measured/managed_memory.md").rdbuf();
  for (const char* file : {"h200_fitted", "h200_fitted_2", "h200_checked", "h200_seen_4"}) {
    const std::string path = MILLPOND_SOURCE_DIR "/data/managed/" + std::string(file) + ".csv";
    // Later files tell the rates of the machine that they were measured on.
    gpu_profile machine = gpu_profile::h200();
    static_cast<void>(read_rates(path, machine));
    const page_costs costs = page_costs::from(machine);
    const auto cases = read_cases(path);
    ASSERT_TRUE(cases) << cases.error().message;
    for (const page_case& one : *cases) {
      EXPECT_THAT(document.str(), testing::HasSubstr(table_line(one, costs)));
    }
  }
}

TEST(page_cases, a_line_that_is_no_case_names_its_place) {
  const std::string path = testing::TempDir() + "cases.csv";
  const auto reading = [&](const std::string& line) {
    std::ofstream(path) << case_columns << '\n' << line << '\n';
    const auto read = read_cases(path);
    return read ? std::string() : read.error().message;
  };
  EXPECT_THAT(reading("a,1MiB,zigzag,,read,host,,no,1,kernel,,"),
              testing::HasSubstr(":2: expected a pattern"));
  EXPECT_THAT(reading("a,1MiB,stream"), testing::HasSubstr("12 cells"));
  EXPECT_THAT(reading("a,1MiB,stream,,read,host,be-quick,no,1,kernel,,"),
              testing::HasSubstr("be-quick"));
  EXPECT_EQ(reading("a,1MiB,stream,,read,host,read-mostly+preferred-host,no,1,kernel,1.5,2"), "");
  const auto read = read_cases(path);
  EXPECT_EQ(case_line(read->front()),
            "a,1048576,stream,,read,host,read-mostly+preferred-host,no,1,kernel,1.5,2");
}

}  // namespace
}  // namespace millpond::sim::pages
