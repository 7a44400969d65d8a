// What the parts of an analysis share.
#pragma once
#include <map>
#include <string>
#include <string_view>

#include "advise/block_book.hpp"
#include "advise/explain.hpp"
#include "advise/finding_list.hpp"
#include "advise/graph_book.hpp"
#include "advise/stream_clocks.hpp"
#include "advise/wait_log.hpp"
#include "trace/source.hpp"

namespace millpond::advise {

// How often a range or mark of one name came, and where first.
struct mark_facts {
  std::uint64_t count = 0;
  std::uint64_t first_event = 0;
};

struct analysis {
  const explain_options& options;
  const trace::trace_info& info;  // grows while the trace is read
  block_book book;
  stream_clocks clocks;
  wait_log waits;
  graph_book graphs;
  bool unknown_graphs = false;  // one was launched whose capture was not seen
  finding_list found;
  analysed what;
  std::map<std::uint64_t, mark_facts> marks;  // by the name's string id

  [[nodiscard]] std::string_view text(std::uint64_t id) const {
    return info.strings.at(static_cast<std::uint32_t>(id));
  }
  // "cudaMalloc", or "an allocation of device memory" where the trace does not say.
  [[nodiscard]] std::string allocate_call(const block_facts& of) const;
  // The same for a line of code: the usual call of the kind where the trace does not say.
  [[nodiscard]] std::string allocate_code(const block_facts& of) const;
  [[nodiscard]] std::string free_call(std::uint64_t call, trace::kind of) const;
  // The call that frees this block.
  [[nodiscard]] std::string right_free(const block_facts& of) const;
  // "block of 64 MiB (event 12)".
  [[nodiscard]] static std::string name_block(const block_facts& of);
  void place_allocation(finding& of, const block_facts& block) const;
  void place_free(finding& of, const block_facts& block, std::string_view call) const;
};

[[nodiscard]] std::string plural(std::uint64_t count, std::string_view one);

// A place in the key of a finding: its stack, or where there is none what it was reported instead.
[[nodiscard]] inline std::uint64_t call_site_key(std::uint32_t stack,
                                                 std::uint64_t instead) noexcept {
  return stack != 0 ? stack : (std::uint64_t{1} << 40) + instead;
}

}  // namespace millpond::advise
