// Pinned memory made fast: huge pages touched by many threads at once, then registered with the
// driver.
//
// Pinning is touching: cuMemHostAlloc clears pages of 4 KiB on one thread, 0.5 s a GiB. Pages of 2
// MiB touched by 16 threads and then cuMemHostRegister take a tenth of that (2 GiB: 960 to 1012 ms
// and 38 + 53; one H200's host, driver 580.159, 2026-11-30), and copies run at the same 55 GB/s.
#pragma once
#include "millpond/detail/language.hpp"

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "millpond/base/result.hpp"
#include "millpond/driver/driver.hpp"

namespace millpond {

// Where a pinned pool's memory comes from. Blocks are on 2 MiB and usable by the device at the same
// address.
class host_memory_source {
 public:
  virtual ~host_memory_source() = default;
  [[nodiscard]] virtual result<void*> allocate(std::uint64_t bytes) = 0;
  // May wait for the whole device.
  virtual result<void> free(void* at, std::uint64_t bytes) noexcept = 0;
};

struct host_pinner_options {
  unsigned threads = 0;  // that touch; 0: one a processor, at most 16. Never more than 256
  // The most that may be pinned, as a share of the machine's memory (or of the control group's
  // limit where that is less): what is pinned is gone for every other process. 0 < share <= 1.
  double budget_share = 0.5;
  std::uint64_t budget_bytes = 0;  // 0: by the share
  enum class huge_pages : std::uint8_t { advised, never };
  huge_pages pages = huge_pages::advised;
  int numa_node = -1;  // -1: the device's own, as the driver tells it
  // This much is pinned ahead by a thread of its own and handed out to the next request that it
  // covers; 0: none. Where it stands in the way of a request within the budget it is unpinned, and
  // pinned again once something was freed. Where the system has no thread to give, it is pinned
  // once, by create.
  std::uint64_t keep_ready_bytes = 0;
};

struct host_pinner_usage {
  std::uint64_t pinned_bytes = 0;  // out and ready
  std::uint64_t ready_bytes = 0;
  std::uint64_t budget_bytes = 0;
  std::uint64_t blocks = 0;             // out
  std::uint64_t served_ready = 0;       // requests that found their memory pinned already
  std::uint64_t refused = 0;            // requests that the budget had no room for
  std::string background_failure = {};  // why nothing could be pinned ahead; empty: it could
};

// What it hands out does not go along into forked children, which get a fault where they
// touch it; its calls refuse there (not_permitted).
// Thread-safe. Errors: out_of_memory with the budget and what to change, or with the limit of
// locked memory where that is in the way; driver_failure naming cuMemHostRegister.
class host_pinner final : public host_memory_source {
 public:
  // invalid_argument for a share outside 0 to 1.
  [[nodiscard]] static result<std::shared_ptr<host_pinner>> create(
      std::shared_ptr<driver> gpu, host_pinner_options options = {});
  // What is still out is left alone: its owner may use it.
  ~host_pinner() override;

  [[nodiscard]] result<void*> allocate(std::uint64_t bytes) override;
  // Unregistering waits for the whole device: not for a program that serves. A pool frees only when
  // it ends.
  result<void> free(void* at, std::uint64_t bytes) noexcept override;

  [[nodiscard]] host_pinner_usage usage() const;
  // Until the memory that is to be ready is ready, or has failed to be.
  void wait_until_ready();

 private:
  host_pinner(std::shared_ptr<driver> gpu, host_pinner_options options, std::uint64_t budget);
  result<void*> pin(std::uint64_t bytes);
  call_result registered(void* at, std::uint64_t bytes) noexcept;
  result<void> unpin(void* at, std::uint64_t bytes) noexcept;
  [[nodiscard]] bool take_budget(std::uint64_t bytes) noexcept;
  [[nodiscard]] error over_budget(std::uint64_t bytes) const;
  [[nodiscard]] bool let_ready_go(std::uint64_t bytes);
  void pin_ahead();
  void keep_ready();

  std::shared_ptr<driver> gpu_;
  host_pinner_options options_;
  std::uint64_t budget_;
  const std::uint32_t born_in_fork_;
  mutable std::mutex mutex_;  // a leaf: held over no pinning and no driver call
  std::unique_ptr<std::condition_variable> changed_ = std::make_unique<std::condition_variable>();
  std::map<void*, std::uint64_t> out_;  // blocks handed out, with their pinned size
  // What is pinned ahead: none is wanted, or no more; it is to be made, is being made, is there; or
  // the budget had no room for it when it was last wanted.
  enum class ahead : std::uint8_t { over, wanted, runs, there, waits_for_a_free };
  ahead ahead_ = ahead::over;
  void* ready_ = nullptr;
  bool ending_ = false;
  host_pinner_usage usage_;
  std::thread keeper_;
};

}  // namespace millpond
