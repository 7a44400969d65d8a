#include "millpond/memory/adaptors.hpp"

#include <fmt/format.h>

#include "millpond/base/units.hpp"
#include "resource/block_sizes.hpp"

namespace millpond {

limit_resource::limit_resource(memory_resource& upstream, std::uint64_t limit_bytes,
                               free_sizes sizes)
    : resource_adaptor(upstream), limit_(limit_bytes) {
  if (sizes == free_sizes::remembered) sizes_ = std::make_unique<block_sizes>();
}

limit_resource::~limit_resource() = default;

result<void*> limit_resource::do_allocate(std::uint64_t bytes, std::uint64_t alignment,
                                          stream_handle stream) {
  // A compare and swap rather than an addition taken back, which would refuse others in between.
  std::uint64_t live = live_.load(std::memory_order_relaxed);
  do {
    const std::uint64_t limit = limit_bytes();
    if (live > limit || bytes > limit - live) {
      refused_.fetch_add(1, std::memory_order_relaxed);
      return error{
          error_code::out_of_memory,
          fmt::format(
              "limit_resource: the limit is {} bytes ({}), live are {} ({}), asked for {} ({})",
              limit, format_bytes(limit), live, format_bytes(live), bytes, format_bytes(bytes))};
    }
  } while (!live_.compare_exchange_weak(live, live + bytes, std::memory_order_relaxed));

  auto answer = upstream().try_allocate(bytes, alignment, stream);
  if (answer && sizes_ && !sizes_->remember(reinterpret_cast<std::uint64_t>(*answer), bytes)) {
    upstream().deallocate(*answer, bytes, stream);
    answer =
        error{error_code::out_of_memory, "limit_resource: no host memory for the block's size"};
  }
  if (!answer) live_.fetch_sub(bytes, std::memory_order_relaxed);
  return answer;
}

result<void> limit_resource::do_deallocate(void* ptr, std::uint64_t bytes,
                                           stream_handle stream) noexcept {
  const auto address = reinterpret_cast<std::uint64_t>(ptr);
  const std::uint64_t counted = sizes_ ? sizes_->take(address) : bytes;
  if (!sizes_ && bytes == 0) {
    return error{error_code::invalid_argument,
                 "limit_resource: a free without a size, where sizes are required; the block "
                 "stays allocated"};
  }
  auto answer = upstream().try_deallocate(ptr, bytes, stream);
  if (answer) {
    live_.fetch_sub(counted, std::memory_order_relaxed);
  } else if (sizes_ && counted != 0) {
    static_cast<void>(sizes_->remember(address, counted));
  }
  return answer;
}

}  // namespace millpond
