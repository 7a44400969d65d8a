// The result of a benchmark: what it is of, its rows, and where it is kept. A result that is kept
// says which commit it is of, so a build whose sources were not committed has none to keep.
#pragma once
#include <string>
#include <string_view>

#include "bench/support/command_line.hpp"
#include "bench/support/value.hpp"

namespace millpond::bench {

struct result_options {
  std::string out;       // the file; empty: none
  bool scratch = false;  // to look at, not to keep

  void add_to(command_line& line);
};

// Why a build of that commit may not write a result, empty where it may.
[[nodiscard]] std::string why_not_kept(std::string_view commit, const result_options& how);

// The commit that this build is of, with -dirty where its sources were not committed.
[[nodiscard]] const char* own_commit() noexcept;

// Ends the program with 2 and that sentence where this build may not write one.
void check_may_write(const result_options& how);

// A result's first fields: the benchmark, the commit, the compiler, and whether it is scratch.
[[nodiscard]] value result_of(const char* benchmark, const result_options& how);

// To the file, where there is one; ends the program with 3 where it cannot be written.
void write_result(const value& result, const result_options& how);

}  // namespace millpond::bench
