// millpond run --pool -- PROGRAM: an unchanged program with its CUDA memory from the pool.
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <ostream>

#include "cli/command.hpp"
#include "cli/program_file.hpp"
#include "millpond/base/units.hpp"
#include "record/launcher.hpp"

namespace millpond::cli {
namespace {

struct options {
  bool pool = false;
  bool ipc = false;
  bool report = false;
  std::string on_free = "waits";
  std::string kinds;
  std::string limit;
  std::vector<std::string> program;
};

// MILLPOND_PRELOAD names another than that which came with the command.
std::string find_library() {
  if (const char* const named = std::getenv("MILLPOND_PRELOAD"); named != nullptr && *named != '\0')
    return named;
  return record::find_own_library("libmillpond_preload.so");
}

exit_status run(const options& chosen, session& here) {
  if (!chosen.pool)
    return here.fail(exit_status::usage, "run: say --pool, the one thing that run does");
  std::string settings = "free=" + chosen.on_free;
  if (chosen.ipc) settings += ",ipc";
  if (chosen.report) settings += ",report,root=" + std::to_string(getpid());
  if (!chosen.kinds.empty()) settings += ",kinds=" + chosen.kinds;
  if (!chosen.limit.empty()) {
    std::uint64_t bytes = 0;
    if (!parse_bytes(chosen.limit, bytes)) {
      return here.fail(exit_status::usage,
                       "run: --limit: expected a size such as 8GiB, found `" + chosen.limit + "`");
    }
    settings += ",limit=" + std::to_string(bytes);
  }
  if (here.gpu().what == gpu_choice::kind::simulated) settings += ",gpu=sim";
  if (here.gpu().what == gpu_choice::kind::card) {
    return here.fail(exit_status::usage,
                     "run: the program chooses its GPU itself (CUDA_VISIBLE_DEVICES); --gpu takes "
                     "only sim here");
  }

  const auto program = read_program(chosen.program.front(), std::getenv("PATH"));
  if (!program) return here.fail(program.error());
  if (const std::string why = why_not_served(*program); !why.empty())
    return here.fail(exit_status::bad_input, why);
  const std::string library = find_library();
  if (library.empty() || access(library.c_str(), R_OK) != 0) {
    return here.fail(exit_status::usage,
                     "run: libmillpond_preload.so is not found" +
                         (library.empty() ? "" : " at " + library) +
                         ": install the component `preload`, or name it by MILLPOND_PRELOAD");
  }
  // The dynamic linker leaves out what it cannot load, and the program would run on unserved.
  if (library.find_first_of(" :\t\n") != std::string::npos) {
    return here.fail(exit_status::usage,
                     "run: " + library +
                         ": its path has a space or a colon, which part the names in LD_PRELOAD: "
                         "name a copy or a link without them by MILLPOND_PRELOAD");
  }
  if (!is_preload_library(library)) {
    return here.fail(exit_status::usage,
                     "run: " + library +
                         ": expected libmillpond_preload.so of this machine's sort, found another "
                         "file: name it by MILLPOND_PRELOAD");
  }
  std::string preload = library;
  // Ours first: what others preload may be built on CUDA too.
  if (const char* const before = std::getenv("LD_PRELOAD"); before != nullptr && *before != '\0')
    preload += std::string(":") + before;
  setenv("LD_PRELOAD", preload.c_str(), 1);
  setenv("MILLPOND_RUN", settings.c_str(), 1);
  std::vector<char*> arguments;
  arguments.reserve(chosen.program.size() + 1);
  for (const std::string& a : chosen.program) arguments.push_back(const_cast<char*>(a.c_str()));
  arguments.push_back(nullptr);
  here.out().flush();
  execv(program->path.c_str(), arguments.data());
  return here.fail(exit_status::bad_input,
                   program->path + ": cannot be run: " + std::strerror(errno));
}

}  // namespace

command_body add_run(CLI::App& app) {
  auto chosen = std::make_shared<options>();
  app.add_flag("--pool", chosen->pool, "Serve the program's CUDA memory from millpond's pool");
  app.add_option("--free", chosen->on_free,
                 "waits: cudaFree waits for the device, as CUDA's does; later: it does not")
      ->check(CLI::IsMember({"waits", "later"}))
      ->capture_default_str();
  app.add_option("--kinds", chosen->kinds,
                 "What to serve, joined by +: device, pinned, managed (default: all)")
      ->check(CLI::Validator(
          [](const std::string& text) {
            std::string_view rest = text;
            while (true) {
              const std::string_view word = rest.substr(0, rest.find('+'));
              if (word != "device" && word != "pinned" && word != "managed")
                return "expected device, pinned, managed joined by +, found " + text;
              if (rest.size() == word.size()) return std::string();
              rest = rest.substr(word.size() + 1);
            }
          },
          "KINDS", "kinds"));
  app.add_option("--limit", chosen->limit, "Device memory to reserve at most, a GPU (8GiB)");
  app.add_flag(
      "--ipc", chosen->ipc,
      "The program shares memory with other processes: one cudaMalloc a block, nothing is moved");
  app.add_flag("--report", chosen->report, "Two lines to stderr at the end");
  app.add_option("program", chosen->program, "The program and its arguments, after --")->required();
  app.positionals_at_end();
  return [chosen](session& here) { return run(*chosen, here); };
}

}  // namespace millpond::cli
