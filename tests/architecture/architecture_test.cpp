// The tree against its own rules: who includes whom, a README a room, length, and what only the
// rooms at the edge may call. Each rule is also shown to find what breaks it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rooms_table.hpp"
#include "source_text.hpp"

namespace millpond::architecture {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const fs::path source_dir = MILLPOND_SOURCE_DIR;
const std::set<std::string> code{".hpp", ".cpp", ".h", ".c"};
constexpr std::size_t most_lines = 600;

std::string shown(const fs::path& file, std::size_t line) {
  return fs::relative(file, source_dir).string() + ":" + std::to_string(line);
}

std::string room_of(const fs::path& file) {
  return fs::relative(file, source_dir / "src").begin()->string();
}

rooms_table rooms() {
  return read_rooms(read_file(source_dir / "cmake" / "rooms.cmake"));
}

TEST(tree, rooms_include_only_rooms_that_they_may) {
  const rooms_table table = rooms();
  ASSERT_GE(table.rooms.size(), 10u);
  std::size_t checked = 0;
  for (const fs::path& file : files_below(source_dir, "src", code)) {
    const std::string room = room_of(file);
    ASSERT_TRUE(table.needs.contains(room))
        << file << ": its folder is no room of cmake/rooms.cmake";
    for (const include_line& each : includes_of(read_file(file))) {
      if (!each.quoted) continue;
      const fs::path path(each.path);
      const std::string first = path.begin()->string();
      if (first == "millpond") {
        const std::string owner = room_of_header(source_dir, path.stem().string());
        EXPECT_FALSE(owner.empty()) << each.path << ": no room has " << path.stem()
                                    << ".cpp; name its room in tests/architecture/rooms_table.cpp";
        EXPECT_TRUE(owner.empty() || table.may_include(room, owner))
            << shown(file, each.line) << ": room " << room << " may not include " << each.path
            << " of " << owner;
      } else if (table.needs.contains(first)) {
        EXPECT_TRUE(table.may_include(room, first))
            << shown(file, each.line) << ": room " << room << " may not include " << each.path;
      }
      ++checked;
    }
  }
  EXPECT_GT(checked, 50u);
}

TEST(tree, every_room_has_a_readme) {
  for (const std::string& room : rooms().rooms) {
    if (files_below(source_dir, "src/" + room, code).empty()) continue;
    EXPECT_TRUE(fs::exists(source_dir / "src" / room / "README.md")) << "src/" << room;
  }
}

TEST(tree, public_headers_include_public_headers_and_the_standard_library_alone) {
  for (const fs::path& file : files_below(source_dir, "include", code)) {
    for (const include_line& each : includes_of(read_file(file))) {
      const bool ours = each.quoted && each.path.starts_with("millpond/");
      const bool standard = !each.quoted && each.path.find('/') == std::string::npos;
      const bool adapter =
          file.string().find("/adapters/") != std::string::npos;  // that is what they are for
      EXPECT_TRUE(ours || standard || adapter)
          << shown(file, each.line) << ": includes " << each.path;
    }
  }
}

TEST(tree, no_file_is_longer_than_it_can_be_read) {
  for (const char* folder : {"src", "include", "tests", "bench", "examples"}) {
    for (const fs::path& file : files_below(source_dir, folder, code)) {
      EXPECT_LE(line_count(read_file(file)), most_lines) << fs::relative(file, source_dir);
    }
  }
}

TEST(tree, environment_clock_and_random_numbers_are_passed_in) {
  const std::set<std::string> at_the_edge{"cli", "record", "adapters"};
  std::vector<fs::path> files = files_below(source_dir, "include", code);
  for (const fs::path& file : files_below(source_dir, "src", code)) {
    if (!at_the_edge.contains(room_of(file))) files.push_back(file);
  }
  for (const fs::path& file : files) {
    for (const finding& each : forbidden_calls(read_file(file))) {
      ADD_FAILURE() << shown(file, each.line) << ": " << each.what;
    }
  }
}

TEST(tree, has_no_notes_to_oneself) {
  for (const char* folder : {"src", "include", "tests", "bench", "examples", "cmake", "scripts"}) {
    for (const fs::path& file :
         files_below(source_dir, folder, {".hpp", ".cpp", ".h", ".c", ".cmake", ".txt", ""})) {
      for (const finding& each : forbidden_words(read_file(file))) {
        ADD_FAILURE() << shown(file, each.line) << ": " << each.what;
      }
    }
  }
}

TEST(rules, the_table_of_rooms_is_read) {
  const rooms_table table = read_rooms(
      "set(millpond_rooms base heap cli)\nset(millpond_needs_base)\nset(millpond_needs_heap base)\n"
      "set(millpond_needs_cli base\n  heap)\nset(other base)\n");
  EXPECT_THAT(table.rooms, ::testing::ElementsAre("base", "heap", "cli"));
  EXPECT_TRUE(table.may_include("heap", "base"));
  EXPECT_TRUE(table.may_include("heap", "heap"));
  EXPECT_TRUE(table.may_include("cli", "heap"));
  EXPECT_FALSE(table.may_include("base", "heap"));
  EXPECT_FALSE(table.may_include("nowhere", "base"));
}

TEST(rules, includes_are_found_but_not_in_comments) {
  const auto found = includes_of(
      "#include \"heap/slab.hpp\"\n// #include \"order/x.hpp\"\n/*\n#include <a>\n*/\n  #include "
      "<vector>\n");
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_EQ(found[0].path, "heap/slab.hpp");
  EXPECT_TRUE(found[0].quoted);
  EXPECT_EQ(found[1].path, "vector");
  EXPECT_EQ(found[1].line, 6u);
}

TEST(rules, forbidden_calls_are_found_in_code_alone) {
  for (const char* bad :
       {"auto x = std::getenv(\"HOME\");", "std::chrono::steady_clock::now();", "int i = rand();",
        "srand(3);", "std::random_device device;", "clock_gettime(CLOCK_MONOTONIC, &now);",
        "auto t = time(nullptr);", "std::mt19937 numbers;", "auto t = __rdtsc();",
        "const int n = 1'000; getenv(\"A\");"}) {
    EXPECT_THAT(forbidden_calls(bad), SizeIs(1)) << bad;
  }
  for (const char* good :
       {"// getenv is for the command", "const char* text = \"getenv\";",
        "/* steady_clock */ int x;", "random numbers(seed);", "R\"(rand())\";", "wait_time(3);",
        "int operand(int);", "char c = '\"'; // rand()", "now_time(nullptr);"}) {
    EXPECT_THAT(forbidden_calls(good), IsEmpty()) << good;
  }
  EXPECT_EQ(forbidden_calls("int a;\n\nint b = rand();\n").at(0).line, 3u);
}

TEST(rules, notes_to_oneself_are_found) {
  EXPECT_THAT(forbidden_words(std::string("// TO") + "DO: later"), SizeIs(1));
  EXPECT_THAT(forbidden_words("// todo and fixme in a sentence are words"), IsEmpty());
}

TEST(rules, lines_are_counted_with_or_without_a_last_break) {
  EXPECT_EQ(line_count(""), 0u);
  EXPECT_EQ(line_count("a"), 1u);
  EXPECT_EQ(line_count("a\n"), 1u);
  EXPECT_EQ(line_count("a\nb"), 2u);
}

}  // namespace
}  // namespace millpond::architecture
