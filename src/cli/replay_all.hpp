// One workload through every strategy, with the session's GPU and its progress: what compare,
// advise and report share.
#pragma once
#include "cli/command.hpp"
#include "replay/compare.hpp"

namespace millpond::cli {

// `first` is a GPU that the session has opened: a simulated one is replayed on by several workers.
// The strategies, contents and clock are the caller's, in `options`.
result<std::vector<replay::outcome>> replay_all(const replay::workload& work, const driver& first,
                                                replay::compare_options options, session& here);

}  // namespace millpond::cli
