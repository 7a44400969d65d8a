// What the pool reserves over what programs ask for: recorded programs, shapes that it was not
// tuned on, the classic patterns that defeat allocators, and a random search for worse ones. All on
// the simulated GPU, contents checked.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "made_workloads.hpp"
#include "millpond/base/units.hpp"
#include "millpond/pool/pool.hpp"
#include "millpond/sim/simulated_gpu.hpp"
#include "replay/run.hpp"
#include "trace/source.hpp"
#include "trace/synthetic/shapes.hpp"

namespace millpond::replay {
namespace {

std::string recorded(const std::string& name) {
  return std::string(MILLPOND_SOURCE_DIR) + "/data/traces/" + name + ".csv.gz";
}

workload lowered(const result<trace::trace_data>& from) {
  EXPECT_TRUE(from) << from.error().message;
  auto made = lower(*from, {});
  EXPECT_TRUE(made) << made.error().message;
  return std::move(*made);
}

outcome replayed(const workload& work, std::uint64_t rounds, pacing pace = pacing::recorded) {
  auto gpu = simulated_gpu::create();
  EXPECT_TRUE(gpu);
  run_options options;
  options.rounds = rounds;
  options.pace = pace;
  auto made = run(work, *find_strategy("millpond-pool"), *gpu, options);
  EXPECT_TRUE(made) << made.error().message;
  EXPECT_EQ(made->failures, 0u) << made->first_failure;
  EXPECT_EQ(made->violation_count, 0u);
  return std::move(*made);
}

struct bar {
  const char* name;
  double cold;   // the first round
  double later;  // whatever comes
};

class recorded_programs : public ::testing::TestWithParam<bar> {};
TEST_P(recorded_programs, reserve_little_more_than_they_ask_for) {
  const workload work = lowered(trace::load_trace(recorded(GetParam().name)));
  const outcome cold = replayed(work, 1);
  EXPECT_LE(cold.reserved_ratio(), GetParam().cold);
  EXPECT_LE(replayed(work, 3).reserved_ratio(), GetParam().later);
}
INSTANTIATE_TEST_SUITE_P(of, recorded_programs,
                         ::testing::Values(bar{"resnet_serving", 1.05, 1.05},
                                           bar{"bert_varlen", 1.05, 1.05},
                                           bar{"gpt2_generate", 1.05, 1.05},
                                           bar{"llama_train", 1.02, 1.02},
                                           bar{"multistream_serving", 1.15, 1.15}),
                         [](const auto& of) { return std::string(of.param.name); });

class shapes_it_was_not_tuned_on : public ::testing::TestWithParam<std::string> {};
TEST_P(shapes_it_was_not_tuned_on, reserve_little_more_than_they_ask_for) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    const workload work = lowered(trace::make_shape(GetParam(), seed));
    EXPECT_LE(replayed(work, 1).reserved_ratio(), GetParam() == "streams" ? 1.25 : 1.08);
  }
}
INSTANTIATE_TEST_SUITE_P(of, shapes_it_was_not_tuned_on, ::testing::ValuesIn([] {
                           std::vector<std::string> out;
                           for (const std::string_view name : trace::shape_names())
                             out.emplace_back(name);
                           return out;
                         }()),
                         [](const auto& of) { return of.param; });

// Steady state
// -------------------------------------------------------------------------------------------

class repeated_programs : public ::testing::TestWithParam<const char*> {};
TEST_P(repeated_programs, reserve_no_more_after_their_second_round) {
  const workload work = lowered(trace::load_trace(recorded(GetParam())));
  EXPECT_LE(replayed(work, 20).peak_reserved_bytes, replayed(work, 2).peak_reserved_bytes);
}
INSTANTIATE_TEST_SUITE_P(steady_state, repeated_programs,
                         ::testing::Values("resnet_serving", "bert_varlen", "gpt2_generate",
                                           "llama_train"),
                         [](const auto& of) { return std::string(of.param); });

// What other streams free becomes this one's at other moments in each round, so rounds differ; they
// stay near each other.
TEST(steady_state, a_program_of_several_streams_repeated_stays_near_its_first_rounds) {
  const workload work = lowered(trace::load_trace(recorded("multistream_serving")));
  EXPECT_LE(replayed(work, 20).reserved_ratio(), 1.15);
}

// Two programs in one process, a request of the one after a request of the other.
workload interleaved(const workload& a, const workload& b, std::size_t slice) {
  workload made;
  made.name = a.name + " and " + b.name;
  made.streams = a.streams;
  while (made.streams.size() < b.streams.size()) made.streams.push_back(made.streams.size());
  made.blocks = a.blocks;
  made.blocks.insert(made.blocks.end(), b.blocks.begin(), b.blocks.end());
  const auto shift = static_cast<std::uint32_t>(a.blocks.size());
  std::uint64_t live = 0;
  const auto copy = [&](const workload& from, std::size_t& at, std::uint32_t by) {
    for (std::size_t i = 0; i < slice && at < from.ops.size(); ++i, ++at) {
      op each = from.ops[at];
      if (each.block != no_block) each.block += by;
      made.ops.push_back(each);
      if (each.what == op_kind::allocate) live += made.blocks[each.block].bytes;
      if (each.what == op_kind::free) live -= made.blocks[each.block].bytes;
      made.peak_live_bytes = std::max(made.peak_live_bytes, live);
    }
  };
  for (std::size_t x = 0, y = 0; x < a.ops.size() || y < b.ops.size();) {
    copy(a, x, 0);
    copy(b, y, shift);
  }
  return made;
}

TEST(steady_state, two_programs_interleaved_reserve_no_more_after_their_second_round) {
  const workload a = lowered(trace::load_trace(recorded("resnet_serving")));
  for (const workload& b : {lowered(trace::make_shape("detection", 5)),
                            lowered(trace::load_trace(recorded("gpt2_generate")))}) {
    SCOPED_TRACE(b.name);
    const workload both = interleaved(a, b, 400);
    EXPECT_LE(replayed(both, 12).peak_reserved_bytes, replayed(both, 2).peak_reserved_bytes);
  }
}

TEST(steady_state, the_pools_own_books_take_at_most_half_a_per_cent_of_what_it_reserves) {
  auto gpu = simulated_gpu::create();
  ASSERT_TRUE(gpu);
  auto made = pool::create(*gpu);
  ASSERT_TRUE(made);
  stream_handle stream = nullptr;
  ASSERT_TRUE((*gpu)->stream_create(&stream).ok());
  random pick(3);
  std::vector<std::pair<void*, std::uint64_t>> live;
  std::uint64_t bytes = 0;
  for (int i = 0; i < 60'000; ++i) {
    const std::uint64_t size = pick.log_uniform(16 * KiB, 64 * MiB);
    while (bytes + size > GiB) {
      std::swap(live[pick.below(live.size())], live.back());
      (*made)->deallocate(live.back().first, live.back().second, stream);
      bytes -= live.back().second;
      live.pop_back();
    }
    live.emplace_back((*made)->allocate(size, stream), size);
    bytes += size;
  }
  const pool_statistics now = (*made)->statistics();
  EXPECT_LE(static_cast<double>(now.metadata_bytes),
            0.005 * static_cast<double>(now.reserved_bytes));
  for (const auto& [ptr, size] : live) (*made)->deallocate(ptr, size, stream);
  made->reset();
  ASSERT_TRUE((*gpu)->stream_destroy(stream).ok());
}

// Adversaries
// ----------------------------------------------------------------------------------------------

// Robson's: fill with small blocks, free every other one, ask for twice the size, and so on.
workload robson(std::uint64_t smallest, int doublings, std::uint64_t budget) {
  workload_writer to(1);
  std::vector<std::uint32_t> live;
  std::uint64_t size = smallest, bytes = 0;
  for (int step = 0; step < doublings; ++step, size *= 2) {
    for (; bytes + size <= budget; bytes += size) live.push_back(to.allocate(size, 0));
    std::vector<std::uint32_t> kept;
    for (std::size_t i = 0; i < live.size(); ++i) {
      if (i % 2 == 0) {
        kept.push_back(live[i]);
      } else {
        to.free(live[i]);
        bytes -= to.bytes_of(live[i]);
      }
    }
    live = kept;
  }
  for (const std::uint32_t id : live) to.free(id);
  return to.finish();
}

TEST(adversaries, every_other_block_freed_and_twice_the_size_asked_for) {
  // 1 + doublings / 2 is what nobody beats who cannot move. From 2 MiB on every hole is whole
  // pages, of which those at the ends of a handle can be put together.
  EXPECT_LE(replayed(robson(2 * MiB, 6, GiB), 1).reserved_ratio(), 1.6);
  EXPECT_LE(replayed(robson(4 * MiB, 5, GiB), 1).reserved_ratio(), 1.6);
  // Below, half of each page stays in use.
  EXPECT_LE(replayed(robson(64 * KiB, 6, 256 * MiB), 1).reserved_ratio(), 4.0);
}

// Long-lived small blocks among large ones that come and go.
TEST(adversaries, small_blocks_that_stay_between_large_ones_that_go) {
  workload_writer to(1);
  random pick(1);
  std::vector<std::uint32_t> stay;
  for (int round = 0; round < 24; ++round) {
    std::vector<std::uint32_t> go;
    for (int i = 0; i < 16; ++i) {
      go.push_back(to.allocate(pick.between(16 * MiB, 24 * MiB), 0));
      stay.push_back(to.allocate(pick.log_uniform(512, 256 * KiB), 0));
    }
    for (const std::uint32_t id : go) to.free(id);
  }
  for (const std::uint32_t id : stay) to.free(id);
  EXPECT_LE(replayed(to.finish(), 1).reserved_ratio(), 1.25);
}

// Each block a little larger than the one before, which is then freed: no hole ever fits.
TEST(adversaries, blocks_that_grow_past_every_hole) {
  workload_writer to(1);
  std::uint32_t last = to.allocate(8 * MiB, 0), other = to.allocate(8 * MiB, 0);
  for (std::uint64_t size = 9 * MiB; size < 200 * MiB; size += size / 12) {
    const std::uint32_t next = to.allocate(size, 0);
    to.free(last);
    const std::uint32_t second = to.allocate(size + 512, 0);
    to.free(other);
    last = next;
    other = second;
  }
  to.free(last);
  to.free(other);
  EXPECT_LE(replayed(to.finish(), 1).reserved_ratio(), 1.25);
}

// A random program of phases: each keeps a share of what lives, frees the rest, and asks for sizes
// of another range.
workload phases(std::uint64_t seed) {
  random pick(seed);
  const auto streams = static_cast<std::uint16_t>(pick.chance(0.3) ? 3 : 1);
  workload_writer to(streams);
  std::vector<std::uint32_t> live;
  std::uint64_t bytes = 0;
  const std::uint64_t budget = 768 * MiB;
  for (int phase = 0; phase < 12; ++phase) {
    const std::uint64_t low = pick.log_uniform(64 * KiB, 32 * MiB),
                        high = low * pick.between(1, 12);
    for (int i = 0; i < 2000; ++i) {
      const std::uint64_t size = pick.between(low, high);
      if (bytes + size > budget) break;
      live.push_back(to.allocate(size, static_cast<std::uint16_t>(pick.below(streams))));
      bytes += size;
    }
    const double keep = pick.unit();
    std::vector<std::uint32_t> kept;
    for (const std::uint32_t id : live) {
      if (pick.chance(keep)) {
        kept.push_back(id);
      } else {
        to.free(id);
        bytes -= to.bytes_of(id);
      }
    }
    live = kept;
  }
  for (const std::uint32_t id : live) to.free(id);
  return to.finish();
}

// The worst that a short search finds; the bound tells when a change makes it much worse. Small
// blocks kept here and there are what moving pages cannot mend, so the bound is far from 1.
TEST(adversaries, a_random_search_finds_nothing_much_worse) {
  double worst = 0;
  std::uint64_t of = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const double ratio = replayed(phases(seed), 1, pacing::flat_out).reserved_ratio();
    if (ratio > worst) {
      worst = ratio;
      of = seed;
    }
  }
  RecordProperty("worst_ratio_in_thousandths", static_cast<int>(worst * 1000));
  EXPECT_LE(worst, 2.0) << "seed " << of;
}

}  // namespace
}  // namespace millpond::replay
