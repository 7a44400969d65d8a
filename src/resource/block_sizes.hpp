// Sizes of blocks by address, for adaptors that count bytes. Sharded, a lock each, as the pointer
// registry.
#pragma once
#include <array>
#include <cstdint>
#include <mutex>
#include <new>

#include "resource/address_table.hpp"

namespace millpond {

class block_sizes {
 public:
  // False where there is no host memory for the entry.
  [[nodiscard]] bool remember(std::uint64_t address, std::uint64_t bytes) noexcept {
    shard& in = of(address);
    const std::lock_guard lock(in.mutex);
    try {
      in.sizes.insert(address) = bytes;
    } catch (const std::bad_alloc&) {
      return false;
    }
    return true;
  }
  // Forgets the block; 0 where it is not known. To be taken before the block is freed, since its
  // address may be another block's right after, and remembered again where the free fails.
  [[nodiscard]] std::uint64_t take(std::uint64_t address) noexcept {
    shard& in = of(address);
    const std::lock_guard lock(in.mutex);
    const std::uint64_t* const found = in.sizes.find(address);
    if (found == nullptr) return 0;
    const std::uint64_t bytes = *found;
    in.sizes.erase(address);
    return bytes;
  }

 private:
  struct alignas(64) shard {
    std::mutex mutex;  // a leaf
    address_table<std::uint64_t> sizes;
  };
  shard& of(std::uint64_t address) noexcept {
    return shards_[(address * 0xd6e8feb86659fd93ULL) >> 58];
  }
  std::array<shard, 64> shards_;
};

}  // namespace millpond
