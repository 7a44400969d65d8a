#include "trace/import/text_importer.hpp"

namespace millpond::trace {

result<std::size_t> text_importer::read(std::span<event> into) {
  if (failure_) return *failure_;
  std::size_t count = 0;
  while (count < into.size() && info_.status == read_status::reading) {
    std::string_view line;
    auto more = lines_.next(line);
    if (!more) failure_ = more.error();
    if (more && !*more) info_.status = read_status::complete;
    if (more && *more && !line.empty()) {
      into[count] = {};
      into[count].sequence = sequence_++;
      if (auto done = parse(line, into[count]); done) {
        ++count;
      } else {
        failure_ = done.error();
      }
    }
    if (failure_) {
      if (count > 0) return count;  // the events before it first
      return *failure_;
    }
  }
  return count;
}

}  // namespace millpond::trace
