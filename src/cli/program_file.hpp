// What a program's file says of how it reaches CUDA: whether a preloaded library can stand in
// between.
#pragma once
#include <string>
#include <vector>

#include "millpond/base/result.hpp"

namespace millpond::cli {

struct program_facts {
  std::string path;        // as found by PATH
  bool elf = false;        // false: a script; what runs it decides
  bool dynamic = false;    // the dynamic linker loads it, and with it what is preloaded
  bool sets_user = false;  // set-user-id or set-group-id: the linker drops preloads from anywhere
                           // but its own folders
  bool runtime_inside = false;  // has the CUDA runtime linked into itself
  std::vector<std::string> needed;
};

// Finds the program as execvp does and reads its file. Errors: bad_input where there is none or it
// cannot be read or run.
[[nodiscard]] result<program_facts> read_program(const std::string& name, const char* search_path);

// Whether a file is the library that `run` preloads, for machines of this sort.
[[nodiscard]] bool is_preload_library(const std::string& path);

// Why it cannot be served and what to do; empty where it can.
[[nodiscard]] std::string why_not_served(const program_facts& program);

}  // namespace millpond::cli
