// The choice of memory for one buffer: the rules of practice as a table, and boundaries that move
// with the profile.
#include "advise/buffer_choice.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millpond/base/units.hpp"

namespace millpond::advise {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
constexpr auto host = memory_side::host, device = memory_side::device, both = memory_side::both;
using q = buffer_question;

struct row {
  const char* name;
  q question;
  memory_kind kind;
  const char* pool;
  const char* how;  // in the option's words
};

TEST(buffer_choice, follows_the_rules_of_practice) {
  const row table[] = {
      {"device-only data",
       {.bytes = 64 * MiB, .allocations = 10'000},
       memory_kind::device,
       "millpond::pool",
       "from a pool"},
      {"device-only, once", {.bytes = GiB}, memory_kind::device, "millpond::pool", "from a pool"},
      {"device-only, the same each iteration",
       {.bytes = 64 * MiB, .allocations = 1000, .requests = q::pattern::repeating},
       memory_kind::device,
       "planned_resource",
       "from a pool"},
      {"frequent transfer in",
       {.bytes = 64 * MiB, .exchanges = 10'000, .writers = host, .readers = device},
       memory_kind::pinned,
       "pinned pool",
       "copied"},
      {"frequent transfer out",
       {.bytes = 64 * MiB, .exchanges = 10'000, .writers = device, .readers = host},
       memory_kind::pinned,
       "pinned pool",
       "copied"},
      {"small shared control data",
       {.bytes = 64, .exchanges = 1e6, .writers = both, .readers = both},
       memory_kind::pinned,
       "pinned pool",
       "mapped"},
      {"a control page",
       {.bytes = 4 * KiB, .exchanges = 1e6, .writers = both, .readers = both},
       memory_kind::pinned,
       "pinned pool",
       "mapped"},
      {"a prototype",
       {.bytes = 256 * MiB,
        .exchanges = 100,
        .writers = both,
        .readers = both,
        .program = q::stage::prototype},
       memory_kind::managed,
       "none",
       "prefetched"},
      {"the rest: host only",
       {.bytes = GiB, .writers = host, .readers = host},
       memory_kind::pageable,
       "none",
       "pageable"},
      {"the rest: never exchanged",
       {.bytes = GiB, .exchanges = 0, .writers = host, .readers = both},
       memory_kind::pageable,
       "none",
       "plain"},
  };
  for (const row& each : table) {
    const auto made = choose(each.question, gpu_profile::h200());
    ASSERT_TRUE(made) << each.name << ": " << made.error().message;
    EXPECT_EQ(made->kind, each.kind) << each.name << ": " << made->reason;
    EXPECT_EQ(made->pool, each.pool) << each.name;
    EXPECT_THAT(made->cost.how, HasSubstr(each.how)) << each.name;
    EXPECT_THAT(made->reason, HasSubstr("over the program")) << each.name;
    for (const buffer_option& other : made->others) {
      if (each.question.program == q::stage::production && made->kind != memory_kind::device &&
          other.kind != memory_kind::managed) {
        EXPECT_GE(other.total_ns, made->cost.total_ns) << each.name;
      }
    }
  }
}

TEST(buffer_choice, growth_and_lifetime_decide_the_settings) {
  const auto settings = [](const q& question, const gpu_profile& p = gpu_profile::h200()) {
    const auto made = choose(question, p);
    std::string all;
    for (const std::string& each : made->settings) all += each + "\n";
    return all;
  };
  const q grows{.bytes = 64 * MiB, .lifetime_s = 3600, .size = q::growth::grows};
  EXPECT_THAT(settings(grows), HasSubstr("grows in place"));
  gpu_profile old = gpu_profile::h200();
  old.device.virtual_memory = false;
  EXPECT_THAT(settings(grows, old), HasSubstr("a resize copies"));
  EXPECT_THAT(settings({.bytes = 64 * MiB, .lifetime_s = 0.1, .allocations = 3}),
              HasSubstr("background_give_back"));
  for (const q& kept : {q{.bytes = 64 * MiB, .lifetime_s = 0.1, .allocations = 1e5},
                        q{.bytes = 64 * MiB, .lifetime_s = 3600, .allocations = 3}}) {
    EXPECT_THAT(settings(kept), Not(HasSubstr("background_give_back")));
  }
}

// Pinning 64 MiB takes 2.8 ms and saves 7.2 ms a transfer: the first one pays for it. 4 KiB once
// does not.
TEST(buffer_choice, pins_from_where_pinning_is_paid_back) {
  const auto kind = [](std::uint64_t bytes, double exchanges, const gpu_profile& p) {
    return choose({.bytes = bytes, .exchanges = exchanges, .writers = host, .readers = device}, p)
        ->kind;
  };
  gpu_profile h200 = gpu_profile::h200();
  EXPECT_EQ(kind(64 * MiB, 0.1, h200), memory_kind::pageable);
  EXPECT_EQ(kind(64 * MiB, 1, h200), memory_kind::pinned);
  // A machine whose pageable copies are as fast never pins for copies.
  h200.pageable_to_device_bytes_per_s = h200.host_to_device_bytes_per_s;
  h200.host_memory_bytes_per_s = 1e9;
  EXPECT_EQ(kind(64 * MiB, 100, h200), memory_kind::pageable);
}

// Mapped memory wins while the copy that it saves costs more to start than the slower touch over
// the link.
TEST(buffer_choice, maps_up_to_the_size_where_a_copy_is_faster) {
  const gpu_profile p = gpu_profile::h200();
  const auto how = [&](std::uint64_t bytes) {
    return choose({.bytes = bytes, .exchanges = 1e6, .writers = host, .readers = device}, p)
        ->cost.how;
  };
  std::uint64_t first_copied = 0;
  for (std::uint64_t bytes = KiB; bytes <= GiB; bytes *= 2) {
    const bool copies = how(bytes).find("copied") != std::string::npos;
    if (copies && first_copied == 0) first_copied = bytes;
    EXPECT_EQ(copies, first_copied != 0)
        << "one boundary, passed at " << format_bytes(first_copied);
  }
  EXPECT_GE(first_copied, 256 * KiB);
  EXPECT_LE(first_copied, 8 * MiB);
  EXPECT_THAT(how(256 * MiB), HasSubstr("copied"));
}

TEST(buffer_choice, impossible_questions_have_clear_answers) {
  const gpu_profile p = gpu_profile::h200();
  EXPECT_EQ(choose({}, p).error().code, error_code::invalid_argument);
  EXPECT_EQ(choose({.bytes = 1, .writers = memory_side::nobody, .readers = memory_side::nobody}, p)
                .error()
                .code,
            error_code::invalid_argument);
  const auto large = choose({.bytes = 300 * GiB}, p);
  EXPECT_EQ(large.error().code, error_code::out_of_memory);
  EXPECT_THAT(large.error().message, HasSubstr("in parts"));
  EXPECT_EQ(choose({.bytes = 300 * GiB, .writers = host, .readers = host}, p).error().code,
            error_code::out_of_memory);
  // More than half of the host's memory is not pinned.
  EXPECT_NE(
      choose({.bytes = 100 * GiB, .exchanges = 1000, .writers = host, .readers = device}, p)->kind,
      memory_kind::pinned);
  // Without concurrent managed access a prototype gets what production would.
  gpu_profile old = p;
  old.device.concurrent_managed_access = false;
  EXPECT_EQ(choose({.bytes = MiB,
                    .exchanges = 1000,
                    .writers = both,
                    .readers = both,
                    .program = q::stage::prototype},
                   old)
                ->kind,
            memory_kind::pinned);
}

}  // namespace
}  // namespace millpond::advise
