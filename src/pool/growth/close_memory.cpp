// The end of a pool's physical memory: everything back to the driver, whatever it answers.
#include "driver/insist.hpp"
#include "millpond/base/units.hpp"
#include "millpond/memory/host_pinner.hpp"
#include "pool/growth/physical_memory.hpp"

namespace millpond {
void physical_memory::release_handles(std::vector<error>& failures) {
  const auto& handles = block_store::locked(blocks_).heap().handles();  // that nobody changes now
  for (const auto& handle : handles) {
    if (!handle.present) continue;
    bool gone = true;  // a mapping that stays keeps the memory
    for (const auto& m : handle.mappings)
      gone = insist(failures, "unmapping", [&] { return gpu_.unmap(m.at, handle.bytes); }) && gone;
    gone = insist(failures, "giving back memory",
                  [&] { return gpu_.physical_release(handle.name); }) &&
           gone;
    if (gone) give_budget(handle.bytes);
  }
}

void physical_memory::release_chunks(std::vector<error>& failures) {
  for (const auto& [start, bytes] : reservations_) {
    if (options_.host_memory) {
      auto freed = options_.host_memory->free(reinterpret_cast<void*>(start), bytes);
      if (!freed) freed = options_.host_memory->free(reinterpret_cast<void*>(start), bytes);
      if (freed)
        give_budget(bytes);
      else
        failures.push_back(freed.error());
      continue;
    }
    const bool gone = insist(failures, "giving back memory", [&] {
      return options_.kind == memory_kind::pinned ? gpu_.host_free(reinterpret_cast<void*>(start))
                                                  : gpu_.memory_free(start);
    });
    if (gone) give_budget(bytes);
  }
}

void physical_memory::close(bool with_handles, std::vector<error>& failures) {
  const mutex_lock lock(mutex_);
  if (granularity_ == 0) {
    release_chunks(failures);
  } else {
    if (with_handles) release_handles(failures);
    for (const auto& [base, bytes] : reservations_) {
      insist(failures, "giving back addresses", [&] { return gpu_.address_free(base, bytes); });
    }
  }
  reservations_.clear();
  leave_to_driver();  // what it would not take back stays counted: nobody else can have it
}

void physical_memory::leave_to_driver() {
  if (budget_ != nullptr) budget_->leave_to_driver(budget_->bytes());
}

}  // namespace millpond
