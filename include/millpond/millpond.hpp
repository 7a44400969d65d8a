// What most programs need, by one line:
//
//     #include <millpond/millpond.hpp>
//
// a GPU (the machine's, or a simulated one), the five kinds of memory, the pool and what it
// reports, adaptors around any of them, a budget over several, and buffers. Left out, by their own
// headers: bindings to other libraries, recorded traces, and managed, growable, shared and planned
// memory, which few programs use together.
#pragma once
#include "millpond/detail/language.hpp"

#include "millpond/base/result.hpp"
#include "millpond/base/units.hpp"
#include "millpond/driver/driver.hpp"
#include "millpond/memory/adaptors.hpp"
#include "millpond/memory/buffer.hpp"
#include "millpond/memory/call_site.hpp"
#include "millpond/memory/kinds.hpp"
#include "millpond/memory/memory_budget.hpp"
#include "millpond/memory/memory_resource.hpp"
#include "millpond/pinned/pinned_pool.hpp"
#include "millpond/pool/memory_report.hpp"
#include "millpond/pool/metrics.hpp"
#include "millpond/pool/pool.hpp"
#include "millpond/sim/simulated_gpu.hpp"
