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
  std::vector<std::string> rooms;                      // from the ground up
  std::vector<std::string> library_rooms;              // those of the installed library
  std::map<std::string, std::set<std::string>> needs;  // and each room needs itself
  [[nodiscard]] bool may_include(const std::string& room, const std::string& other) const;
  // How many rooms are below this one; all of them for what is no room.
  [[nodiscard]] std::size_t place_of(const std::string& room) const;
};

// From the text of rooms.cmake: set(millpond_rooms ...), set(millpond_library_rooms ...) and
// set(millpond_needs_NAME ...), in which ${millpond_...} stands for a set above.
[[nodiscard]] rooms_table read_rooms(std::string_view text);

// The room of a public header, by its path as it is included (millpond/pool/pool.hpp); empty where
// its folder belongs to none.
[[nodiscard]] std::string room_of_header(const std::string& path);

// A row of the table in src/README.md: room, what it does, what it may include.
struct readme_row {
  std::string room;
  std::string what;
  std::set<std::string> may_include;
};
[[nodiscard]] std::vector<readme_row> read_rooms_of_readme(std::string_view text,
                                                           const rooms_table& table);

[[nodiscard]] std::string read_file(const std::filesystem::path& path);
// Files below source_dir/folder with one of the endings, in order; nothing where there is no
// folder. A file stands for itself.
[[nodiscard]] std::vector<std::filesystem::path> files_below(
    const std::filesystem::path& source_dir, const std::string& folder,
    const std::set<std::string>& endings);

}  // namespace millpond::architecture
