#include "millpond/base/units.hpp"

#include <gtest/gtest.h>

#include "base/bits.hpp"
#include "base/random.hpp"

namespace millpond {
namespace {

TEST(units, bytes_are_written_with_three_digits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(835412040), "797 MiB");
}

TEST(units, bytes_are_read_with_units_and_nothing_else_is) {
  std::uint64_t bytes = 7;
  EXPECT_TRUE(parse_bytes("64KiB", bytes));
  EXPECT_EQ(bytes, 64 * KiB);
  EXPECT_TRUE(parse_bytes("1.5 GiB", bytes));
  EXPECT_EQ(bytes, 3 * GiB / 2);
  EXPECT_TRUE(parse_bytes("2MB", bytes));
  EXPECT_EQ(bytes, 2000000u);
  for (const auto& [text, wanted] : {std::pair{"4k", 4 * KiB},
                                     {"4K", 4 * KiB},
                                     {"4kib", 4 * KiB},
                                     {"4Ki", 4 * KiB},
                                     {"4kB", std::uint64_t{4000}},
                                     {"3 gib", 3 * GiB},
                                     {"1t", 1024 * GiB},
                                     {"2mb", std::uint64_t{2000000}},
                                     {"12b", std::uint64_t{12}}}) {
    EXPECT_TRUE(parse_bytes(text, bytes)) << text;
    EXPECT_EQ(bytes, wanted) << text;
  }
  bytes = 2000000;
  for (const char* bad :
       {"", "KiB", "-1", "1 apple", "1e30", "99999999999GiB", "nan", "4kk", "4 k b", "0x10"}) {
    EXPECT_FALSE(parse_bytes(bad, bytes)) << bad;
  }
  EXPECT_EQ(bytes, 2000000u);
}

TEST(bits, align_up_and_log2) {
  EXPECT_EQ(align_up(0, 512), 0u);
  EXPECT_EQ(align_up(1, 512), 512u);
  EXPECT_EQ(floor_log2(1), 0u);
  EXPECT_EQ(floor_log2(1025), 10u);
}

TEST(random, the_same_seed_gives_the_same_numbers) {
  random a(42), b(42);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(a.next(), b.next());
  for (int i = 0; i < 1000; ++i) EXPECT_LT(a.below(7), 7u);
}

}  // namespace
}  // namespace millpond
