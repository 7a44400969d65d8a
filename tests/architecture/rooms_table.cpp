#include "rooms_table.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <stdexcept>

namespace millpond::architecture {
namespace fs = std::filesystem;

bool rooms_table::may_include(const std::string& room, const std::string& other) const {
  const auto found = needs.find(room);
  return room == other || (found != needs.end() && found->second.contains(other));
}

std::size_t rooms_table::place_of(const std::string& room) const {
  return static_cast<std::size_t>(std::find(rooms.begin(), rooms.end(), room) - rooms.begin());
}

rooms_table read_rooms(std::string_view text) {
  rooms_table table;
  static const std::regex expression(R"(set\((millpond_(\w+))([^)]*)\))");
  static const std::regex reference(R"(\$\{(\w+)\})");
  const std::string whole(text);
  std::map<std::string, std::vector<std::string>> sets;
  for (std::sregex_iterator at(whole.begin(), whole.end(), expression), end; at != end; ++at) {
    std::istringstream words((*at)[3].str());
    std::vector<std::string>& names = sets[(*at)[1].str()];
    names.clear();
    for (std::string word; words >> word;) {
      std::smatch other;
      if (!std::regex_match(word, other, reference)) {
        names.push_back(word);
      } else if (const auto found = sets.find(other[1].str()); found != sets.end()) {
        names.insert(names.end(), found->second.begin(), found->second.end());
      }
    }
    const std::string name = (*at)[2].str();
    if (name == "rooms") {
      table.rooms = names;
    } else if (name == "library_rooms") {
      table.library_rooms = names;
    } else if (name.starts_with("needs_")) {
      table.needs[name.substr(6)] = {names.begin(), names.end()};
    }
  }
  return table;
}

std::string room_of_header(const std::string& path) {
  // Declared with what they belong to, while their sources are where nothing above them is needed.
  static const std::map<std::string, std::string> apart{
      {"millpond/managed/managed_use.hpp", "resource"},
      {"millpond/trace/trace_file.hpp", "resource"},
      // What every header includes first.
      {"millpond/detail/language.hpp", "base"},
      // The C interface, and the header that includes the others.
      {"millpond.h", "bindings"},
      {"millpond/millpond.hpp", "bindings"}};
  static const std::map<std::string, std::string> folders{
      {"base", "base"},         {"driver", "driver"},   {"sim", "driver"},
      {"memory", "resource"},   {"detail", "resource"}, {"trace", "trace"},
      {"pool", "pool"},         {"pinned", "pinned"},   {"managed", "managed"},
      {"growable", "growable"}, {"shared", "shared"},   {"planned", "planned"},
      {"bindings", "bindings"}};
  if (const auto found = apart.find(path); found != apart.end()) return found->second;
  const fs::path folder = fs::path(path).parent_path();
  if (folder.parent_path() != "millpond") return {};
  const auto found = folders.find(folder.filename().string());
  return found == folders.end() ? std::string() : found->second;
}

std::vector<readme_row> read_rooms_of_readme(std::string_view text, const rooms_table& table) {
  std::vector<readme_row> rows;
  static const std::regex expression(R"(\| \[?`?(\w+)`?(\]\([^)]*\))? \| ([^|]+) \| ([^|]+) \|)");
  const std::string whole(text);
  std::istringstream lines(whole);
  for (std::string line; std::getline(lines, line);) {
    std::smatch cells;
    if (!std::regex_match(line, cells, expression) || cells[1] == "room") continue;
    readme_row row{cells[1], cells[3], {}};
    std::string may = cells[4];
    std::replace(may.begin(), may.end(), ',', ' ');
    std::istringstream words(may);
    bool except = false;
    for (std::string word; words >> word;) {
      if (word == "all") {  // "all above", "all above except a, b"
        const auto end =
            table.rooms.begin() + static_cast<std::ptrdiff_t>(table.place_of(row.room));
        row.may_include.insert(table.rooms.begin(), end);
      } else if (word == "except") {
        except = true;
      } else if (except) {
        row.may_include.erase(word);
      } else if (word != "above" && word != "—") {
        row.may_include.insert(word);
      }
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<fs::path> files_below(const fs::path& source_dir, const std::string& folder,
                                  const std::set<std::string>& endings) {
  std::vector<fs::path> found;
  if (!fs::exists(source_dir / folder)) return found;
  if (fs::is_regular_file(source_dir / folder)) return {source_dir / folder};
  for (const auto& entry : fs::recursive_directory_iterator(source_dir / folder)) {
    if (entry.is_regular_file() && endings.contains(entry.path().extension().string())) {
      found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace millpond::architecture
