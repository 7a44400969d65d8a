#include "bench/support/command_line.hpp"

#include <CLI/CLI.hpp>
#include <cstdlib>

namespace millpond::bench {

struct command_line::reader {
  explicit reader(const std::string& benchmark) : app("millpond benchmark: " + benchmark) {}
  CLI::App app;
};

command_line::command_line(const std::string& benchmark)
    : reader_(std::make_unique<reader>(benchmark)) {}
command_line::~command_line() = default;

void command_line::option(const char* name, std::string& into, const char* help) {
  auto* const made = reader_->app.add_option(name, into, help);
  if (!into.empty()) made->capture_default_str();
}
void command_line::option(const char* name, double& into, const char* help) {
  reader_->app.add_option(name, into, help)->capture_default_str();
}
void command_line::option(const char* name, std::uint64_t& into, const char* help) {
  reader_->app.add_option(name, into, help)->capture_default_str();
}
void command_line::option(const char* name, std::vector<double>& into, const char* help) {
  reader_->app.add_option(name, into, help)
      ->allow_extra_args(false)
      ->delimiter(',')
      ->capture_default_str();
}
void command_line::option(const char* name, std::vector<std::string>& into, const char* help) {
  reader_->app.add_option(name, into, help);
}
void command_line::one_of(const char* name, std::string& into, std::vector<std::string> choices,
                          const char* help) {
  reader_->app.add_option(name, into, help)
      ->check(CLI::IsMember(std::move(choices)))
      ->capture_default_str();
}
void command_line::flag(const char* name, bool& into, const char* help) {
  reader_->app.add_flag(name, into, help);
}
void command_line::words(std::vector<std::string>& into, inputs how_many, const char* help) {
  auto* const made = reader_->app.add_option("inputs", into, help);
  if (how_many == inputs::at_least_one) made->required();
}

void command_line::read(int count, char** arguments) {
  try {
    reader_->app.parse(count, arguments);
  } catch (const CLI::ParseError& e) {
    std::exit(reader_->app.exit(e) == 0 ? 0 : 2);
  }
}

}  // namespace millpond::bench
