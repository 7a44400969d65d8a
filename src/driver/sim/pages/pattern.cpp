#include "driver/sim/pages/pattern.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "base/bits.hpp"

namespace millpond::sim::pages {
namespace {

constexpr std::array<std::pair<pattern_kind, const char*>, 5> pattern_names{
    {{pattern_kind::stream, "stream"},
     {pattern_kind::stride, "stride"},
     {pattern_kind::random, "random"},
     {pattern_kind::blocked, "blocked"},
     {pattern_kind::ping_pong, "ping-pong"}}};

}  // namespace

std::optional<pattern_kind> parse_pattern(std::string_view name) noexcept {
  for (const auto& [kind, text] : pattern_names) {
    if (name == text) return kind;
  }
  return std::nullopt;
}

const char* to_string(pattern_kind kind) noexcept {
  for (const auto& [each, text] : pattern_names) {
    if (each == kind) return text;
  }
  return "";
}

pattern::pattern(const options& chosen, const page_costs& costs) noexcept : options_(chosen) {
  pages_ = divide_up(options_.bytes, base_page_bytes);
  count_ = pages_;
  run_ = in_flight_ = costs.stream_run_pages;
  switch (options_.kind) {
    case pattern_kind::stride:
      options_.stride = std::max<std::uint64_t>(options_.stride, 1);
      count_ = divide_up(options_.bytes, options_.stride);
      run_ = in_flight_ = costs.lone_run_touches;
      whole_pages_ = false;
      break;
    case pattern_kind::random:
      count_ = options_.touches != 0 ? options_.touches : pages_;
      run_ = in_flight_ = costs.lone_run_touches;
      whole_pages_ = false;
      break;
    case pattern_kind::blocked:
      run_ = std::max<std::uint64_t>(1, divide_up(pages_, costs.multiprocessors));
      break;
    case pattern_kind::stream:
    case pattern_kind::ping_pong: break;
  }
}

}  // namespace millpond::sim::pages
