// The recorded traces in data/traces import with exactly the events and peaks that their README
// states.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "trace/lifetimes.hpp"
#include "trace/source.hpp"

namespace millpond::trace {
namespace {

struct fact {
  const char* name;
  std::uint64_t events;
  std::uint64_t peak_bytes;
  std::uint64_t blocks;
  std::uint64_t deferred;
};

class recorded_trace : public ::testing::TestWithParam<fact> {};

TEST_P(recorded_trace, has_the_events_and_the_peak_of_its_readme) {
  const fact& known = GetParam();
  auto trace =
      load_trace(std::string(MILLPOND_SOURCE_DIR "/data/traces/") + known.name + ".csv.gz");
  ASSERT_TRUE(trace) << trace.error().message;
  EXPECT_EQ(trace->events.size(), known.events);
  EXPECT_EQ(trace->info.status, read_status::complete);
  EXPECT_EQ(trace->info.from, format::csv);
  EXPECT_TRUE(trace->info.warnings.empty());
  auto found = find_lifetimes(*trace);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->peak_live_bytes, known.peak_bytes);
  EXPECT_EQ(found->blocks.size(), known.blocks);
  EXPECT_EQ(found->deferred_frees, known.deferred);
  EXPECT_EQ(found->faults.total(), 0u);
  EXPECT_EQ(found->blocks.size() - found->frees, found->end_live_blocks);
}

// Counted from the files by a script of its own: rows, the running sum of alloc minus
// free_requested, rows of alloc, and free_completed rows that do not follow their free_requested.
INSTANTIATE_TEST_SUITE_P(all, recorded_trace,
                         ::testing::Values(fact{"resnet_serving", 26638, 835412040, 9085, 0},
                                           fact{"bert_varlen", 74041, 1018748160, 24802, 0},
                                           fact{"gpt2_generate", 97715, 724259433, 32656, 0},
                                           fact{"llama_train", 51004, 8810080072, 17131, 0},
                                           fact{"multistream_serving", 23324, 429302352, 7846, 40}),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace millpond::trace
