// The rooms and what each may include, as cmake/rooms.cmake says, and which room a public header
// belongs to.
#pragma once
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace millpond::architecture {

struct rooms_table {
  std::vector<std::string> rooms;                      // in order
  std::map<std::string, std::set<std::string>> needs;  // and each room needs itself
  [[nodiscard]] bool may_include(const std::string& room, const std::string& other) const;
};

// From the text of rooms.cmake: set(millpond_rooms ...) and set(millpond_needs_NAME ...).
[[nodiscard]] rooms_table read_rooms(std::string_view text);

// The room of include/millpond/NAME.hpp: the one that has NAME.cpp, or what the header's own table
// says for those without; empty where neither knows.
[[nodiscard]] std::string room_of_header(const std::filesystem::path& source_dir,
                                         const std::string& name);

[[nodiscard]] std::string read_file(const std::filesystem::path& path);
// Files below source_dir/folder with one of the endings, in order; nothing where there is no
// folder.
[[nodiscard]] std::vector<std::filesystem::path> files_below(
    const std::filesystem::path& source_dir, const std::string& folder,
    const std::set<std::string>& endings);

}  // namespace millpond::architecture
