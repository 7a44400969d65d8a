// Running the programs over the simulated GPU.
#pragma once
#include <map>
#include <string>

// By name: "leak", "leak_clean".
const std::map<std::string, int (*)()>& shim_programs();

// Runs one program under a recorder that writes `trace`, in a process of its own so that it has an
// end of its own, with static destructors. The program's status; -1 where it ended by a signal.
int shim_run(const std::string& name, const std::string& trace);
