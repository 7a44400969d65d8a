// What pool::sleep and pool::wake take and answer: giving all physical memory back while the
// addresses stay, for processes that take turns on one GPU.
#pragma once
#include "millpond/detail/language.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "millpond/base/result.hpp"
#include "millpond/driver/driver.hpp"

namespace millpond {

// Pinned host memory for contents that sleep. Made beforehand, since pinning costs more than the
// copy: huge pages, touched by several threads, then registered with the driver (16 threads pin ten
// times faster than cudaHostAlloc: 2 GiB in 91 ms against 960 ms on an H200's host, driver 580.159,
// 2026-11-30). One sleeper at a time uses a store. Thread-safe.
class pinned_store {
 public:
  // threads: that touch the pages; 0: as many as the machine has, at most 16. Never more than 256;
  // where the system has fewer to give, those and the caller do it. Errors: invalid_argument for a
  // size of 0 or over 64 TiB, out_of_memory, driver_failure naming cuMemHostRegister.
  [[nodiscard]] static result<std::shared_ptr<pinned_store>> create(std::shared_ptr<driver> gpu,
                                                                    std::uint64_t bytes,
                                                                    unsigned threads = 0);
  ~pinned_store();  // unregisters, which waits for the device
  pinned_store(const pinned_store&) = delete;
  pinned_store& operator=(const pinned_store&) = delete;

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  explicit pinned_store(std::shared_ptr<driver> gpu) noexcept : gpu_(std::move(gpu)) {}
  friend class sleeping_memory;
  const std::shared_ptr<driver> gpu_;
  void* mapping_ = nullptr;
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0, mapped_bytes_ = 0;
  bool registered_ = false;
  bool held_ = false;  // by a sleeper; under a mutex of pinned_store.cpp
  [[nodiscard]] bool hold() noexcept;
  void let_go() noexcept;
};

struct sleep_options {
  // Contents of blocks with one of these tags (pool::set_tag) are dropped: what they hold after
  // waking is undefined.
  std::vector<std::string> drop = {};
  enum class untagged_blocks : std::uint8_t { keep, drop };
  untagged_blocks untagged = untagged_blocks::keep;
  // Where kept contents go; it must hold them all. Without one sleep pins what it needs, and that
  // takes longer than the copy.
  std::shared_ptr<pinned_store> host = {};
};

struct sleep_outcome {
  std::uint64_t released_bytes = 0;  // physical memory given back
  std::uint64_t kept_bytes = 0;      // copied to the host
  std::uint64_t dropped_bytes = 0;   // of live blocks whose contents are gone
  std::uint64_t pinned_bytes = 0;    // that this call had to pin
};
struct wake_outcome {
  std::uint64_t taken_bytes = 0;     // physical memory taken again
  std::uint64_t restored_bytes = 0;  // copied back
};

}  // namespace millpond
