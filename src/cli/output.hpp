// Where a subcommand's -o goes.
#pragma once
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>

#include "base/output_file.hpp"
#include "cli/command.hpp"
#include "trace/writer.hpp"

namespace millpond::cli {

// A file (base/output_file.hpp), or standard output for "-", and then what is said besides goes to
// standard error. Every subcommand that writes a file writes it through this.
class output {
 public:
  // Standard output is one document's: "-" together with --json is invalid_argument.
  [[nodiscard]] static result<output> open(session& here, const std::string& path);
  // Without finish() nothing is left.
  [[nodiscard]] trace::sink& sink() noexcept { return *to_; }
  [[nodiscard]] result<void> write(std::string_view text);
  [[nodiscard]] result<void> finish();
  // Where to say what was done.
  [[nodiscard]] std::ostream& beside() const noexcept { return *beside_; }

 private:
  output(std::unique_ptr<trace::sink> to, std::ostream& beside)
      : to_(std::move(to)), beside_(&beside) {}
  std::unique_ptr<output_file> file_;  // where it is one
  std::unique_ptr<trace::sink> to_;
  std::ostream* beside_;
};

// For files that are written while a program runs, or read again: "-" is invalid_argument.
[[nodiscard]] result<void> needs_a_file(const std::string& path);

}  // namespace millpond::cli
