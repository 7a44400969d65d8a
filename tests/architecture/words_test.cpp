// What the tree says and how wide it says it: no word that is gone, no line that an editor cuts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rooms_table.hpp"
#include "source_text.hpp"
#include "words.hpp"

namespace millpond::architecture {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const fs::path root = MILLPOND_SOURCE_DIR;
// Where code of ours is.
constexpr const char* code_folders[] = {"src",      "include", "tests",   "bench",
                                        "examples", "python",  "scripts", "cmake"};
// Recorded inputs and results are as they were written.
constexpr const char* not_ours[] = {"tests/corpus/", "tests/data/", "bench/results/"};

std::string name_of(const fs::path& file) {
  return fs::relative(file, root).string();
}

bool is_ours(const fs::path& file) {
  const std::string name = name_of(file);
  return std::none_of(std::begin(not_ours), std::end(not_ours),
                      [&](const char* folder) { return name.starts_with(folder); });
}

enum class language { cpp, python, shell, cmake, other };

language language_of(const fs::path& file) {
  static const std::map<std::string, language> endings{
      {".cpp", language::cpp},  {".hpp", language::cpp},    {".h", language::cpp},
      {".c", language::cpp},    {".cu", language::cpp},     {".py", language::python},
      {".sh", language::shell}, {".cmake", language::cmake}};
  if (file.filename() == "CMakeLists.txt") return language::cmake;
  if (const auto found = endings.find(file.extension().string()); found != endings.end()) {
    return found->second;
  }
  if (file.has_extension()) return language::other;
  const std::string text = read_file(file);
  const std::string first = text.substr(0, text.find('\n'));
  if (!first.starts_with("#!")) return language::other;
  return first.find("python") != std::string::npos ? language::python : language::shell;
}

// Every file of a language that the rules know, of the folders of code.
std::vector<fs::path> code_files() {
  std::vector<fs::path> files;
  for (const char* folder : code_folders) {
    for (const fs::path& file :
         files_below(root, folder,
                     {".hpp", ".cpp", ".h", ".c", ".cu", ".py", ".sh", ".cmake", ".txt", ""})) {
      if (is_ours(file) && language_of(file) != language::other) files.push_back(file);
    }
  }
  files.push_back(root / "CMakeLists.txt");
  return files;
}

std::vector<fs::path> documents(std::initializer_list<const char*> places) {
  std::vector<fs::path> files;
  for (const char* place : places) {
    for (const fs::path& file : files_below(root, place, {".md"})) files.push_back(file);
  }
  return files;
}

std::vector<gone_word> gone_words() {
  return read_gone_words(read_file(root / "tests" / "architecture" / "gone_words.txt"));
}

TEST(tree, identifiers_have_no_word_that_is_gone) {
  const std::vector<gone_word> words = gone_words();
  ASSERT_GT(words.size(), 20u);
  const std::vector<fs::path> files = code_files();
  ASSERT_GT(files.size(), 500u);
  for (const fs::path& file : files) {
    std::vector<gone_word> here;
    for (const gone_word& each : words) {
      if (each.gone_in(name_of(file))) here.push_back(each);
    }
    const std::string text = read_file(file);
    const language in = language_of(file);
    const std::string code =
        in == language::cpp
            ? without_comments_and_strings(text)
            : without_hash_comments(
                  text, in == language::python ? hash_language::python : hash_language::shell);
    for (const finding& each : gone_identifiers(code, here)) {
      ADD_FAILURE() << name_of(file) << ":" << each.line << ": " << each.what;
    }
    // A file's name is a name too.
    for (const finding& each : gone_identifiers(name_of(file), here)) {
      ADD_FAILURE() << name_of(file) << ": " << each.what;
    }
  }
}

TEST(tree, public_documents_have_no_word_that_is_gone) {
  std::vector<gone_word> words = gone_words();
  std::erase_if(words, [](const gone_word& each) { return !each.folders.empty(); });
  const std::vector<fs::path> files = documents({"README.md", "docs", "src"});
  ASSERT_GT(files.size(), 30u);
  for (const fs::path& file : files) {
    for (const finding& each : gone_prose(read_file(file), words)) {
      ADD_FAILURE() << name_of(file) << ":" << each.line << ": " << each.what;
    }
  }
}

TEST(tree, no_line_is_wider_than_it_can_be_read) {
  for (const fs::path& file : code_files()) {
    for (const finding& each : wide_lines(read_file(file), text_kind::code)) {
      ADD_FAILURE() << name_of(file) << ":" << each.line << ": " << each.what;
    }
  }
  for (const fs::path& file :
       documents({"README.md", "CHANGELOG.md", "docs", "src", "data", "tests", "bench"})) {
    if (!is_ours(file)) continue;
    for (const finding& each : wide_lines(read_file(file), text_kind::markdown)) {
      ADD_FAILURE() << name_of(file) << ":" << each.line << ": " << each.what;
    }
  }
}

TEST(rules, the_list_of_gone_words_is_read) {
  const auto words = read_gone_words("# why\n\nlane | cache\nwide_fence | fence | src/heap docs\n");
  ASSERT_THAT(words, SizeIs(2));
  EXPECT_EQ(words[0].word, "lane");
  EXPECT_TRUE(words[0].gone_in("src/a.cpp"));
  EXPECT_EQ(words[1].instead, "fence");
  EXPECT_TRUE(words[1].gone_in("src/heap/a.cpp"));
  EXPECT_FALSE(words[1].gone_in("src/heapless/a.cpp"));
  EXPECT_THROW(static_cast<void>(read_gone_words("lane\n")), std::runtime_error);
}

TEST(rules, gone_words_are_found_as_whole_parts) {
  const auto words = read_gone_words("lane | cache\nwide_fence | fence\n");
  for (const char* bad : {"int lane;", "lane_count(1);", "the_lane_ = 2;", "class LaneTable;",
                          "LANE_MAX", "lane2", "a.wide_fence_of(b)"}) {
    EXPECT_THAT(gone_identifiers(bad, words), SizeIs(1)) << bad;
  }
  for (const char* good : {"int plane;", "planes_lanet", "wide fence", "fence_wide", "wide(fence)",
                           "wider_fence", "wide_fences"}) {
    EXPECT_THAT(gone_identifiers(good, words), IsEmpty()) << good;
  }
  EXPECT_EQ(gone_identifiers("int a;\nint lane;\n", words).at(0).line, 2u);
  EXPECT_THAT(gone_prose("A Lane of a warp.\nA wide\nfence, a wide-fence.", words), SizeIs(3));
  EXPECT_THAT(gone_prose("A plane; wide. Fence", words), IsEmpty());
}

TEST(rules, comments_and_strings_of_python_are_blank) {
  using enum hash_language;
  const std::string text =
      "a = 'lane' # lane\nb = \"\"\"x\nlane\"\"\" + c\nd = \"it's\"\ne = lane\n";
  const std::string code = without_hash_comments(text, python);
  EXPECT_EQ(code.size(), text.size());
  EXPECT_EQ(line_count(code), line_count(text));
  EXPECT_EQ(code.find("lane"), text.rfind("lane"));
  EXPECT_NE(code.find("+ c"), std::string::npos);
  EXPECT_EQ(without_hash_comments("x=${#y} # lane\necho \"$lane\"\n", shell),
            "x=${#y}       \necho \"$lane\"\n");
}

TEST(rules, wide_lines_are_found) {
  const std::string wide(101, 'x');
  EXPECT_THAT(wide_lines("short\n" + wide + "\n", text_kind::code), SizeIs(1));
  EXPECT_EQ(wide_lines("short\n" + wide, text_kind::code).at(0).line, 2u);
  EXPECT_THAT(wide_lines(std::string(100, 'x') + "\n", text_kind::code), IsEmpty());
  std::string hundred;  // characters, of two bytes each
  for (int count = 0; count < 100; ++count) hundred += "é";
  EXPECT_THAT(wide_lines(hundred, text_kind::code), IsEmpty());

  const std::string words = "several words " + wide;
  EXPECT_THAT(wide_lines(words, text_kind::markdown), SizeIs(1));
  for (const std::string& good :
       {"| " + words + " |", "```sh\n" + words + "\n```", wide, "- [link](" + wide + ")",
        "  " + wide, "- [" + words + "](a.md)"}) {
    EXPECT_THAT(wide_lines(good, text_kind::markdown), IsEmpty()) << good;
  }
  EXPECT_THAT(wide_lines("```sh\n```\n" + words, text_kind::markdown), SizeIs(1));
  EXPECT_THAT(wide_lines("- a [" + words + "](a.md)", text_kind::markdown), SizeIs(1));
}

}  // namespace
}  // namespace millpond::architecture
