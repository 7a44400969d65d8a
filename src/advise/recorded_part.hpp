// How much of a run a recording holds, and which findings that part cannot carry: they rest on
// having seen every call.
#pragma once
#include <string>
#include <vector>

#include "advise/finding.hpp"
#include "trace/source.hpp"

namespace millpond::advise {

struct recorded_part {
  bool ended = false;   // the program ended by itself, and its frees were seen to the last
  bool window = false;  // only the last events: what came before them is not known
  bool gaps = false;    // events were dropped, or the program paused the recording

  // Whether such a finding may be made of this recording: whether no event that it may lack could
  // refute it.
  [[nodiscard]] bool carries(const finding& of) const noexcept;
};
[[nodiscard]] recorded_part part_of(const trace::metadata& meta);

// Takes out what the recording cannot carry, and says so in the remarks where that changes the
// answer.
void leave_unfounded_out(const recorded_part& part, std::vector<finding>& findings,
                         std::vector<std::string>& remarks);

}  // namespace millpond::advise
