// What the importers of text logs share: one line is one event, an error keeps its line, small
// numbers are given to the handles of a log.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "trace/import/lines.hpp"
#include "trace/source.hpp"

namespace millpond::trace {

class text_importer : public event_reader {
 public:
  result<std::size_t> read(std::span<event> into) override;

 protected:
  text_importer(line_reader lines, format from) : lines_(std::move(lines)) {
    info_.name = lines_.name();
    info_.from = from;
  }
  // One line that is not empty, as an event whose sequence is already set.
  virtual result<void> parse(std::string_view line, event& into) = 0;

  line_reader lines_;

 private:
  std::optional<error> failure_;
  std::uint64_t sequence_ = 0;
};

// Numbers from `first` on, in the order in which keys are first seen.
class numbering {
 public:
  explicit numbering(std::uint64_t first) noexcept : next_(first) {}
  std::uint64_t of(std::uint64_t key) {
    const auto [at, fresh] = known_.try_emplace(key, next_);
    if (fresh) ++next_;
    return at->second;
  }

 private:
  std::uint64_t next_;
  std::unordered_map<std::uint64_t, std::uint64_t> known_;
};

}  // namespace millpond::trace
