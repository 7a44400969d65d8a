#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <sstream>
#include <string>

#include "cli/surface.hpp"

namespace millpond::cli {
namespace {

// Text that roff shall show as it is. A line must not begin with a dot or an apostrophe.
std::string shown(const std::string& text) {
  std::string made;
  bool line_begins = true;
  for (const char each : text) {
    if (line_begins && (each == '.' || each == '\'')) made += "\\&";
    line_begins = each == '\n';
    if (each == '\\') {
      made += "\\e";
    } else if (each == '-') {
      made += "\\-";
    } else {
      made += each;
    }
  }
  return made;
}

std::string option_head(const option_facts& of) {
  if (of.longs.empty() && of.shorts.empty()) {
    const bool same = of.value.empty() || of.value == of.name || of.value == "TEXT";
    return fmt::format(".I {}", shown(same ? of.name : of.name + " (" + of.value + ")"));
  }
  std::string names;
  for (const std::string& each : of.shorts) names += (names.empty() ? "-" : ", -") + each;
  for (const std::string& each : of.longs) names += (names.empty() ? "--" : ", --") + each;
  const std::string value =
      of.choices.empty() ? of.value : fmt::format("{}", fmt::join(of.choices, "|"));
  return value.empty() ? fmt::format(".B {}", shown(names))
                       : fmt::format(".BI \"{} \" \"{}\"", shown(names), shown(value));
}

// Footers are examples, indented by two; other lines are prose.
void put_footer(std::string& into, const std::string& footer) {
  bool example = false;
  std::istringstream lines(footer);
  for (std::string line; std::getline(lines, line);) {
    const bool indented = line.starts_with("  ");
    if (indented != example) into += indented ? ".PP\n.nf\n.RS 4\n" : ".RE\n.fi\n.PP\n";
    example = indented;
    into += shown(indented ? line.substr(2) : line) + '\n';
  }
  if (example) into += ".RE\n.fi\n";
}

}  // namespace

std::string man_page(const surface& of, const std::string& version) {
  std::string made = fmt::format(
      ".TH MILLPOND 1 \"\" \"millpond {}\" \"User Commands\"\n.SH NAME\nmillpond \\- {}\n", version,
      shown(of.summary));
  made += ".SH SYNOPSIS\n.B millpond\n.I SUBCOMMAND\n[\\fIOPTIONS\\fR]\n.SH DESCRIPTION\n";
  for (const command_facts& command : of.commands)
    made += fmt::format(".TP\n.B {}\n{}.\n", command.name, shown(command.summary));
  made += ".PP\n";
  put_footer(made, of.footer);
  for (const command_facts& command : of.commands) {
    std::string upper = command.name;
    std::ranges::transform(upper, upper.begin(), [](unsigned char each) {
      return static_cast<char>(std::toupper(each));
    });
    made += fmt::format(".SH MILLPOND {}\n{}.\n", upper, shown(command.summary));
    for (const option_facts& option : command.options) {
      made += fmt::format(
          ".TP\n{}\n{}{}\n", option_head(option), shown(option.description),
          option.standard.empty() ? "" : fmt::format(" (default: {})", shown(option.standard)));
    }
    made += ".PP\n";
    put_footer(made, command.footer);
  }
  return made;
}

}  // namespace millpond::cli
