#include <iostream>

#include "cli/command.hpp"

int main(int count, char** arguments) {
  std::ios::sync_with_stdio(false);
  return millpond::cli::run_command(count, arguments, std::cout, std::cerr);
}
