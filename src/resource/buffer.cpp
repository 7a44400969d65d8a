#include "millpond/memory/buffer.hpp"

#include <cstring>

namespace millpond::detail {

result<void*> reallocate(memory_resource& from, stream_handle stream, void* old,
                         std::uint64_t old_bytes, std::uint64_t new_bytes, std::uint64_t copy_bytes,
                         std::uint64_t alignment) {
  driver* const gpu = from.gpu();
  if (copy_bytes != 0 && gpu == nullptr && !from.host_accessible()) {
    return error{error_code::not_supported,
                 "buffer: its resource names no driver to copy with, so it cannot grow once it "
                 "holds elements"};
  }
  auto block = from.try_allocate(new_bytes, alignment, stream);
  if (!block) return block;
  if (copy_bytes != 0) {
    if (gpu == nullptr) {
      std::memcpy(*block, old, copy_bytes);
    } else if (const call_result copied =
                   gpu->copy_async(reinterpret_cast<device_address>(*block),
                                   reinterpret_cast<device_address>(old), copy_bytes, stream);
               !copied.ok()) {
      from.deallocate(*block, new_bytes, stream);
      return to_error(copied, "buffer: move its elements");
    }
  }
  from.deallocate(old, old_bytes, stream);
  return block;
}

}  // namespace millpond::detail
