// millpond top: what a program does with memory, while it does it.
//
// The recorder makes its file readable forty times a second, so a view needs nothing from the
// program but that file: one thread follows it, this one draws. What is recorded is also there
// afterwards, for explain and report.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <thread>
#include <utility>

#include "base/threads.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"
#include "cli/screen.hpp"
#include "cli/top_target.hpp"
#include "millpond/base/units.hpp"
#include "record/launcher.hpp"
#include "record/lines.hpp"
#include "report/live.hpp"
#include "trace/follow.hpp"

namespace millpond::cli {
namespace {

namespace fs = std::filesystem;
using report::live_view;

struct top_settings {
  std::vector<std::string> words;
  record::launch_request request;
  std::string output, size_limit = "1GiB", sort = "bytes";
  double interval_s = 1;
  std::size_t call_sites = 10;
  bool once = false, no_lines = false;
};

constexpr std::chrono::milliseconds nap{20};

error no_thread(const char* doing) {
  return {error_code::not_permitted,
          fmt::format("top: the system has no thread to give to {} with (ulimit -u, or the control "
                      "group's pids.max): raise the limit",
                      doing)};
}

// A trace on its way into an account, on a thread of its own.
class follower {
 public:
  // `ended` says that nobody writes the file any more.
  follower(std::string path, std::function<bool()> ended)
      : path_(std::move(path)),
        ended_(std::move(ended)),
        thread_(thread_or_none([this] { follow(); })) {
    if (runs()) return;
    failure_ = no_thread("follow the trace");
    done_.store(true, std::memory_order_release);
  }
  ~follower() {
    stop();
    if (thread_.joinable()) thread_.join();
  }
  void stop() noexcept { stop_.store(true, std::memory_order_relaxed); }
  // False where there was no thread to be had; failure() says so.
  [[nodiscard]] bool runs() const noexcept { return thread_.joinable(); }
  [[nodiscard]] bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  // After done().
  [[nodiscard]] const std::optional<error>& failure() const noexcept { return failure_; }
  [[nodiscard]] bool whole() const noexcept { return whole_; }
  [[nodiscard]] live_view view(double elapsed_s, std::size_t call_sites, report::site_order by) {
    const std::lock_guard lock(mutex_);
    return account_.view(elapsed_s, call_sites, by);
  }
  [[nodiscard]] std::uint64_t events() {
    const std::lock_guard lock(mutex_);
    return account_.events();
  }

 private:
  bool more() {
    if (stop_.load(std::memory_order_relaxed) || ended_()) return false;
    std::this_thread::sleep_for(nap);
    return true;
  }
  void follow() {
    read_all();
    done_.store(true, std::memory_order_release);
  }
  void read_all() {
    std::error_code fault;
    while (!fs::exists(path_, fault)) {
      if (more()) continue;
      if (!fs::exists(path_, fault))
        failure_ = error{error_code::bad_input,
                         path_ + ": nothing was recorded yet: the CUDA driver was not initialised"};
      if (failure_) return;
    }
    auto source = trace::follow_trace(path_, [this] { return more(); });
    if (!source) {
      failure_ = source.error();
      return;
    }
    trace::event next;
    for (;;) {
      const auto got = source->read({&next, 1});
      if (!got) failure_ = got.error();
      if (!got || *got == 0) break;
      const std::lock_guard lock(mutex_);
      account_.add(next, source->info());
    }
    whole_ = source->info().status == trace::read_status::complete;
  }

  std::string path_;
  std::function<bool()> ended_;
  std::mutex mutex_;  // account_
  report::live_account account_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> done_{false};  // publishes failure_ and whole_
  std::optional<error> failure_;
  bool whole_ = false;
  std::thread thread_;
};

// The program that top itself started, on a thread that waits for it.
class started_program {
 public:
  started_program(record::launch_request request, int output) : request_(std::move(request)) {
    request_.output = output;
    request_.passes_signals = false;  // they are top's
    request_.started = [this](int process) { process_.store(process, std::memory_order_relaxed); };
    thread_ = thread_or_none([this] {
      outcome_.emplace(record::launch(request_));
      ended_.store(true, std::memory_order_release);
    });
    if (thread_.joinable()) return;
    outcome_.emplace(no_thread("start the program"));
    ended_.store(true, std::memory_order_release);
  }
  ~started_program() { wait(); }
  [[nodiscard]] bool ended() const noexcept { return ended_.load(std::memory_order_acquire); }
  // Asks the program to end, until it has ended: with the signal that came (an interrupt where it
  // was a key), with SIGTERM at the next one, and two seconds later by force.
  void end(session& here) {
    constexpr auto patience = std::chrono::seconds(2);
    interrupts before = interrupts_so_far();
    if (!before.from_terminal) send(before.count == 0 ? SIGINT : before.last);
    bool asked_twice = false, said = false;
    const auto slow = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    auto until = std::chrono::steady_clock::time_point::max();
    while (!ended()) {
      std::this_thread::sleep_for(nap);
      const interrupts now = interrupts_so_far();
      if (now.count != before.count && !asked_twice) {
        asked_twice = true;
        until = std::chrono::steady_clock::now() + patience;
        send(SIGTERM);
      }
      before = now;
      if (!said && std::chrono::steady_clock::now() > slow) {
        said = true;
        here.err() << "millpond: waiting for the program to end; ^C once more ends it\n"
                   << std::flush;
      }
      if (std::chrono::steady_clock::now() < until) continue;
      send(SIGKILL);
      until = std::chrono::steady_clock::time_point::max();
    }
    wait();
  }
  void wait() {
    if (thread_.joinable()) thread_.join();
  }
  [[nodiscard]] const result<record::launch_outcome>& outcome() const { return *outcome_; }

 private:
  void send(int signal) const noexcept {
    if (const int process = process_.load(std::memory_order_relaxed); process != 0 && !ended())
      kill(process, signal);
  }
  record::launch_request request_;
  std::atomic<int> process_{0};
  std::atomic<bool> ended_{false};  // publishes outcome_
  std::optional<result<record::launch_outcome>> outcome_;
  std::thread thread_;
};

// For what is only needed while top runs: a new folder that nobody else may enter, whose name
// nobody can guess, in the system's for temporary files.
class private_folder {
 public:
  static result<private_folder> make() {
    std::error_code fault;
    std::string name = (fs::temp_directory_path(fault) / "millpond_top_XXXXXX").string();
    if (fault || mkdtemp(name.data()) == nullptr) {
      return error{error_code::output_failure,
                   fmt::format("{}: a folder for the program's trace cannot be made: {} (TMPDIR "
                               "names another place)",
                               name, std::strerror(errno))};
    }
    return private_folder(std::move(name));
  }
  private_folder(private_folder&& from) noexcept : path_(std::exchange(from.path_, {})) {}
  private_folder& operator=(private_folder&&) = delete;
  ~private_folder() {
    std::error_code fault;
    if (!path_.empty() && !kept_) fs::remove_all(path_, fault);
  }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  // Somebody wants to read what is in it.
  void keep() noexcept { kept_ = true; }

 private:
  explicit private_folder(std::string path) : path_(std::move(path)) {}
  std::string path_;
  bool kept_ = false;
};

class viewer {
 public:
  viewer(const top_settings& settings, std::string title, follower& from, session& here)
      : settings_(settings), title_(std::move(title)), from_(from), here_(here) {
    by_ = settings.sort == "rate"   ? report::site_order::rate
          : settings.sort == "time" ? report::site_order::time
                                    : report::site_order::bytes;
  }

  // Draws until the trace is over or somebody has had enough.
  void run() {
    const bool terminal = is_terminal(STDOUT_FILENO) && !here_.json() && !settings_.once;
    if (terminal) {
      screen page;
      watch(&page);
    } else {
      watch(nullptr);
    }
  }
  [[nodiscard]] bool left() const noexcept { return left_; }

  // What is there at the end, or at once. From the beginning where no view was shown before.
  void last(const std::string& state) {
    const live_view view = take();
    if (here_.json()) {
      here_.out() << report::live_json(view, state) << '\n';
    } else {
      here_.out() << text(view, state, {80, 0}, report::live_text_options::ink::plain);
    }
  }

 private:
  void watch(screen* page) {
    std::uint64_t next = session::now_ns() + interval();
    while (!from_.done() && !left_) {
      if (interrupts_so_far().count > 0) left_ = true;
      const char key = page != nullptr ? page->key(20) : '\0';
      if (page == nullptr) std::this_thread::sleep_for(nap);
      if (key == 'q') left_ = true;
      if (key == ' ') paused_ = !paused_;
      if (key == 's') by_ = static_cast<report::site_order>((static_cast<int>(by_) + 1) % 3);
      const std::uint64_t now = session::now_ns();
      if (settings_.once || paused_ || (now < next && key != 's') || from_.events() == 0) continue;
      next = now + interval();
      const live_view view = take();
      if (page != nullptr) {
        const screen::size size = page->now();
        page->draw(text(view, "q leaves, s sorts, space holds", {size.columns, size.rows},
                        report::live_text_options::ink::colours));
      } else if (here_.json()) {
        here_.out() << report::live_json(view, "running") << '\n' << std::flush;
      } else {
        here_.out() << text(view, "", {80, 0}, report::live_text_options::ink::plain) << '\n'
                    << std::flush;
      }
    }
  }
  [[nodiscard]] std::uint64_t interval() const {
    return static_cast<std::uint64_t>(settings_.interval_s * 1e9);
  }
  live_view take() {
    const std::uint64_t now = session::now_ns();
    const double elapsed = last_view_ns_ == 0 ? 0 : static_cast<double>(now - last_view_ns_) / 1e9;
    last_view_ns_ = now;
    live_view made = from_.view(elapsed, settings_.call_sites, by_);
    if (!settings_.no_lines) {
      for (report::live_site& each : made.sites) each.label = named(each);
    }
    past_.push_back(made.gpu_live_bytes);
    if (past_.size() > 512) past_.erase(past_.begin());
    return made;
  }
  // A running program's trace has addresses; their lines are looked up once a place.
  const std::string& named(const report::live_site& site) {
    const auto [found, added] = names_.try_emplace(site.label, site.label);
    if (added && !site.frames.empty() && site.frames.front().line == 0) {
      std::vector<record::source_frame> frames;
      frames.reserve(site.frames.size());
      for (const report::live_frame& each : site.frames)
        frames.push_back({each.symbol, each.file, each.line});
      std::vector<report::live_frame> lines;
      for (record::source_frame& each : record::with_lines(frames))
        lines.push_back({std::move(each.symbol), std::move(each.file), each.line});
      if (!lines.empty()) found->second = report::call_site_of(lines);
    }
    return found->second;
  }
  [[nodiscard]] std::string text(const live_view& view, const std::string& state, screen::size size,
                                 report::live_text_options::ink how) const {
    report::live_text_options options;
    options.width = size.columns;
    options.height = size.rows;
    options.how = how;
    options.with = terminal_is_utf8() ? report::live_text_options::letters::utf8
                                      : report::live_text_options::letters::ascii;
    options.title = title_;
    options.state = state;
    return report::live_text(view, past_, options);
  }

  const top_settings& settings_;
  std::string title_;
  follower& from_;
  session& here_;
  report::site_order by_{};
  std::vector<std::uint64_t> past_;
  std::map<std::string, std::string> names_;  // of places, as the trace has them -> with lines
  std::uint64_t last_view_ns_ = 0;
  bool paused_ = false, left_ = false;
};

exit_status watch_other(const top_settings& settings, const top_target& target, session& here) {
  catch_interrupts();
  const bool once = settings.once;
  follower from(target.trace, [once, process = target.process] {
    return once || (process != 0 && !process_runs(process));
  });
  viewer view(settings, target.title, from, here);
  view.run();
  from.stop();
  while (!from.done()) std::this_thread::sleep_for(nap);
  if (from.failure() && from.events() == 0) return here.fail(*from.failure());
  view.last(settings.once  ? "until now"
            : from.whole() ? "ended"
            : view.left()  ? "left"
                           : "ended, not closed");
  if (from.failure()) return here.fail(*from.failure());
  return exit_status::done;
}

std::string how_it_ended(const record::launch_outcome& outcome) {
  return outcome.signal != 0
             ? fmt::format("ended by signal {} ({})", outcome.signal, strsignal(outcome.signal))
             : fmt::format("ended with status {}", outcome.exit_status);
}

exit_status watch_program(top_settings settings, const top_target& target, session& here) {
  record::launch_request& request = settings.request;
  if (const auto file = needs_a_file(settings.output); !file) return here.fail(file.error());
  const bool terminal = is_terminal(STDOUT_FILENO) && !here.json() && !settings.once;
  auto scratch = private_folder::make();
  if (!scratch) return here.fail(scratch.error());
  const bool kept = !settings.output.empty();
  request.command = settings.words;
  request.how.path = kept ? settings.output : scratch->path() + "/trace.mpt";
  if (!kept) {
    request.how.file_mode = 0600;
    request.keeps_mode = false;
  }
  request.how.recorded_by =
      fmt::format("millpond top {} ({})", build_info().version, build_info().commit);
  if (!parse_bytes(settings.size_limit, request.how.most_bytes)) {
    return here.fail(exit_status::usage,
                     fmt::format("--size-limit: expected a size such as 512MiB, found `{}`",
                                 settings.size_limit));
  }
  if (request.how.cupti.empty()) request.how.cupti = record::find_cupti();
  if (request.library.empty()) request.library = record::find_recorder_library();
  // Beside a view that fills the terminal nothing else may be printed there; JSON has standard
  // output for itself.
  const std::string printed = scratch->path() + "/printed.log";
  const int output =
      terminal ? open(printed.c_str(), O_CREAT | O_EXCL | O_NOFOLLOW | O_WRONLY | O_CLOEXEC, 0600)
               : dup(STDERR_FILENO);
  if (output < 0)
    return here.fail(exit_status::bad_input, fmt::format("{}: cannot be written", printed));
  catch_interrupts();
  exit_status status = exit_status::done;
  {
    started_program program(request, output);
    follower from(request.how.path, [&program] { return program.ended(); });
    viewer view(settings, target.title, from, here);
    view.run();
    if (view.left()) program.end(here);
    program.wait();
    while (!from.done()) std::this_thread::sleep_for(nap);
    const auto& outcome = program.outcome();
    if (!outcome) {
      status = here.fail(outcome.error());
    } else if (!from.runs()) {
      status = here.fail(*from.failure());
    } else if (from.events() == 0) {
      status = here.fail(
          exit_status::bad_input,
          fmt::format(
              "nothing was recorded: the program {} and the CUDA driver was never initialised "
              "in it, or never loaded the recorder. A program on millpond's simulated GPU makes no "
              "CUDA calls: its trace is written by millpond::trace_file",
              how_it_ended(*outcome)));
    } else {
      view.last(how_it_ended(*outcome));
      // As `time` and `env` do: the program's own status is the command's.
      status = static_cast<exit_status>(outcome->signal != 0 ? 128 + outcome->signal
                                                             : outcome->exit_status);
    }
  }
  close(output);
  if (kept && !here.json()) here.out() << fmt::format("the trace: {}\n", request.how.path);
  std::error_code fault;
  if (terminal && fs::exists(printed, fault) && fs::file_size(printed, fault) > 0) {
    scratch->keep();
    if (!kept) fs::remove(request.how.path, fault);
    here.out() << fmt::format("what the program printed: {}\n", printed);
  }
  return status;
}

}  // namespace

command_body add_top(CLI::App& app) {
  auto settings = std::make_shared<top_settings>();
  app.add_option("WHAT", settings->words,
                 "A process that is being recorded (its id), a trace that is being written (.mpt), "
                 "or behind `--` a program to start")
      ->type_name("PID|TRACE|PROGRAM ...")
      ->required();
  app.add_flag("--once", settings->once,
               "One view of what is there now; of a program: of its whole run");
  app.add_option("--interval", settings->interval_s, "Seconds between two views")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  app.add_option("--call-sites", settings->call_sites, "How many hot call sites are shown")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  app.add_option("--sort", settings->sort,
                 "Places by: bytes (live), rate (allocations), time (in them)")
      ->check(CLI::IsMember({"bytes", "rate", "time"}))
      ->capture_default_str();
  app.add_option("-o,--output", settings->output,
                 "Keep the program's trace here, for explain and report (else it is removed)")
      ->type_name("FILE");
  app.add_option("--size-limit", settings->size_limit,
                 "Stop looking when the program's trace has so many bytes")
      ->type_name("SIZE")
      ->capture_default_str();
  app.add_flag("--no-lines", settings->no_lines,
               "Leave addresses as they are, without asking addr2line for lines");
  app.add_option("--library", settings->request.library,
                 "libmillpond_record.so, where it is not beside the command")
      ->type_name("FILE");
  app.add_option("--cupti", settings->request.how.cupti, "The libcupti to use")->type_name("FILE");
  return [settings](session& here) {
    auto target = find_top_target(settings->words);
    if (!target) return here.fail(target.error());
    if (target->what == top_target::sort::program) return watch_program(*settings, *target, here);
    const auto for_programs = [&](const char* option) {
      return here.fail(
          exit_status::usage,
          fmt::format("{} is for a program that top starts (behind `--`); {} is only looked at",
                      option, settings->words.front()));
    };
    if (!settings->output.empty()) return for_programs("-o");
    if (!settings->request.library.empty()) return for_programs("--library");
    if (!settings->request.how.cupti.empty()) return for_programs("--cupti");
    return watch_other(*settings, *target, here);
  };
}

}  // namespace millpond::cli
