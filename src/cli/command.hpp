// The frame of the command: what every subcommand is given, and how it answers.
//
// A subcommand is one file with one function that adds its options to a CLI::App and returns its
// body. The frame adds --json and --gpu to each, opens the GPU when the body asks for it, and turns
// errors into one line on stderr and an exit status. The list of subcommands is in commands.cpp.
#pragma once
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cli/shown_text.hpp"
#include "millpond/base/result.hpp"
#include "millpond/driver/driver.hpp"

namespace CLI {
class App;
}

namespace millpond::cli {

enum class exit_status : int {
  done = 0,
  findings = 1,   // the command ran and found something wrong with what it looked at
  usage = 2,      // the command line is not understood
  bad_input = 3,  // a file is not what it should be, or asks for what cannot be
  device = 4,     // the GPU or its driver failed, or is not there
};
[[nodiscard]] exit_status status_of(const error& failure) noexcept;

// What --gpu asked for.
struct gpu_choice {
  enum class kind { automatic, card, simulated };
  kind what = kind::automatic;
  int ordinal = 0;      // of a card
  std::string profile;  // of the simulated GPU: a built-in name or a file; empty for the default
};
// "0", "1", "sim", "sim:h200", "sim:my_card.toml". Nothing for anything else.
[[nodiscard]] std::optional<gpu_choice> parse_gpu_choice(std::string_view text);

// One subcommand's surroundings. Not thread-safe, except now_ns.
class session {
 public:
  struct settings {
    bool json = false;
    gpu_choice gpu;
    std::uint64_t seed = 1;  // of the simulated GPU's call times
  };
  session(settings chosen, std::ostream& out, std::ostream& err);

  [[nodiscard]] bool json() const noexcept { return settings_.json; }
  // For words: what names in files say is shown, never obeyed by the terminal (shown_text.hpp).
  [[nodiscard]] std::ostream& out() noexcept { return out_; }
  [[nodiscard]] std::ostream& err() noexcept { return err_; }
  // For a document that another program reads, byte by byte (`-o -`).
  [[nodiscard]] std::ostream& unfiltered_out() const noexcept { return unfiltered_out_; }
  [[nodiscard]] const gpu_choice& gpu() const noexcept { return settings_.gpu; }

  // One more GPU as --gpu asks: the card where there is one, else a fresh simulated one. A
  // subcommand may open several simulated GPUs, from one thread at a time; a card is opened once
  // and shared.
  [[nodiscard]] result<std::shared_ptr<driver>> open_gpu();
  // Why the simulated GPU serves although nobody asked for it; empty otherwise. After open_gpu().
  [[nodiscard]] const std::string& why_simulated() const noexcept { return why_simulated_; }
  // What every output calls the GPU: "NVIDIA H200", or "simulated h200 (SIMULATED: ...)".
  [[nodiscard]] std::string gpu_label(const driver& gpu) const;

  void set_seed(std::uint64_t seed) noexcept { settings_.seed = seed; }

  // The host's steady clock, the only one of the program. From any thread.
  [[nodiscard]] static std::uint64_t now_ns() noexcept;

  // One line of progress on stderr that the next one overwrites; nothing unless stderr is a
  // terminal.
  void progress(std::string_view text);
  // Removes the line of progress. Called by the frame too.
  void end_progress();

  // Prints "millpond: MESSAGE" and gives the status that belongs to the error.
  [[nodiscard]] exit_status fail(const error& failure);
  [[nodiscard]] exit_status fail(exit_status status, std::string_view message);

 private:
  settings settings_;
  std::ostream& unfiltered_out_;
  std::ostream& unfiltered_err_;
  shown_text out_, err_;
  std::shared_ptr<driver> card_;
  std::string why_simulated_;
  std::size_t progress_width_ = 0;
  bool terminal_ = false;
};

// Runs with the options that were parsed. Throws nothing that it can turn into a status.
using command_body = std::function<exit_status(session&)>;

struct command_entry {
  const char* name;
  const char* summary;   // one line of `millpond --help`
  const char* examples;  // shown under the subcommand's help
  command_body (*add)(CLI::App& app);
  // Reads files of others and starts no program: what it may take of memory is bounded.
  bool bounds_memory = false;
};
// Every subcommand, in the order of the help.
[[nodiscard]] std::span<const command_entry> all_commands() noexcept;

// One JSON document and a line end. What is not UTF-8, as names of files may be, is replaced.
[[nodiscard]] std::string document_of(const nlohmann::ordered_json& made);

// The whole command: parses, runs one subcommand, gives the exit status.
[[nodiscard]] int run_command(int count, const char* const* arguments, std::ostream& out,
                              std::ostream& err);

// The nearest of `names` to a mistyped word, or empty when none is near.
[[nodiscard]] std::string nearest_name(std::string_view word, std::span<const std::string> names);

// "0.2.0", and where it was built from.
struct build_facts {
  std::string version;
  std::string commit;  // "unknown" outside a git checkout; "-dirty" is appended for changed files
  std::string compiler;
  std::string flavour;  // CMake's build type
};
[[nodiscard]] const build_facts& build_info();

}  // namespace millpond::cli
