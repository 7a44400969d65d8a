// The whole terminal as a page that is drawn again and again, and the keys pressed meanwhile.
#pragma once
#include <termios.h>

#include <cstddef>
#include <string_view>

namespace millpond::cli {

class screen {
 public:
  // Takes the terminal behind standard output: another page, no cursor, keys without Enter. Ended
  // by the destructor; a signal that ends the process must reach it (see interrupted()).
  screen();
  ~screen();
  screen(const screen&) = delete;
  screen& operator=(const screen&) = delete;

  struct size {
    std::size_t columns = 80, rows = 24;
  };
  [[nodiscard]] size now() const;
  void draw(std::string_view text);
  // The next key, waited for so many milliseconds; 0 where none came.
  [[nodiscard]] char key(int wait_ms);

 private:
  termios before_{};
  bool keys_ = false;  // standard input is a terminal too
};

[[nodiscard]] bool is_terminal(int descriptor) noexcept;
// Whether letters beyond ASCII can be drawn, as the environment says.
[[nodiscard]] bool terminal_is_utf8();

// From now on SIGINT, SIGTERM, SIGHUP and SIGQUIT are only counted.
void catch_interrupts();
struct interrupts {
  unsigned count = 0;          // since catch_interrupts()
  int last = 0;                // the signal
  bool from_terminal = false;  // the last one: whoever else runs in it has got it too
};
[[nodiscard]] interrupts interrupts_so_far() noexcept;

}  // namespace millpond::cli
