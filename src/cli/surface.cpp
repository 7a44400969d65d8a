#include "cli/surface.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>
#include <sstream>

#include "report/table.hpp"

namespace millpond::cli {
namespace {

// CLI11 tells a set of choices only in the name of the type: "TEXT:{html,csv}".
std::vector<std::string> choices_of(const std::string& type) {
  const std::size_t begin = type.find('{'), end = type.rfind('}');
  std::vector<std::string> made;
  if (begin == std::string::npos || end == std::string::npos || end < begin) return made;
  std::istringstream text(type.substr(begin + 1, end - begin - 1));
  for (std::string each; std::getline(text, each, ',');) made.push_back(each);
  return made;
}

option_facts facts_of(const CLI::Option& of) {
  option_facts made;
  made.longs = of.get_lnames();
  made.shorts = of.get_snames();
  if (!of.nonpositional()) made.name = of.get_name(true);
  const std::string type = of.get_type_name();
  made.choices = choices_of(type);
  if (of.get_items_expected_max() > 0)
    made.value = made.choices.empty() ? type.substr(0, type.find(':')) : "WORD";
  made.description = of.get_description();
  made.standard = of.get_default_str();
  made.required = of.get_required();
  return made;
}

class lines_of_80 : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    return line(make_option_name(option, is_positional) + make_option_opts(option),
                make_option_desc(option));
  }
  std::string make_subcommand(const CLI::App* sub) const override {
    return line(sub->get_display_name(true), sub->get_description());
  }
  std::string make_description(const CLI::App* app) const override {
    return report::wrapped(app->get_description(), 80, 0) + '\n';
  }

 private:
  static std::string line(const std::string& name, const std::string& description) {
    constexpr std::size_t column = 26;
    std::string made = "  " + name;
    // A long list of words is broken behind a comma.
    if (made.size() > 80) {
      if (const std::size_t comma = made.rfind(',', 79); comma != std::string::npos)
        made.insert(comma + 1, "\n      ");
    }
    if (description.empty()) return made + '\n';
    if (made.size() + 1 > column) {
      made += '\n' + std::string(column, ' ');
    } else {
      made += std::string(column - made.size(), ' ');
    }
    std::istringstream text(report::wrapped(description, 80 - column, 0));
    bool first = true;
    for (std::string each; std::getline(text, each); first = false)
      made += (first ? "" : std::string(column, ' ')) + each + '\n';
    return made;
  }
};

}  // namespace

surface read_surface(const CLI::App& app) {
  surface made{app.get_description(), app.get_footer(), {}};
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    command_facts command{sub->get_name(), sub->get_description(), sub->get_footer(), {}};
    for (const CLI::Option* option : sub->get_options())
      command.options.push_back(facts_of(*option));
    made.commands.push_back(std::move(command));
  }
  return made;
}

void set_help_format(CLI::App& app) {
  app.formatter(std::make_shared<lines_of_80>());
}

}  // namespace millpond::cli
