#include "cli/screen.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>

namespace millpond::cli {
namespace {

// Lock-free, so that a handler may write them.
std::atomic<unsigned> interrupt_count{0};
std::atomic<int> last_interrupt{0};
std::atomic<bool> last_from_terminal{false};
static_assert(std::atomic<unsigned>::is_always_lock_free && std::atomic<int>::is_always_lock_free &&
              std::atomic<bool>::is_always_lock_free);

void put(std::string_view text) {
  while (!text.empty()) {
    const ssize_t done = write(STDOUT_FILENO, text.data(), text.size());
    if (done <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(done));
  }
}

}  // namespace

screen::screen() {
  keys_ = is_terminal(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &before_) == 0;
  if (keys_) {
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);  // interrupts stay
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
  }
  put("\x1b[?1049h\x1b[?25l");
}

screen::~screen() {
  put("\x1b[?25h\x1b[?1049l");
  if (keys_) tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
}

screen::size screen::now() const {
  winsize window{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_col == 0 || window.ws_row == 0)
    return {};
  return {window.ws_col, window.ws_row};
}

void screen::draw(std::string_view text) {
  // Over what is there, line by line, so that nothing flickers; then whatever was below is taken
  // away.
  std::string made = "\x1b[H";
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    made += text.substr(0, end);
    made += "\x1b[K";
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
    if (!text.empty()) made += "\r\n";
  }
  put(made + "\x1b[J");
}

char screen::key(int wait_ms) {
  pollfd at{STDIN_FILENO, POLLIN, 0};
  if (poll(&at, keys_ ? 1 : 0, wait_ms) <= 0) return 0;
  char pressed = 0;
  return read(STDIN_FILENO, &pressed, 1) == 1 ? pressed : '\0';
}

bool is_terminal(int descriptor) noexcept {
  return isatty(descriptor) == 1;
}

bool terminal_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string_view text(value);
    return text.find("UTF-8") != std::string_view::npos ||
           text.find("utf8") != std::string_view::npos;
  }
  return false;
}

void catch_interrupts() {
  struct sigaction how{};
  how.sa_sigaction = [](int signal, siginfo_t* from, void*) {
    last_interrupt = signal;
    // A terminal's come from the kernel; those that a process sends have no positive code.
    last_from_terminal = from->si_code > 0;
    ++interrupt_count;
  };
  how.sa_flags = SA_SIGINFO;
  for (const int each : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaction(each, &how, nullptr);
}

interrupts interrupts_so_far() noexcept {
  return {interrupt_count, last_interrupt, last_from_terminal};
}

}  // namespace millpond::cli
