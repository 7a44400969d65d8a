#include "millpond/pinned/pinned_pool.hpp"

#include <algorithm>
#include <map>
#include <mutex>

#include "base/bits.hpp"
#include "driver/own_calls.hpp"
#include "millpond/base/units.hpp"

namespace millpond {
namespace {

// Write-combined memory by cuMemHostAlloc, within a limit on what is pinned. A block starts on 2
// MiB, which the driver does not promise, so 2 MiB more are pinned for each and counted.
class write_combined_source final : public host_memory_source {
 public:
  write_combined_source(std::shared_ptr<driver> gpu, std::uint64_t limit_bytes)
      : gpu_(std::move(gpu)), limit_(limit_bytes) {}
  result<void*> allocate(std::uint64_t bytes) override {
    if (bytes > max_bytes) {
      return error{error_code::out_of_memory,
                   "pinning " + format_bytes(bytes) + ": no machine has that much"};
    }
    const std::uint64_t asked = bytes + for_alignment;
    {
      const std::lock_guard lock(mutex_);
      if (asked > limit_ || pinned_ > limit_ - asked) return past_limit(asked);
      pinned_ += asked;
    }
    block made{nullptr, asked};
    const auto answer = pin(&made.base, asked);
    const std::lock_guard lock(mutex_);
    if (!answer.ok()) {
      pinned_ -= asked;
      return to_error(answer, "pinning " + format_bytes(asked) + ", write-combined");
    }
    void* const at = reinterpret_cast<void*>(
        align_up(reinterpret_cast<std::uintptr_t>(made.base), for_alignment));
    blocks_.emplace(at, made);
    return at;
  }
  // What the driver refuses to take back stays a block of this source, so that it can be asked
  // again.
  result<void> free(void* at, std::uint64_t) noexcept override {
    std::map<void*, block>::node_type gone;
    {
      const std::lock_guard lock(mutex_);
      gone = blocks_.extract(at);
    }
    if (gone.empty()) return error{error_code::foreign_pointer, "not a block of this source"};
    const auto answer = unpin(gone.mapped().base);
    const std::lock_guard lock(mutex_);
    if (!answer.ok()) {
      blocks_.insert(std::move(gone));
      return to_error(answer, "unpinning");
    }
    pinned_ -= gone.mapped().bytes;
    return {};
  }

 private:
  static constexpr std::uint64_t for_alignment = 2 * MiB;
  struct block {
    void* base = nullptr;  // as the driver knows it
    std::uint64_t bytes = 0;
  };
  // Relaxed, so that no capture suffers from it.
  call_result pin(void** out, std::uint64_t bytes) noexcept {
    const own_calls_scope own_calls(*gpu_);
    if (!own_calls.entered()) return own_calls.entered();
    return gpu_->host_allocate(out, bytes, driver::host_flags::write_combined);
  }
  call_result unpin(void* at) noexcept {
    const own_calls_scope own_calls(*gpu_);
    return gpu_->host_free(at);
  }
  [[nodiscard]] error past_limit(std::uint64_t asked) const {
    return {error_code::out_of_memory,
            "pinning " + format_bytes(asked) + ", write-combined, would pass the limit of " +
                format_bytes(limit_) + " (" + format_bytes(pinned_) +
                " are pinned, 2.00 MiB of each piece for its alignment): raise budget_bytes, "
                "budget_share or limit_bytes, or free pinned memory"};
  }
  std::shared_ptr<driver> gpu_;
  const std::uint64_t limit_;
  std::mutex mutex_;  // a leaf: the two below; held over no driver call
  std::map<void*, block> blocks_;
  std::uint64_t pinned_ = 0;
};

}  // namespace

result<std::shared_ptr<pool>> make_pinned_pool(std::shared_ptr<driver> gpu,
                                               const pinned_pool_options& options) {
  if (gpu == nullptr) return error{error_code::invalid_argument, "pinned pool: no driver"};
  const bool write_combined = options.caching == driver::host_flags::write_combined;
  host_pinner_options pinning = options.pinning;
  // Such memory does not come from the pinner, which answers the budget alone.
  if (write_combined) pinning.keep_ready_bytes = 0;
  auto pinner = host_pinner::create(gpu, pinning);
  if (!pinner) return pinner.error();
  pool_options made;
  made.kind = memory_kind::pinned;
  made.initial_bytes = options.initial_bytes;
  made.reuse = options.reuse;
  const std::uint64_t budget = (*pinner)->usage().budget_bytes;
  made.limit_bytes = options.limit_bytes != 0 ? std::min(options.limit_bytes, budget) : budget;
  if (options.initial_bytes > made.limit_bytes) {
    return error{error_code::out_of_memory,
                 "pinned pool: initial_bytes of " + format_bytes(options.initial_bytes) +
                     " is more than the " + (made.limit_bytes == budget ? "budget" : "limit") +
                     " of " + format_bytes(made.limit_bytes) +
                     ": what is pinned is gone for all other processes; raise budget_share or "
                     "budget_bytes where that is meant"};
  }
  if (write_combined) {
    made.host_memory = std::make_shared<write_combined_source>(gpu, made.limit_bytes);
  } else {
    made.host_memory = std::move(*pinner);
  }
  return pool::create(std::move(gpu), std::move(made));
}

}  // namespace millpond
