#include "trace/import/lines.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace millpond::trace {

result<bool> line_reader::next(std::string_view& line) {
  from_.consume(consume_);
  consume_ = 0;
  std::size_t searched = 0;
  for (;;) {
    const std::string_view view = from_.view();
    const std::size_t end = view.find('\n', searched);
    if (std::min(end, view.size()) > limit_) {
      ++line_number_;
      return bad(fmt::format("a line of at most {} bytes", limit_), view.substr(0, 32));
    }
    if (end != std::string_view::npos) {
      line = view.substr(0, end);
      consume_ = end + 1;
      break;
    }
    searched = view.size();
    auto there = from_.fill(view.size() + 1);
    if (!there) return there.error();
    if (*there == searched) {  // the last line has no end
      if (searched == 0) return false;
      line = from_.view();
      consume_ = line.size();
      break;
    }
  }
  ++line_number_;
  if (line.ends_with('\r')) line.remove_suffix(1);
  return true;
}

}  // namespace millpond::trace
