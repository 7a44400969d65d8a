#include "millpond/pinned/pinned_pool.hpp"

#include <algorithm>

#include "base/bits.hpp"
#include "driver/relaxed_capture.hpp"
#include "millpond/base/units.hpp"

namespace millpond {
namespace {

// Write-combined memory by cuMemHostAlloc, within a pinner's budget.
class write_combined_source final : public host_memory_source {
 public:
  explicit write_combined_source(std::shared_ptr<driver> gpu) : gpu_(std::move(gpu)) {}
  result<void*> allocate(std::uint64_t bytes) override {
    void* base = nullptr;
    const std::uint64_t asked = bytes + 2 * MiB;
    const relaxed_capture_scope relaxed(*gpu_);
    if (!relaxed.entered()) return to_error(relaxed.entered(), "pinning, write-combined");
    if (const auto answer = gpu_->host_allocate(&base, asked, driver::host_flags::write_combined);
        !answer.ok()) {
      return to_error(answer, "pinning " + format_bytes(asked) + ", write-combined");
    }
    void* const at =
        reinterpret_cast<void*>(align_up(reinterpret_cast<std::uintptr_t>(base), 2 * MiB));
    const std::lock_guard lock(mutex_);
    bases_.emplace(at, base);
    return at;
  }
  result<void> free(void* at, std::uint64_t) noexcept override {
    void* base = nullptr;
    {
      const std::lock_guard lock(mutex_);
      const auto found = bases_.find(at);
      if (found == bases_.end())
        return error{error_code::foreign_pointer, "not a block of this source"};
      base = found->second;
      bases_.erase(found);
    }
    const relaxed_capture_scope relaxed(*gpu_);
    if (const auto answer = gpu_->host_free(base); !answer.ok())
      return to_error(answer, "unpinning");
    return {};
  }

 private:
  std::shared_ptr<driver> gpu_;
  std::mutex mutex_;
  std::map<void*, void*> bases_;
};

}  // namespace

result<std::shared_ptr<pool>> make_pinned_pool(std::shared_ptr<driver> gpu,
                                               const pinned_pool_options& options) {
  if (gpu == nullptr) return error{error_code::invalid_argument, "pinned pool: no driver"};
  auto pinner = host_pinner::create(gpu, options.pinning);
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
  if (options.caching == driver::host_flags::write_combined) {
    made.host_memory = std::make_shared<write_combined_source>(gpu);
  } else {
    made.host_memory = std::move(*pinner);
  }
  return pool::create(std::move(gpu), std::move(made));
}

}  // namespace millpond
