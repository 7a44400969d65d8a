// millpond pages: the textbook's counts, sizes as people write them, what it refuses, and its
// width.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "support/command_run.hpp"

namespace millpond::cli {
namespace {

using ::testing::HasSubstr;

class pages_command : public command_run {};

TEST_F(pages_command, the_textbooks_faults_of_a_gibibyte) {
  for (const auto& [page, faults] : {std::pair{"64KiB", 16384}, {"2MiB", 512}}) {
    const answer made =
        millpond(std::string("pages --size 1GiB --pattern stream --json --page ") + page);
    ASSERT_EQ(made.status, 0) << made.err;
    const auto said = nlohmann::json::parse(made.out);
    EXPECT_EQ(said.at("faults"), faults) << page;
    EXPECT_EQ(said.at("mode"), "ideal");
    EXPECT_EQ(said.at("bytes_to_device"), 1 << 30);
  }
}

TEST_F(pages_command, sizes_are_read_as_people_write_them) {
  for (const char* size : {"4k", "4K", "4kib", "4KiB", "4096"}) {
    const answer made = millpond(std::string("pages --json --size ") + size);
    ASSERT_EQ(made.status, 0) << size << ": " << made.err;
    EXPECT_EQ(nlohmann::json::parse(made.out).at("size_bytes"), 4096) << size;
  }
}

TEST_F(pages_command, refuses_what_cannot_be_with_the_numbers) {
  const answer large = millpond("pages --size 10TiB");
  EXPECT_EQ(large.status, 3);
  for (const char* part : {"10.0 TiB", "128 GiB of host memory", "140 GiB of device memory"})
    EXPECT_THAT(large.err, HasSubstr(part));
  for (const auto& [options, why] : {std::pair{"--size 4x", "found `4x`"},
                                     {"--size 0", "found `0`"},
                                     {"--page 3MiB", "from 4KiB to 2MiB"},
                                     {"--page 64KiB --advice read-mostly", "knows no advice"},
                                     {"--mode ideal", "needs --page"},
                                     {"--pattern stride", "go together"},
                                     {"--pattern sideways", "found `sideways`"},
                                     {"--device-memory 1k", "at least 16MiB"}}) {
    const answer made = millpond(std::string("pages ") + options);
    EXPECT_EQ(made.status, 2) << options;
    EXPECT_THAT(made.err, HasSubstr(why)) << options;
  }
}

TEST_F(pages_command, its_tables_fit_80_columns) {
  for (const char* options :
       {"--size 256MiB", "--size 4k --pattern ping-pong --rounds 300",
        "--size 64MiB --advice preferred-host,read-mostly",
        "--size 128MiB --device-memory 64MiB --rounds 2", "--size 16MiB --page 64KiB",
        "--size 64MiB --prefetch --start untouched"}) {
    const answer made = millpond(std::string("pages ") + options);
    ASSERT_EQ(made.status, 0) << options << ": " << made.err;
    std::istringstream lines(made.out);
    for (std::string line; std::getline(lines, line);)
      EXPECT_LE(line.size(), 80u) << options << ": " << line;
    EXPECT_THAT(made.out, HasSubstr("Better: "));
  }
}

}  // namespace
}  // namespace millpond::cli
