// Counts what goes through: live, peak, totals, and a histogram by size.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "millpond/resource_adaptor.hpp"

namespace millpond {

class block_sizes;

struct allocation_statistics {
  std::uint64_t live_bytes = 0;  // as asked for
  std::uint64_t live_blocks = 0;
  std::uint64_t peak_live_bytes = 0;  // exact
  std::uint64_t allocations = 0;      // that succeeded
  std::uint64_t deallocations = 0;
  std::uint64_t allocated_bytes = 0;  // ever
  std::uint64_t failed_allocations = 0;
  std::uint64_t failed_deallocations = 0;
  struct size_class {
    std::uint64_t from_bytes = 0;  // inclusive; a power of two
    std::uint64_t to_bytes = 0;    // exclusive
    std::uint64_t allocations = 0;
    std::uint64_t live_blocks = 0;
  };
  std::vector<size_class> classes;  // those ever used, by rising size
  // A table for people, a line a class.
  [[nodiscard]] std::string text() const;
};

// Thread-safe. Threads count on cache lines of their own, but for the live bytes: an exact peak
// needs one number that all agree on. The numbers are exact when no call is in flight.
class statistics_resource final : public resource_adaptor {
 public:
  explicit statistics_resource(memory_resource& upstream,
                               free_sizes sizes = free_sizes::remembered);
  ~statistics_resource() override;

  [[nodiscard]] allocation_statistics statistics() const;
  // The peak from now on; everything else goes on counting.
  void reset_peak() noexcept;

 private:
  static constexpr std::size_t class_count = 61;  // floor(log2(bytes)) up to max_bytes
  static constexpr std::size_t stripe_count = 16;

  // Counts alone: they publish nothing. A free may be counted on another stripe than its
  // allocation, so differences are taken of the sums.
  struct alignas(64) stripe {
    std::atomic<std::uint64_t> allocated_bytes{0};
    std::atomic<std::uint64_t> failed_allocations{0}, failed_deallocations{0};
    std::array<std::atomic<std::uint64_t>, class_count> allocations{}, deallocations{};
  };

  result<void*> do_allocate(std::uint64_t bytes, std::uint64_t alignment,
                            stream_handle stream) override;
  result<void> do_deallocate(void* ptr, std::uint64_t bytes,
                             stream_handle stream) noexcept override;
  [[nodiscard]] stripe& mine() noexcept;

  std::unique_ptr<stripe[]> stripes_;
  alignas(64) std::atomic<std::uint64_t> live_bytes_{0};
  std::atomic<std::uint64_t> peak_live_bytes_{0};
  alignas(64) std::unique_ptr<block_sizes> sizes_;  // nullptr where sizes are told
};

}  // namespace millpond
