// The guard: any resource, with every pointer known.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "millpond/pointer_registry.hpp"
#include "millpond/resource_adaptor.hpp"

namespace millpond {

struct guard_options {
  // Names the upstream in messages: "pool" gives "pool.allocate" and "pool.deallocate". Default:
  // "guarded" and the kind.
  std::string name;
  // Freed blocks up to so many bytes are kept back, oldest given on first, so that their addresses
  // do not come again soon and a late second free is known for what it is. They go back on the
  // stream they were freed on, so call flush before a stream is destroyed. 0: blocks go back at
  // once.
  std::uint64_t quarantine_bytes = 0;
};

// Blocks of the upstream are recorded in the registry with the place of their allocation, and each
// free is checked there before the upstream sees it: wrong kind, double free, foreign and interior
// pointer, wrong size; the error names both calls and both places and the block stays allocated.
// See pointer_registry.hpp. Give it the registry of the other resources on the same driver. Blocks
// that outlive the guard are told to the registry's leak sink and given back to the upstream.
// Thread-safe; costs some tens of nanoseconds a call.
class guard_resource final : public resource_adaptor {
 public:
  guard_resource(memory_resource& upstream, std::shared_ptr<pointer_registry> registry,
                 guard_options options = {});
  ~guard_resource() override;

  [[nodiscard]] const std::shared_ptr<pointer_registry>& registry() const noexcept {
    return registry_;
  }
  [[nodiscard]] std::vector<block_facts> live_blocks() const { return registry_->live(owner_); }
  [[nodiscard]] leak_report leaks() const { return registry_->report(owner_); }

  // Gives every block in quarantine back to the upstream. One that it refuses is told to the error
  // sink and stays, to be tried again.
  void flush() noexcept;
  [[nodiscard]] std::uint64_t quarantined_bytes() const;

 private:
  struct kept_back {
    void* ptr = nullptr;
    std::uint64_t bytes = 0;
    stream_handle stream = nullptr;
  };
  result<void*> do_allocate(std::uint64_t bytes, std::uint64_t alignment,
                            stream_handle stream) override;
  result<void> do_deallocate(void* ptr, std::uint64_t bytes,
                             stream_handle stream) noexcept override;
  void give_on(std::uint64_t keep_bytes) noexcept;

  std::shared_ptr<pointer_registry> registry_;
  const block_owner* owner_;
  const std::uint64_t quarantine_bytes_;
  mutable std::mutex mutex_;  // of the quarantine; a leaf, not held over the upstream's calls
  std::deque<kept_back> quarantine_;
  std::uint64_t quarantined_ = 0;
};

}  // namespace millpond
