// Files are written whole, beside their place, and nothing else is touched.
#include "base/output_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace millpond {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class output_file_test : public ::testing::Test {
 protected:
  output_file_test() {
    std::string name = (fs::temp_directory_path() / "millpond_output_XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~output_file_test() override { fs::remove_all(folder_); }
  std::string path(const char* name) const { return (folder_ / name).string(); }
  void write(const char* name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  std::string read(const char* name) const {
    std::ifstream file(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void put(output_file& to, std::string_view text) {
    const auto done = to.write({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
    ASSERT_TRUE(done) << done.error().message;
  }
  // Written and put in its place.
  void make(const std::string& at, std::string_view text) const {
    auto file = output_file::create(at);
    ASSERT_TRUE(file) << file.error().message;
    put(*file, text);
    const auto done = file->put_in_place();
    ASSERT_TRUE(done) << done.error().message;
  }
  std::set<std::string> names() const {
    std::set<std::string> all;
    for (const auto& each : fs::directory_iterator(folder_))
      all.insert(each.path().filename().string());
    return all;
  }
  unsigned mode(const char* name) const {
    struct stat found{};
    EXPECT_EQ(stat(path(name).c_str(), &found), 0);
    return found.st_mode & 0777;
  }
  fs::path folder_;
};

TEST_F(output_file_test,
       what_was_there_stays_until_the_new_one_is_whole_and_nothing_lies_beside_it) {
  write("a", "before");
  {
    auto file = output_file::create(path("a"));
    ASSERT_TRUE(file);
    put(*file, "after");
    EXPECT_EQ(names(), std::set<std::string>{"a"}) << "what is written has no name yet";
  }
  EXPECT_EQ(read("a"), "before") << "it was not finished";
  make(path("a"), "after");
  EXPECT_EQ(read("a"), "after");
  EXPECT_EQ(names(), std::set<std::string>{"a"});
}

TEST_F(output_file_test, files_whose_names_look_like_temporary_ones_are_let_alone) {
  write("a.part", "mine");
  write("a.tmp", "mine too");
  make(path("a"), "text");
  EXPECT_EQ(read("a.part"), "mine");
  EXPECT_EQ(read("a.tmp"), "mine too");
}

TEST_F(output_file_test, two_writers_of_one_place_each_leave_a_whole_file) {
  auto first = output_file::create(path("a"));
  auto second = output_file::create(path("a"));
  ASSERT_TRUE(first && second);
  put(*first, "first, ");
  put(*second, "second");
  put(*first, "whole");
  ASSERT_TRUE(first->put_in_place());
  EXPECT_EQ(read("a"), "first, whole");
  ASSERT_TRUE(second->put_in_place());
  EXPECT_EQ(read("a"), "second");
  EXPECT_EQ(names(), std::set<std::string>{"a"});
}

TEST_F(output_file_test, the_old_files_mode_is_kept_and_a_new_one_follows_the_umask) {
  write("private", "");
  ASSERT_EQ(chmod(path("private").c_str(), 0600), 0);
  make(path("private"), "text");
  EXPECT_EQ(mode("private"), 0600u);
  write("script", "");
  ASSERT_EQ(chmod(path("script").c_str(), 0755), 0);
  make(path("script"), "text");
  EXPECT_EQ(mode("script"), 0755u);
  const mode_t before = umask(077);
  make(path("new"), "text");
  umask(before);
  EXPECT_EQ(mode("new"), 0600u);
}

TEST_F(output_file_test,
       links_are_followed_to_the_file_that_they_name_also_where_it_is_not_there_yet) {
  write("real", "before");
  fs::create_symlink("real", folder_ / "link");
  make(path("link"), "after");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(read("real"), "after");
  fs::create_directory(folder_ / "there");
  fs::create_symlink("there/new", folder_ / "dangling");
  make(path("dangling"), "made");
  EXPECT_TRUE(fs::is_symlink(folder_ / "dangling"));
  EXPECT_EQ(read("there/new"), "made");
}

TEST_F(output_file_test, what_is_no_place_for_a_file_is_refused_with_its_name) {
  fs::create_symlink("b", folder_ / "a");
  fs::create_symlink("a", folder_ / "b");
  fs::create_directory(folder_ / "folder");
  const auto refused = [&](const char* name, const char* why) {
    const auto made = output_file::create(path(name));
    ASSERT_FALSE(made) << name;
    EXPECT_EQ(made.error().code, error_code::output_failure);
    EXPECT_THAT(made.error().message, testing::AllOf(HasSubstr(path(name)), HasSubstr(why)));
  };
  refused("a", "circle");
  refused("folder", "is a folder");
  refused("nowhere/file", "No such file");
}

TEST_F(output_file_test, devices_are_written_as_they_are) {
  make("/dev/null", "text");
  auto full = output_file::create("/dev/full");
  ASSERT_TRUE(full);
  const std::uint8_t byte = 1;
  EXPECT_THAT(full->write({&byte, 1}).error().message, HasSubstr("No space left"));
}

TEST_F(output_file_test, a_rename_to_a_free_name_replaces_nothing) {
  write("a", "one");
  write("b", "two");
  EXPECT_FALSE(rename_to_free_name(path("a"), path("b")));
  EXPECT_EQ(read("b"), "two");
  EXPECT_TRUE(rename_to_free_name(path("a"), path("c")));
  EXPECT_EQ(read("c"), "one");
}

}  // namespace
}  // namespace millpond
