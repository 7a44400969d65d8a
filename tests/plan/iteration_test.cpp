#include "plan/iteration.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.hpp"
#include "plan/validate.hpp"
#include "trace/source.hpp"

namespace millpond::plan {
namespace {

// Writes events as a program would make them.
class program {
 public:
  std::uint64_t allocate(std::uint64_t bytes, std::uint64_t stream = 0) {
    trace::event e;
    e.what = trace::action::allocate;
    e.address = next_ += std::uint64_t{1} << 20;
    e.bytes = bytes;
    e.stream = stream;
    add(e);
    return e.address;
  }
  void free(std::uint64_t address, std::uint64_t stream = 0) {
    trace::event e;
    e.what = trace::action::free;
    e.address = address;
    e.stream = stream;
    add(e);
  }
  // Four layers: outputs live until the next layer is done.
  void request(std::uint64_t batch, std::uint64_t stream = 0) {
    std::uint64_t before = allocate(batch * 100, stream);
    for (std::uint64_t layer = 1; layer <= 4; ++layer) {
      const std::uint64_t scratch = allocate(batch * 70 * layer, stream);
      const std::uint64_t output = allocate(batch * 100 * layer, stream);
      free(scratch, stream);
      free(before, stream);
      before = output;
    }
    free(before, stream);
  }
  iterations find() {
    const auto lives = trace::find_lifetimes(events_, "test", {});
    EXPECT_TRUE(lives) << lives.error().message;
    blocks = lives->blocks;
    return find_iterations(*lives);
  }
  std::vector<trace::block> blocks;

 private:
  void add(trace::event e) {
    e.sequence = events_.size();
    events_.push_back(e);
  }
  std::vector<trace::event> events_;
  std::uint64_t next_ = 0;
};

TEST(plan_iteration, finds_requests_between_weights_whatever_their_batch) {
  program p;
  for (int k = 0; k < 5; ++k) p.allocate(1000);
  for (std::uint64_t k = 0; k < 20; ++k) p.request(1 + k % 4);
  const iterations found = p.find();
  EXPECT_EQ(found.found.size(), 20u);
  EXPECT_EQ(found.shapes.size(), 4u);
  EXPECT_EQ(found.totals[static_cast<std::size_t>(block_fate::planned)].blocks, 20u * 9);
  EXPECT_EQ(found.totals[static_cast<std::size_t>(block_fate::persistent)].blocks, 5u);
  EXPECT_EQ(found.totals[static_cast<std::size_t>(block_fate::dynamic)].blocks, 0u);
  const auto planned = plan_iterations(found, {});
  ASSERT_TRUE(planned);
  EXPECT_EQ(planned->planned_bytes, planned->lower_bound);
  EXPECT_EQ(planned->lower_bound, 4u * (300 + 280 + 400));
  for (std::size_t s = 0; s < found.shapes.size(); ++s)
    EXPECT_TRUE(validate(found.shapes[s].instance, planned->shapes[s].offsets));
}

TEST(plan_iteration, warm_up_and_growing_state_are_no_part_of_it) {
  program p;
  random any(5);
  std::vector<std::uint64_t> odd;
  for (int k = 0; k < 15; ++k) odd.push_back(p.allocate(any.between(1, 9999)));
  for (const std::uint64_t address : odd) p.free(address);
  for (std::uint64_t k = 0; k < 12; ++k) {
    p.request(3);
    p.allocate(64);  // kept for ever
  }
  const iterations found = p.find();
  EXPECT_EQ(found.found.size(), 12u);
  EXPECT_EQ(found.shapes.size(), 1u);
  EXPECT_EQ(found.totals[static_cast<std::size_t>(block_fate::persistent)].blocks, 12u);
  EXPECT_EQ(found.totals[static_cast<std::size_t>(block_fate::dynamic)].blocks, 15u);
  for (std::size_t b = 0; b < 15; ++b) EXPECT_EQ(found.fates[b], block_fate::dynamic);
}

TEST(plan_iteration, streams_are_groups_that_share_no_bytes) {
  program p;
  for (std::uint64_t k = 0; k < 12; ++k) p.request(2, k % 3);
  const iterations found = p.find();
  EXPECT_EQ(found.groups.size(), 3u);
  EXPECT_EQ(found.shapes.size(), 1u);
  EXPECT_EQ(found.shapes[0].uses, 12u);
  const auto planned = plan_iterations(found, {});
  EXPECT_EQ(planned->planned_bytes, 3 * planned->arenas[0].planned_bytes);
}

TEST(plan_iteration, a_block_freed_on_another_stream_stays_dynamic) {
  program p;
  for (std::uint64_t k = 0; k < 8; ++k) {
    p.request(2);
    const std::uint64_t crossing = p.allocate(500, 0);
    p.free(crossing, 1);
  }
  const iterations found = p.find();
  EXPECT_EQ(found.totals[static_cast<std::size_t>(block_fate::dynamic)].blocks, 8u);
  EXPECT_EQ(found.totals[static_cast<std::size_t>(block_fate::planned)].blocks, 8u * 9);
}

TEST(plan_iteration, a_program_that_is_never_quiet_is_cut_where_it_recurs) {
  program p;
  std::uint64_t carried = p.allocate(5000);
  for (std::uint64_t k = 0; k < 20; ++k) {
    p.request(2);
    const std::uint64_t next =
        p.allocate(5000);  // the last result lives until the next one is made
    p.request(5);
    p.free(carried);
    carried = next;
  }
  p.free(carried);
  const iterations found = p.find();
  EXPECT_GE(found.found.size(), 15u);
  EXPECT_GE(found.totals[static_cast<std::size_t>(block_fate::planned)].blocks, 15u * 18);
  EXPECT_LE(found.shapes.size(), 8u);
}

TEST(plan_iteration, what_does_not_repeat_is_not_planned) {
  program p;
  random any(9);
  std::vector<std::uint64_t> live;
  for (int k = 0; k < 400; ++k) {
    if (live.empty() || any.chance(0.5)) {
      live.push_back(p.allocate(any.between(1, 1000)));
    } else {
      const std::uint64_t at = any.below(live.size());
      p.free(live[at]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  const iterations found = p.find();
  const auto planned = plan_iterations(found, {});
  ASSERT_TRUE(planned);
  EXPECT_GE(planned->planned_bytes, planned->lower_bound);
  std::uint64_t blocks = 0;
  for (const fate_totals& t : found.totals) blocks += t.blocks;
  EXPECT_EQ(blocks, p.blocks.size());
}

TEST(plan_iteration, of_nothing_is_nothing) {
  const iterations found = find_iterations({});
  EXPECT_TRUE(found.found.empty());
  EXPECT_EQ(plan_iterations(found, {})->planned_bytes, 0u);
}

}  // namespace
}  // namespace millpond::plan
