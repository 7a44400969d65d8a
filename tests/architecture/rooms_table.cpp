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

rooms_table read_rooms(std::string_view text) {
  rooms_table table;
  static const std::regex expression(R"(set\((millpond_rooms|millpond_needs_(\w+))([^)]*)\))");
  const std::string whole(text);
  for (std::sregex_iterator at(whole.begin(), whole.end(), expression), end; at != end; ++at) {
    std::istringstream words((*at)[3].str());
    const std::vector<std::string> names{std::istream_iterator<std::string>(words), {}};
    if ((*at)[1].str() == "millpond_rooms") {
      table.rooms = names;
    } else {
      table.needs[(*at)[2].str()] = {names.begin(), names.end()};
    }
  }
  return table;
}

std::string room_of_header(const fs::path& source_dir, const std::string& name) {
  // Headers that are not the face of one source file of the same name.
  static const std::map<std::string, std::string> by_hand{
      {"driver", "driver"},     {"simulated_gpu", "driver"},      {"kinds", "resource"},
      {"trace_event", "trace"}, {"resource_adaptor", "resource"}, {"growable_buffer", "resource"},
      {"sleep", "resource"},    {"graph_arena", "resource"}};
  if (const auto found = by_hand.find(name); found != by_hand.end()) return found->second;
  for (const fs::path& source : files_below(source_dir, "src", {".cpp"})) {
    if (source.stem() == name) return fs::relative(source, source_dir / "src").begin()->string();
  }
  return {};
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
  for (const auto& entry : fs::recursive_directory_iterator(source_dir / folder)) {
    if (entry.is_regular_file() && endings.contains(entry.path().extension().string())) {
      found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace millpond::architecture
