// The tree against its own rules: who includes whom, a README a folder, length, and what only the
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

// Where an include leads: a room of src/, the room of a public header, or neither.
std::string room_included(const rooms_table& table, const include_line& each) {
  const std::string first = fs::path(each.path).begin()->string();
  if (first == "millpond" || each.path == "millpond.h") return room_of_header(each.path);
  return table.needs.contains(first) ? first : std::string();
}

TEST(tree, rooms_stand_on_rooms_below_them) {
  const rooms_table table = rooms();
  ASSERT_GE(table.rooms.size(), 10u);
  for (const std::string& room : table.rooms) {
    ASSERT_TRUE(table.needs.contains(room)) << room << " has no set of what it needs";
    for (const std::string& other : table.needs.at(room)) {
      EXPECT_LT(table.place_of(other), table.place_of(room)) << room << " needs " << other;
    }
  }
  for (const std::string& room : table.library_rooms) {
    for (const std::string& other : table.needs.at(room)) {
      EXPECT_THAT(table.library_rooms, ::testing::Contains(other)) << "the library has " << room;
    }
  }
  for (const auto& entry : fs::directory_iterator(source_dir / "src")) {
    if (!entry.is_directory()) continue;
    EXPECT_THAT(table.rooms, ::testing::Contains(entry.path().filename().string()));
  }
}

TEST(tree, rooms_include_only_rooms_that_they_may) {
  const rooms_table table = rooms();
  std::size_t checked = 0;
  for (const fs::path& file : files_below(source_dir, "src", code)) {
    const std::string room = room_of(file);
    for (const include_line& each : includes_of(read_file(file))) {
      if (!each.quoted) continue;
      const std::string other = room_included(table, each);
      EXPECT_TRUE(other.empty() || table.may_include(room, other))
          << shown(file, each.line) << ": room " << room << " may not include " << each.path
          << " of " << other;
      ++checked;
    }
  }
  EXPECT_GT(checked, 50u);
}

TEST(tree, public_headers_are_of_a_room_and_include_only_what_it_may) {
  const rooms_table table = rooms();
  std::map<std::string, std::string> sources;
  for (const fs::path& file : files_below(source_dir, "src", {".cpp"})) {
    sources.emplace(file.stem().string(), room_of(file));
  }
  for (const fs::path& file : files_below(source_dir, "include", code)) {
    const std::string path = fs::relative(file, source_dir / "include").string();
    const std::string room = room_of_header(path);
    ASSERT_TRUE(table.needs.contains(room))
        << path << ": tests/architecture/rooms_table.cpp says of no room that it is its folder";
    EXPECT_THAT(table.library_rooms, ::testing::Contains(room)) << path;
    if (const auto source = sources.find(file.stem().string());
        source != sources.end() && file.extension() == ".hpp") {
      EXPECT_TRUE(table.may_include(room, source->second) ||
                  table.may_include(source->second, room))
          << path << " is of " << room << ", and its source of " << source->second;
    }
    for (const include_line& each : includes_of(read_file(file))) {
      const std::string other = room_included(table, each);
      EXPECT_TRUE(other.empty() || table.may_include(room, other))
          << shown(file, each.line) << ": a header of " << room << " may not include " << each.path
          << " of " << other;
    }
  }
}

TEST(tree, every_folder_of_sources_has_a_readme) {
  std::set<fs::path> folders;
  for (const fs::path& file : files_below(source_dir, "src", code)) {
    folders.insert(file.parent_path());
  }
  for (const fs::path& folder : folders) {
    EXPECT_TRUE(fs::exists(folder / "README.md")) << fs::relative(folder, source_dir);
  }
}

TEST(tree, the_readme_shows_the_rooms_as_they_are) {
  const rooms_table table = rooms();
  const auto rows = read_rooms_of_readme(read_file(source_dir / "src" / "README.md"), table);
  std::vector<std::string> shown_rooms;
  for (const readme_row& row : rows) {
    shown_rooms.push_back(row.room);
    ASSERT_TRUE(table.needs.contains(row.room)) << row.room;
    EXPECT_EQ(row.may_include, table.needs.at(row.room)) << row.room;
  }
  EXPECT_EQ(shown_rooms, table.rooms);
}

TEST(tree, public_headers_include_public_headers_and_the_standard_library_alone) {
  for (const fs::path& file : files_below(source_dir, "include", code)) {
    for (const include_line& each : includes_of(read_file(file))) {
      const bool ours = each.quoted && fs::exists(source_dir / "include" / each.path);
      const bool standard = !each.quoted && each.path.find('/') == std::string::npos;
      const bool binding =
          file.string().find("/bindings/") != std::string::npos;  // that is what they are for
      EXPECT_TRUE(ours || standard || (binding && !each.quoted))
          << shown(file, each.line) << ": includes " << each.path;
    }
  }
}

TEST(tree, public_headers_take_no_bool) {
  for (const fs::path& file : files_below(source_dir, "include", {".hpp"})) {
    for (const finding& each : bool_parameters(read_file(file))) {
      ADD_FAILURE() << shown(file, each.line) << ": " << each.what;
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
  const std::set<std::string> at_the_edge{"cli", "record", "bindings"};
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
  for (const char* folder : {"src", "include", "tests", "bench", "examples", "cmake", "scripts",
                             "python", "docs", "README.md"}) {
    for (const fs::path& file :
         files_below(source_dir, folder,
                     {".hpp", ".cpp", ".h", ".c", ".cu", ".cmake", ".txt", ".py", ".md", ""})) {
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
  EXPECT_EQ(table.place_of("heap"), 1u);
  EXPECT_EQ(table.place_of("nowhere"), 3u);
}

TEST(rules, a_set_of_the_table_may_name_a_set_above_it) {
  const rooms_table table = read_rooms(
      "set(millpond_rooms a b c)\nset(millpond_library_rooms a b)\nset(millpond_needs_a)\n"
      "set(millpond_needs_b a)\nset(millpond_needs_c ${millpond_needs_b} b)\n");
  EXPECT_THAT(table.needs.at("c"), ::testing::ElementsAre("a", "b"));
  EXPECT_THAT(table.library_rooms, ::testing::ElementsAre("a", "b"));
}

TEST(rules, the_table_of_the_readme_is_read) {
  const rooms_table table =
      read_rooms("set(millpond_rooms a b c d)\nset(millpond_needs_a)\nset(millpond_needs_b a)\n");
  const auto rows = read_rooms_of_readme(
      "# Rooms\n\n| room | what | may include |\n| -- | -- | -- |\n| [a](a) | ground | — |\n"
      "| [b](b) | x, y | a |\n| c | z | all above |\n| `d` | z | all above except b, c |\n",
      table);
  ASSERT_THAT(rows, SizeIs(4));
  EXPECT_THAT(rows[0].may_include, IsEmpty());
  EXPECT_EQ(rows[1].room, "b");
  EXPECT_THAT(rows[1].may_include, ::testing::ElementsAre("a"));
  EXPECT_THAT(rows[2].may_include, ::testing::ElementsAre("a", "b"));
  EXPECT_THAT(rows[3].may_include, ::testing::ElementsAre("a"));
}

TEST(rules, a_public_header_is_of_its_folders_room) {
  EXPECT_EQ(room_of_header("millpond/sim/simulated_gpu.hpp"), "driver");
  EXPECT_EQ(room_of_header("millpond/memory/kinds.hpp"), "resource");
  EXPECT_EQ(room_of_header("millpond/trace/trace_file.hpp"), "resource");
  EXPECT_EQ(room_of_header("millpond.h"), "bindings");
  EXPECT_EQ(room_of_header("millpond/nowhere/a.hpp"), "");
  EXPECT_EQ(room_of_header("other/pool/a.hpp"), "");
}

TEST(rules, bool_parameters_are_found) {
  for (const char* bad : {"void f(int count, bool loud = false);", "void f(bool x);",
                          "void f(const bool x, int y);"}) {
    EXPECT_THAT(bool_parameters(bad), SizeIs(1)) << bad;
  }
  for (const char* good :
       {"bool ready() noexcept;", "// f(bool x)", "struct a { bool x = false; };"}) {
    EXPECT_THAT(bool_parameters(good), IsEmpty()) << good;
  }
}

TEST(rules, includes_are_found_but_not_in_comments) {
  const auto found = includes_of(
      "#include \"heap/heap.hpp\"\n// #include \"order/x.hpp\"\n/*\n#include <a>\n*/\n  #include "
      "<vector>\n");
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_EQ(found[0].path, "heap/heap.hpp");
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
