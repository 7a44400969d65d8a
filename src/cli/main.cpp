#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <new>
#include <string_view>

#include "base/output_file.hpp"
#include "cli/command.hpp"

namespace {

// Memory that ran out where nothing can be thrown is no bug to dump core for.
void end_without_memory() {
  millpond::remove_unfinished_files();
  try {
    if (const std::exception_ptr why = std::current_exception()) std::rethrow_exception(why);
  } catch (const std::bad_alloc&) {
    constexpr std::string_view text = "millpond: not enough memory for this input\n";
    static_cast<void>(!write(STDERR_FILENO, text.data(), text.size()));
    std::_Exit(static_cast<int>(millpond::cli::exit_status::device));
  } catch (...) {
  }
  std::abort();
}

}  // namespace

int main(int count, char** arguments) {
  std::set_terminate(end_without_memory);
  millpond::remove_unfinished_files_at_signals();
  std::ios::sync_with_stdio(false);
  return millpond::cli::run_command(count, arguments, std::cout, std::cerr);
}
