// Memory that grows in place: addresses are reserved for the most that may ever be needed, and
// physical memory is mapped behind them as it is. Addresses never change, nothing is ever copied,
// and no work of the GPU waits.
//
// Memory comes in handles; one costs about 50 us to create and map whatever its size (H200, driver
// 580.159, 2026-11-30: create 10, map 0.6, access 42 for 32 MiB), so growth takes one handle a
// step. A handle is given back whole or not at all.
#pragma once
#include "millpond/detail/language.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "millpond/base/units.hpp"
#include "millpond/memory/memory_budget.hpp"
#include "millpond/memory/memory_resource.hpp"

namespace millpond {

struct growable_options {
  // Growth is rounded up to a multiple of it, where memory and budget allow; itself rounded up to
  // the driver's granularity (2 MiB on an H200), and past max_bytes() it means "all at once".
  std::uint64_t step_bytes = 32 * MiB;
  // Growth by more than this takes several handles, so that shrinking can give parts of it back.
  std::uint64_t largest_handle_bytes = 256 * MiB;
  // device, or host: pinned memory that host and device both reach.
  memory_location location = memory_location::device;
  std::shared_ptr<memory_budget> budget = {};
  std::string name = "growable buffer";  // in budgets and messages
};

// The bytes behind a growable_buffer. Not thread-safe: one thread at a time. Every function that
// fails leaves everything as it was, and its message names the driver call. In a forked child every
// call refuses.
class growable_memory {
 public:
  // Reserves addresses for most_bytes; maps nothing yet. stream: whose order growth and shrinking
  // follow. Errors: not_supported where the device has no virtual memory, out_of_memory where there
  // are no addresses.
  [[nodiscard]] static result<growable_memory> create(std::shared_ptr<driver> gpu,
                                                      std::uint64_t most_bytes,
                                                      stream_handle stream,
                                                      growable_options options = {});
  growable_memory(growable_memory&& other) noexcept;
  growable_memory& operator=(growable_memory&& other) noexcept;
  // Waits on the host until the stream has passed everything put on it so far, then gives all back.
  // Not while it captures. What the driver refuses twice is left to it, reported to the default
  // error sink, and stays counted by the budget.
  ~growable_memory();

  [[nodiscard]] device_address address() const noexcept;
  [[nodiscard]] std::uint64_t max_bytes() const noexcept;
  [[nodiscard]] std::uint64_t bytes()
      const noexcept;  // usable from address() on, by work put on the stream from now on
  [[nodiscard]] std::uint64_t retired_bytes() const noexcept;  // shrunk off, not yet given back
  [[nodiscard]] std::uint64_t handles() const noexcept;
  [[nodiscard]] stream_handle stream() const noexcept;
  [[nodiscard]] driver& gpu() const noexcept;
  [[nodiscard]] const growable_options& options() const noexcept;
  // From now on the order of `stream` counts; the caller orders it after the work on the old one.
  void set_stream(stream_handle stream) noexcept;

  // At least so many bytes are usable afterwards. What was shrunk off and is still mapped is used
  // again first; where it was shrunk on another stream, this one waits for that (on the GPU). New
  // bytes have no value. Never waits on the host. out_of_memory past max_bytes, the budget's limit,
  // or what the device has.
  [[nodiscard]] result<void> grow(std::uint64_t bytes);
  // Gives back whole handles beyond the first `bytes`, once the stream has passed what was put on
  // it before this call: those that it has passed already at once, the others by a later call of
  // any function here. Never waits. not_permitted while the stream captures.
  [[nodiscard]] result<void> shrink(std::uint64_t bytes);
  // Gives back what was shrunk off and has passed; answers the bytes. Never waits.
  std::uint64_t give_back() noexcept;

 private:
  struct inside;
  explicit growable_memory(std::unique_ptr<inside> state) noexcept;
  std::unique_ptr<inside> state_;  // nullptr after a move
};

// An array of T that grows in place. T is trivially copyable: elements are bytes to the GPU. Not
// thread-safe.
template <class T>
class growable_buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  // Room in addresses for max_count elements; throws memory_error or out_of_memory as create()
  // fails.
  growable_buffer(std::shared_ptr<driver> gpu, std::size_t max_count, stream_handle stream,
                  growable_options options = {})
      : memory_(open(std::move(gpu), max_count, stream, std::move(options))) {}
  [[nodiscard]] static result<growable_buffer> create(std::shared_ptr<driver> gpu,
                                                      std::size_t max_count, stream_handle stream,
                                                      growable_options options = {}) {
    auto made =
        growable_memory::create(std::move(gpu), bytes_of(max_count), stream, std::move(options));
    if (!made) return made.error();
    return growable_buffer(std::move(made).value());
  }
  growable_buffer(growable_buffer&& other) noexcept
      : memory_(std::move(other.memory_)), size_(std::exchange(other.size_, 0)) {}
  growable_buffer& operator=(growable_buffer&& other) noexcept {
    memory_ = std::move(other.memory_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  // The same address for the buffer's whole life.
  [[nodiscard]] T* data() const noexcept { return reinterpret_cast<T*>(memory_.address()); }
  [[nodiscard]] device_address address() const noexcept { return memory_.address(); }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] std::uint64_t size_bytes() const noexcept {
    return std::uint64_t{size_} * sizeof(T);
  }
  // Elements that physical memory is there for, and that there are addresses for.
  [[nodiscard]] std::size_t capacity() const noexcept {
    return static_cast<std::size_t>(memory_.bytes() / sizeof(T));
  }
  [[nodiscard]] std::size_t max_size() const noexcept {
    return static_cast<std::size_t>(memory_.max_bytes() / sizeof(T));
  }
  [[nodiscard]] growable_memory& memory() noexcept { return memory_; }
  [[nodiscard]] const growable_memory& memory() const noexcept { return memory_; }
  [[nodiscard]] stream_handle stream() const noexcept { return memory_.stream(); }
  void set_stream(stream_handle stream) noexcept { memory_.set_stream(stream); }

  // Changes the number of elements; new ones have no value. Grows memory where needed and never
  // gives any back.
  void resize(std::size_t count) { or_throw(try_resize(count)); }
  [[nodiscard]] result<void> try_resize(std::size_t count) {
    if (auto grown = try_reserve(count); !grown) return grown;
    size_ = count;
    return {};
  }
  void reserve(std::size_t count) { or_throw(try_reserve(count)); }
  [[nodiscard]] result<void> try_reserve(std::size_t count) {
    return count <= capacity() ? result<void>() : memory_.grow(bytes_of(count));
  }
  // Gives back the handles that hold no element, in the stream's order (growable_memory::shrink).
  void shrink_to_fit() { or_throw(memory_.shrink(size_bytes())); }
  [[nodiscard]] result<void> try_shrink_to_fit() { return memory_.shrink(size_bytes()); }
  void clear() noexcept { size_ = 0; }

 private:
  explicit growable_buffer(growable_memory memory) noexcept : memory_(std::move(memory)) {}
  // A count whose bytes do not fit 64 bits is more than any device has: growable_memory says so.
  static std::uint64_t bytes_of(std::size_t count) noexcept {
    return count > std::numeric_limits<std::uint64_t>::max() / sizeof(T)
               ? std::numeric_limits<std::uint64_t>::max()
               : std::uint64_t{count} * sizeof(T);
  }
  static growable_memory open(std::shared_ptr<driver> gpu, std::size_t count, stream_handle stream,
                              growable_options options) {
    return or_throw(
        growable_memory::create(std::move(gpu), bytes_of(count), stream, std::move(options)));
  }

  growable_memory memory_;
  std::size_t size_ = 0;
};

}  // namespace millpond
