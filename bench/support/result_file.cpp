#include "bench/support/result_file.hpp"

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "millpond_commit.hpp"

namespace millpond::bench {
namespace {

#if defined(__OPTIMIZE__)
constexpr bool optimised = true;
#else
constexpr bool optimised = false;
#endif

}  // namespace

void result_options::add_to(command_line& line) {
  line.option("--out", out, "result file (JSON)");
  line.flag("--scratch", scratch,
            "the result is to look at, not to keep: a tree with changes may write it");
}

std::string why_not_kept(std::string_view commit, const result_options& how) {
  if (how.out.empty() || how.scratch || !commit.ends_with("-dirty")) return {};
  return how.out + ": not written, since the build is of " + std::string(commit) +
         ", sources that no commit holds; commit and build again, or say --scratch for numbers "
         "that "
         "are not kept";
}

const char* own_commit() noexcept {
  return MILLPOND_COMMIT;
}

void check_may_write(const result_options& how) {
  std::string why = why_not_kept(own_commit(), how);
  if (why.empty() && !optimised && !how.out.empty() && !how.scratch) {
    why = how.out +
          ": not written, since this benchmark was built without optimisation "
          "(MILLPOND_OPTIMIZE_EXTRAS is OFF); configure with it ON, or say --scratch for numbers "
          "that are not kept";
  }
  if (why.empty()) return;
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(2);
}

value result_of(const char* benchmark, const result_options& how) {
  value out{{"benchmark", benchmark}, {"commit", own_commit()}, {"compiler", MILLPOND_COMPILER}};
  if (how.scratch) out["scratch"] = true;
  if (!optimised) out["optimised"] = false;
  return out;
}

void write_result(const value& result, const result_options& how) {
  if (how.out.empty()) return;
  std::ofstream file(how.out);
  file << result.json(1) << '\n';
  if (file.flush()) return;
  std::fprintf(stderr, "%s: cannot be written\n", how.out.c_str());
  std::exit(3);
}

}  // namespace millpond::bench
