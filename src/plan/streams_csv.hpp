// The text format of planning for several streams: the columns of csv.hpp and one more, `stream`.
//   id,lower,upper,size,stream       a use: steps lower to upper - 1 of that stream may touch the
//   buffer optional: alignment, offset      (also `end` for upper, as in csv.hpp; other columns are
//   an error here)
// A buffer used on several streams has a line a use, all with its id, size, alignment and offset.
// Waits are a second file:
//   stream,step,for_stream,for_step  the step, and all after it on its stream, waits for that step
//   and all before it
#pragma once
#include <string>
#include <string_view>

#include "plan/streams.hpp"

namespace millpond::plan {

struct stream_file {
  stream_problem instance;  // without waits and capacity
  std::optional<offsets> plan;
};

// Whether a file that starts with this line is one: its header has a column `stream`.
[[nodiscard]] bool is_stream_header(std::string_view line);

// `name` is the file's name in messages, which give it, the line, what was expected and what was
// there.
[[nodiscard]] result<stream_file> parse_streams_csv(std::string_view text, const std::string& name);
[[nodiscard]] result<std::vector<stream_wait>> parse_waits_csv(std::string_view text,
                                                               const std::string& name);

// A line a use, with `offset` when a plan is given.
[[nodiscard]] std::string format_streams_csv(const stream_problem& of, const offsets* plan);

}  // namespace millpond::plan
