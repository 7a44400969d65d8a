#include "plan/streams_csv.hpp"

#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <functional>
#include <unordered_map>

#include "plan/csv_text.hpp"

namespace millpond::plan {

using namespace csv_text;

namespace {

// Calls header(fields, place) with the first line and row(fields, place) with each other one; both
// answer an error or not.
using line_visitor =
    std::function<result<void>(const std::vector<std::string_view>&, const place&)>;

result<void> for_each_line(std::string_view text, const std::string& name,
                           const line_visitor& header, const line_visitor& row) {
  if (text.empty()) return place{name, 1}.expected("a header line", "an empty file");
  std::vector<std::string_view> fields;
  std::size_t width = 0;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const place here{name, number};
    const std::size_t end = text.find('\n');
    const std::string_view line = trim(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty() && text.find_first_not_of(" \t\r\n") == std::string_view::npos && number > 1)
      break;
    // A row that the end of the file cuts inside its last number would read as a smaller number.
    if (end == std::string_view::npos && number > 1)
      return here.expected("a whole line",
                           fmt::format("{} and the end of the file: it is cut", in_quotes(line)));
    split(line, ',', fields);
    if (number == 1) width = fields.size();
    if (fields.size() != width)
      return here.expected(fmt::format("{} fields", width), fmt::format("{}", fields.size()));
    if (auto good = number == 1 ? header(fields, here) : row(fields, here); !good) return good;
  }
  return {};
}

result<std::uint64_t> number_in(std::string_view text, std::string_view what, const place& here) {
  std::uint64_t out = 0;
  if (!parse_number(text, out))
    return here.expected(fmt::format("{} as a number of 0 to 2^64 - 1", what), in_quotes(text));
  return out;
}

// Where each of the wanted columns is; those from `optional_from` on may be missing (-1).
template <std::size_t N>
result<std::array<int, N>> find_columns(const std::vector<std::string_view>& fields,
                                        const std::array<std::string_view, N>& wanted,
                                        std::size_t optional_from, const place& here) {
  std::array<int, N> at;
  at.fill(-1);
  for (std::size_t f = 0; f < fields.size(); ++f) {
    const auto known = std::find(wanted.begin(), wanted.end(), fields[f]);
    if (known == wanted.end())
      return here.expected(fmt::format("a header of {}", fmt::join(wanted, ", ")),
                           in_quotes(fields[f]));
    int& place_of = at[static_cast<std::size_t>(known - wanted.begin())];
    if (place_of >= 0)
      return here.expected("each column once",
                           fmt::format("{} a second time", in_quotes(fields[f])));
    place_of = static_cast<int>(f);
  }
  for (std::size_t c = 0; c < optional_from; ++c)
    if (at[c] < 0)
      return here.expected(fmt::format("a header with a column {}", wanted[c]), "none");
  return at;
}

class streams_reader {
 public:
  result<void> header(std::vector<std::string_view> fields, const place& here) {
    for (std::string_view& each : fields) {
      inclusive_ |= each == "end";
      if (each == "buffer" || each == "buffer_id") each = "id";
      if (each == "start" || each == "begin") each = "lower";
      if (each == "end") each = "upper";
    }
    auto found = find_columns<7>(
        fields, {"id", "lower", "upper", "size", "stream", "alignment", "offset"}, 5, here);
    if (!found) return found.error();
    at_ = *found;
    return {};
  }

  result<void> row(const std::vector<std::string_view>& fields, const place& here) {
    const auto field = [&](std::size_t c) {
      return at_[c] < 0 ? std::string_view{} : fields[static_cast<std::size_t>(at_[c])];
    };
    if (field(0).empty()) return here.expected("an id", "an empty field");
    const auto lower = number_in(field(1), "lower", here);
    if (!lower) return lower.error();
    auto upper = number_in(field(2), "upper", here);
    if (!upper) return upper.error();
    if (inclusive_ ? *upper < *lower : *upper <= *lower)
      return here.expected(fmt::format("a use of at least one step, from {}", *lower),
                           in_quotes(field(2)));
    const auto stream = number_in(field(4), "stream", here);
    if (!stream) return stream.error();
    if (*stream > UINT32_MAX) return here.expected("a stream below 2^32", in_quotes(field(4)));
    stream_buffer b{
        std::string(field(0)),
        0,
        1,
        {{static_cast<std::uint32_t>(*stream), *lower, inclusive_ ? *upper : *upper - 1}}};
    if (!parse_number(field(3), b.size) || b.size == 0 || b.size >= size_limit)
      return here.expected("a size of 1 to 2^63 - 1 bytes", in_quotes(field(3)));
    if (!field(5).empty() &&
        (!parse_number(field(5), b.alignment) || b.alignment == 0 || b.alignment >= size_limit))
      return here.expected("an alignment of 1 to 2^63 - 1", in_quotes(field(5)));
    std::uint64_t offset = 0;
    if (!field(6).empty() && (!parse_number(field(6), offset) || offset >= size_limit))
      return here.expected("an offset below 2^63", in_quotes(field(6)));
    without_offset_ |= field(6).empty();
    const auto [seen, fresh] =
        known_.emplace(b.id, known{file_.instance.buffers.size(), here.line});
    if (fresh) {
      file_.instance.buffers.push_back(std::move(b));
      plan_.push_back(offset);
      return {};
    }
    stream_buffer& first = file_.instance.buffers[seen->second.index];
    if (first.size != b.size || first.alignment != b.alignment ||
        plan_[seen->second.index] != offset)
      return here.expected(fmt::format("the size, alignment and offset of buffer {} as in line {}",
                                       b.id, seen->second.line),
                           "others");
    first.uses.push_back(b.uses.front());
    return {};
  }

  stream_file take() {
    if (at_[6] >= 0 && !without_offset_) file_.plan = std::move(plan_);
    return std::move(file_);
  }

 private:
  struct known {
    std::size_t index;
    std::size_t line;
  };
  std::array<int, 7> at_{};
  bool inclusive_ = false;
  bool without_offset_ = false;
  stream_file file_;
  offsets plan_;
  std::unordered_map<std::string, known> known_;
};

}  // namespace

bool is_stream_header(std::string_view line) {
  std::vector<std::string_view> fields;
  split(trim(line), ',', fields);
  const auto has = [&](std::string_view name) {
    return std::find(fields.begin(), fields.end(), name) != fields.end();
  };
  return has("stream") && has("size") && (has("lower") || has("start") || has("begin"));
}

result<stream_file> parse_streams_csv(std::string_view text, const std::string& name) {
  streams_reader reader;
  const auto read = for_each_line(
      text, name,
      [&](const auto& fields, const place& here) { return reader.header(fields, here); },
      [&](const auto& fields, const place& here) { return reader.row(fields, here); });
  if (!read) return read.error();
  return reader.take();
}

result<std::vector<stream_wait>> parse_waits_csv(std::string_view text, const std::string& name) {
  std::array<int, 4> at{};
  std::vector<stream_wait> out;
  const auto header = [&](const std::vector<std::string_view>& fields,
                          const place& here) -> result<void> {
    auto found = find_columns<4>(fields, {"stream", "step", "for_stream", "for_step"}, 4, here);
    if (!found) return found.error();
    at = *found;
    return {};
  };
  const auto row = [&](const std::vector<std::string_view>& fields,
                       const place& here) -> result<void> {
    std::array<std::uint64_t, 4> values{};
    constexpr std::array<std::string_view, 4> names{"stream", "step", "for_stream", "for_step"};
    for (std::size_t c = 0; c < 4; ++c) {
      const auto value = number_in(fields[static_cast<std::size_t>(at[c])], names[c], here);
      if (!value) return value.error();
      if (c % 2 == 0 && *value > UINT32_MAX)
        return here.expected("a stream below 2^32", fmt::format("{}", *value));
      values[c] = *value;
    }
    out.push_back({static_cast<std::uint32_t>(values[0]), values[1],
                   static_cast<std::uint32_t>(values[2]), values[3]});
    return {};
  };
  const auto read = for_each_line(text, name, header, row);
  if (!read) return read.error();
  return out;
}

std::string format_streams_csv(const stream_problem& of, const offsets* plan) {
  std::string out = plan == nullptr ? "id,lower,upper,size,stream,alignment\n"
                                    : "id,lower,upper,size,stream,alignment,offset\n";
  for (std::size_t i = 0; i < of.buffers.size(); ++i) {
    const stream_buffer& b = of.buffers[i];
    for (const stream_use& use : b.uses) {
      out += fmt::format("{},{},{},{},{},{}", b.id, use.first, use.last + 1, b.size, use.stream,
                         b.alignment);
      if (plan != nullptr) out += fmt::format(",{}", (*plan)[i]);
      out += '\n';
    }
  }
  return out;
}

}  // namespace millpond::plan
