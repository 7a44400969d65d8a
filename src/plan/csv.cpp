#include "plan/csv.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <unordered_map>

#include "millpond/base/units.hpp"
#include "plan/csv_text.hpp"
#include "trace/input.hpp"

namespace millpond::plan {

using namespace csv_text;

namespace {

enum column { id, lower, upper, size, alignment, gaps, fixed, offset, column_count };

struct header {
  std::array<int, column_count> at{};  // the field of each column, or -1
  std::size_t fields = 0;
  bool inclusive = false;  // the last column of a lifetime is `end`
  std::vector<std::string> others;
};

result<header> parse_header(std::string_view line, const place& here) {
  static const std::unordered_map<std::string_view, column> names = {
      {"id", id},        {"buffer", id},           {"buffer_id", id}, {"lower", lower},
      {"start", lower},  {"begin", lower},         {"upper", upper},  {"end", upper},
      {"size", size},    {"alignment", alignment}, {"gaps", gaps},    {"fixed", fixed},
      {"offset", offset}};
  header out;
  out.at.fill(-1);
  std::vector<std::string_view> fields;
  split(line, ',', fields);
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const auto known = names.find(fields[i]);
    if (known == names.end()) {
      out.others.push_back(in_quotes(fields[i]));
      continue;
    }
    int& at = out.at[known->second];
    if (at >= 0)
      return here.expected("each column once",
                           fmt::format("{} a second time", in_quotes(fields[i])));
    at = static_cast<int>(i);
    if (fields[i] == "end") out.inclusive = true;
  }
  constexpr std::array<std::string_view, 4> required = {"id", "lower", "upper", "size"};
  for (std::size_t c = 0; c < required.size(); ++c)
    if (out.at[c] < 0)
      return here.expected(fmt::format("a header with a column {}", required[c]), in_quotes(line));
  out.fields = fields.size();
  return out;
}

result<std::vector<interval>> parse_gaps(std::string_view text, const buffer& of, bool inclusive,
                                         const place& here) {
  std::vector<interval> out;
  std::vector<std::string_view> parts;
  split(text, ' ', parts);
  for (const std::string_view part : parts) {
    if (part.empty()) continue;
    if (part.find('@') != std::string_view::npos)
      return here.expected("a gap without a window", in_quotes(part));
    const std::size_t dash = part.find('-', 1);
    interval gap;
    if (dash == std::string_view::npos || !parse_number(part.substr(0, dash), gap.lower) ||
        !parse_number(part.substr(dash + 1), gap.upper))
      return here.expected("gaps as lower-upper, space separated", in_quotes(part));
    if (inclusive) ++gap.upper;
    if (gap.upper <= gap.lower)
      return here.expected("a gap that ends after it starts", in_quotes(part));
    if (gap.lower < of.lower || gap.upper > of.upper)
      return here.expected(fmt::format("a gap inside the lifetime [{}, {})", of.lower, of.upper),
                           in_quotes(part));
    out.push_back(gap);
  }
  std::sort(out.begin(), out.end(),
            [](const interval& a, const interval& b) { return a.lower < b.lower; });
  for (std::size_t i = 1; i < out.size(); ++i)
    if (out[i].lower < out[i - 1].upper)
      return here.expected("gaps that do not overlap", in_quotes(text));
  return out;
}

result<std::uint64_t> parse_fixed(std::string_view text, const buffer& of, const place& here) {
  std::uint64_t value = 0;
  if (!parse_number(text, value) || value >= size_limit - of.size)
    return here.expected("a fixed offset whose end is below 2^63", in_quotes(text));
  if (value % of.alignment != 0)
    return here.expected(fmt::format("a fixed offset aligned to {}", of.alignment),
                         in_quotes(text));
  return value;
}

result<buffer> parse_row(const std::vector<std::string_view>& fields, const header& head,
                         const place& here) {
  const auto field = [&](column c) {
    return head.at[c] < 0 ? std::string_view{} : fields[static_cast<std::size_t>(head.at[c])];
  };
  buffer b;
  b.id = field(id);
  if (b.id.empty()) return here.expected("an id", "an empty field");
  if (!parse_number(field(lower), b.lower))
    return here.expected("lower as a 64-bit integer", in_quotes(field(lower)));
  if (!parse_number(field(upper), b.upper))
    return here.expected("upper as a 64-bit integer", in_quotes(field(upper)));
  if (head.inclusive) {
    if (b.upper == INT64_MAX) return here.expected("end below 2^63 - 1", in_quotes(field(upper)));
    ++b.upper;
  }
  if (b.upper < b.lower)
    return here.expected(fmt::format("upper >= lower ({})", b.lower),
                         fmt::format("upper {}", b.upper));
  if (!parse_number(field(size), b.size) || b.size == 0 || b.size >= size_limit)
    return here.expected("a size of 1 to 2^63 - 1 bytes", in_quotes(field(size)));
  if (!field(alignment).empty() && (!parse_number(field(alignment), b.alignment) ||
                                    b.alignment == 0 || b.alignment >= size_limit))
    return here.expected("an alignment of 1 to 2^63 - 1", in_quotes(field(alignment)));
  if (!field(fixed).empty()) {
    auto given = parse_fixed(field(fixed), b, here);
    if (!given) return given.error();
    b.fixed = *given;
  }
  auto parsed = parse_gaps(field(gaps), b, head.inclusive, here);
  if (!parsed) return parsed.error();
  b.gaps = std::move(*parsed);
  return b;
}

class csv_reader {
 public:
  explicit csv_reader(const std::string& name) : name_(name) {}

  result<planning_file> read(std::string_view text) {
    if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // a byte order mark
    while (!text.empty()) {
      ++number_;
      const std::size_t end = text.find('\n');
      const std::string_view line = trim(text.substr(0, end));
      const bool cut = end == std::string_view::npos;
      text.remove_prefix(cut ? text.size() : end + 1);
      if (number_ > 1 && line.empty() &&
          text.find_first_not_of(" \t\r\n") == std::string_view::npos)
        break;
      const auto done = number_ == 1 ? first_line(line) : row_of(line, cut);
      if (!done) return done.error();
    }
    if (number_ == 0) return place{name_, 1}.expected("a header line", "an empty file");
    out_.other_columns = std::move(head_.others);
    if (const auto done = take_offsets(); !done) return done.error();
    return std::move(out_);
  }

 private:
  struct given {
    std::size_t row;
    std::uint64_t offset;
    std::size_t line;
  };

  [[nodiscard]] bool has_offsets() const { return head_.at[offset] >= 0; }

  result<void> first_line(std::string_view line) {
    auto parsed = parse_header(line, place{name_, number_});
    if (!parsed) return parsed.error();
    head_ = std::move(*parsed);
    return {};
  }

  result<void> row_of(std::string_view line, bool cut) {
    const place here{name_, number_};
    if (line.empty()) return here.expected("a buffer", "an empty line");
    // A row that the end of the file cuts inside its last number would read as a smaller number.
    if (cut)
      return here.expected("a whole line",
                           fmt::format("{} and the end of the file: it is cut", in_quotes(line)));
    split(line, ',', fields_);
    if (fields_.size() != head_.fields)
      return here.expected(fmt::format("{} fields", head_.fields),
                           fmt::format("{}", fields_.size()));
    auto row = parse_row(fields_, head_, here);
    if (!row) return row.error();
    const auto [first, fresh] = lines_.emplace(row->id, number_);
    if (!fresh)
      return here.expected("each id once",
                           fmt::format("{}, which line {} has", in_quotes(row->id), first->second));
    const std::string_view at =
        has_offsets() ? fields_[static_cast<std::size_t>(head_.at[offset])] : std::string_view{};
    std::uint64_t value = 0;
    if (at.empty()) {
      ++out_.without_offset;
    } else if (!parse_number(at, value) || value >= size_limit) {
      return here.expected("an offset below 2^63", in_quotes(at));
    } else {
      offsets_.push_back({out_.instance.buffers.size(), value, number_});
    }
    out_.instance.buffers.push_back(std::move(*row));
    return {};
  }

  // Offsets in every row are a plan; in some rows only, they are fixed there.
  result<void> take_offsets() {
    if (!has_offsets()) {
      out_.without_offset = 0;
      return {};
    }
    if (out_.without_offset == 0) {
      offsets plan;
      for (const given& each : offsets_) plan.push_back(each.offset);
      out_.plan = std::move(plan);
      return {};
    }
    for (const given& each : offsets_) {
      buffer& b = out_.instance.buffers[each.row];
      const place here{name_, each.line};
      const auto checked = parse_fixed(std::to_string(each.offset), b, here);
      if (!checked) return checked.error();
      if (b.fixed && *b.fixed != *checked)
        return here.expected(fmt::format("the fixed offset {} or none", *b.fixed),
                             fmt::format("{}", *checked));
      b.fixed = *checked;
    }
    return {};
  }

  const std::string& name_;
  std::size_t number_ = 0;  // of the line
  header head_;
  std::vector<std::string_view> fields_;
  std::unordered_map<std::string, std::size_t> lines_;  // by id
  std::vector<given> offsets_;
  planning_file out_;
};

}  // namespace

result<planning_file> parse_csv(std::string_view text, const std::string& name) {
  return csv_reader(name).read(text);
}

result<std::string> read_text(const std::string& path, const std::string& name) {
  // A text of more is in nobody's planning; what never ends must not take all memory first.
  constexpr std::uint64_t most_bytes = 4 * GiB;
  auto from = trace::open_raw_input(path, name);
  if (!from) return from.error();
  std::string text;
  std::vector<std::byte> part(std::size_t{256} << 10);
  for (;;) {
    const auto got = (*from)->read(part);
    if (!got) return got.error();
    if (*got == 0) return text;
    if (text.size() + *got > most_bytes) {
      return error{error_code::bad_input,
                   fmt::format("{}: expected a planning file of at most {}, found more",
                               name.empty() ? path : name, format_bytes(most_bytes))};
    }
    text.append(reinterpret_cast<const char*>(part.data()), *got);
  }
}

result<planning_file> read_csv(const std::string& path, const std::string& name) {
  const auto text = read_text(path, name);
  if (!text) return text.error();
  return parse_csv(*text, name.empty() ? path : name);
}

std::string format_csv(const problem& of, const offsets* plan) {
  const auto any = [&](auto has) { return std::any_of(of.buffers.begin(), of.buffers.end(), has); };
  const bool with_alignment = any([](const buffer& b) { return b.alignment != 1; });
  const bool with_gaps = any([](const buffer& b) { return !b.gaps.empty(); });
  const bool with_fixed = any([](const buffer& b) { return b.fixed.has_value(); });
  fmt::memory_buffer out;
  const auto to = std::back_inserter(out);
  fmt::format_to(to, "id,lower,upper,size{}{}{}{}\n", with_alignment ? ",alignment" : "",
                 with_gaps ? ",gaps" : "", with_fixed ? ",fixed" : "",
                 plan != nullptr ? ",offset" : "");
  for (std::size_t i = 0; i < of.buffers.size(); ++i) {
    const buffer& b = of.buffers[i];
    fmt::format_to(to, "{},{},{},{}", b.id, b.lower, b.upper, b.size);
    if (with_alignment) fmt::format_to(to, ",{}", b.alignment);
    if (with_gaps) {
      out.push_back(',');
      for (std::size_t g = 0; g < b.gaps.size(); ++g)
        fmt::format_to(to, "{}{}-{}", g == 0 ? "" : " ", b.gaps[g].lower, b.gaps[g].upper);
    }
    if (with_fixed) fmt::format_to(to, ",{}", b.fixed ? fmt::format("{}", *b.fixed) : "");
    if (plan != nullptr) fmt::format_to(to, ",{}", (*plan)[i]);
    out.push_back('\n');
  }
  return fmt::to_string(out);
}

}  // namespace millpond::plan
