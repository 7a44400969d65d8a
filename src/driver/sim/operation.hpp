// One piece of device work: what it does to memory when it is done.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <variant>
#include <vector>

#include "millpond/sim/simulated_gpu.hpp"

namespace millpond::sim {

// Only time: a spin kernel, an empty graph.
struct spin_work {
  std::uint64_t nanoseconds = 0;
};
struct kernel_work {
  std::shared_ptr<const kernel_description> kernel;
};
struct copy_work {
  device_address to = 0, from = 0;
  std::uint64_t bytes = 0;
};
struct fill_work {
  device_address at = 0;
  std::uint64_t bytes = 0;
  unsigned char value = 0;
};
struct identity_write_work {
  std::vector<identity_block> blocks;
};
struct identity_check_work {
  std::vector<identity_block> blocks;
  identity_report* report = nullptr;
};
struct host_work {
  void (*function)(void*) = nullptr;
  void* data = nullptr;
};
struct prefetch_work {
  device_address at = 0;
  std::uint64_t bytes = 0;
  memory_location to = memory_location::device;
};
// A plain allocation that cuMemFreeAsync was given.
struct release_work {
  device_address at = 0;
};
// Keeps something alive until the device is done with it (a graph that was destroyed while it
// runs).
struct keep_work {
  std::shared_ptr<void> what;
};

using work = std::variant<spin_work, kernel_work, copy_work, fill_work, identity_write_work,
                          identity_check_work, host_work, prefetch_work, release_work, keep_work>;

// Calls visit(address, bytes, access_kind) for each range that the work touches.
template <class Visitor>
void visit_accesses(const work& w, Visitor&& visit) {
  if (const auto* kernel = std::get_if<kernel_work>(&w)) {
    for (const kernel_access& a : kernel->kernel->accesses) visit(a.address, a.bytes, a.kind);
  } else if (const auto* copy = std::get_if<copy_work>(&w)) {
    visit(copy->from, copy->bytes, access_kind::read);
    visit(copy->to, copy->bytes, access_kind::write);
  } else if (const auto* fill = std::get_if<fill_work>(&w)) {
    visit(fill->at, fill->bytes, access_kind::write);
  } else if (const auto* write = std::get_if<identity_write_work>(&w)) {
    for (const identity_block& b : write->blocks) visit(b.address, b.bytes, access_kind::write);
  } else if (const auto* check = std::get_if<identity_check_work>(&w)) {
    for (const identity_block& b : check->blocks) visit(b.address, b.bytes, access_kind::read);
  }
}

}  // namespace millpond::sim
