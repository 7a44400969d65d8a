#include "replay/stages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/bits.hpp"
#include "millpond/base/units.hpp"

namespace millpond::replay {
namespace {
constexpr std::uint64_t largest_buffer = 256 * MiB;
constexpr std::uint64_t page = 4096;
}  // namespace

stages::~stages() {
  static_cast<void>(finish());
}

result<void> stages::prepare(std::shared_ptr<driver> gpu, staging kind, std::uint64_t largest,
                             std::size_t streams) {
  gpu_ = std::move(gpu);
  kind_ = kind;
  bytes_ = align_up(std::min(largest, largest_buffer), page);
  buffers_.assign(streams, nullptr);
  return {};
}

result<void*> stages::buffer(std::size_t index) {
  void*& memory = buffers_[index];
  if (memory != nullptr) return memory;
  if (kind_ == staging::pinned) {
    const call_result answer = gpu_->host_allocate(&memory, bytes_, driver::host_flags::none);
    if (!answer) {
      memory = nullptr;
      return to_error(answer, fmt::format("pinning {} of staging", format_bytes(bytes_)));
    }
  } else {
    memory = std::aligned_alloc(page, bytes_);
    if (memory == nullptr) {
      return error{error_code::out_of_memory,
                   fmt::format("no {} of staging", format_bytes(bytes_))};
    }
  }
  std::memset(memory, 0, bytes_);  // so that its pages are there before the clock starts
  return memory;
}

result<void> stages::make_ready(std::size_t index) {
  const auto memory = buffer(index);
  if (!memory) return memory.error();
  return {};
}

result<void> stages::copy(device_address block, std::uint64_t bytes, stream_handle stream,
                          std::size_t index, direction way) {
  const auto memory = buffer(index);
  if (!memory) return memory.error();
  const auto host = reinterpret_cast<device_address>(*memory);
  for (std::uint64_t done = 0; done < bytes; done += bytes_) {
    const std::uint64_t piece = std::min(bytes_, bytes - done);
    const call_result answer = way == direction::in
                                   ? gpu_->copy_async(block + done, host, piece, stream)
                                   : gpu_->copy_async(host, block + done, piece, stream);
    if (!answer) return to_error(answer, "copying between host and device");
  }
  return {};
}

result<void> stages::finish() {
  result<void> answer;
  for (void*& memory : buffers_) {
    if (memory == nullptr) continue;
    if (kind_ == staging::pinned) {
      if (const auto done = gpu_->host_free(memory); !done)
        answer = to_error(done, "freeing staging");
    } else {
      std::free(memory);
    }
    memory = nullptr;
  }
  return answer;
}

}  // namespace millpond::replay
