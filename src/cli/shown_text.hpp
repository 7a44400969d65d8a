// What the command says in words, on its way to a terminal.
#pragma once
#include <ostream>
#include <streambuf>
#include <string>

namespace millpond::cli {

// A stream over another one: names, frames and labels of files that somebody else wrote pass
// through it as text, and nothing in them is obeyed by a terminal (base/utf8.hpp). Documents that
// others read (`-o -`) do not. Not thread-safe.
class shown_text final : public std::ostream {
 public:
  explicit shown_text(std::ostream& to) : std::ostream(nullptr), buffer_(to) { rdbuf(&buffer_); }

 private:
  class filter final : public std::streambuf {
   public:
    explicit filter(std::ostream& to) : to_(to) {}

   protected:
    std::streamsize xsputn(const char* text, std::streamsize length) override;
    int_type overflow(int_type character) override;
    int sync() override;

   private:
    void pass_on(bool all);
    std::ostream& to_;
    std::string waiting_;  // the beginning of a character whose end has not come yet
  };
  filter buffer_;
};

}  // namespace millpond::cli
