// buffer<T>: memory of any resource for a number of T, given back when the buffer ends.
#pragma once
#include "millpond/detail/language.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <source_location>
#include <span>
#include <type_traits>
#include <utility>

#include "millpond/memory/call_site.hpp"
#include "millpond/memory/memory_resource.hpp"

namespace millpond {

namespace detail {
// A new block of new_bytes with the first copy_bytes of the old one, copied on the stream (by the
// CPU at once where the resource has no driver); the old block goes back on the stream. On an error
// the old block stays as it is. old may be nullptr.
[[nodiscard]] result<void*> reallocate(memory_resource& from, stream_handle stream, void* old,
                                       std::uint64_t old_bytes, std::uint64_t new_bytes,
                                       std::uint64_t copy_bytes, std::uint64_t alignment);
}  // namespace detail

// Contents are never initialised. Move-only. Not thread-safe, as a std::vector; two buffers are
// independent.
//
// Stream order: the buffer has one stream, on which its memory was allocated and goes back. Work on
// that stream may use the buffer from its making to its end with no further care. Work on another
// stream must be ordered by the caller: after the making (an event recorded on the buffer's
// stream), and before the end, a resize or reserve that moves, or release (a wait put on the
// buffer's stream). The CPU may touch memory of a host-accessible kind once what was put on the
// stream before the making has run, since that may still use a block that was freed there, and the
// work that writes it is done; a resize that moves copies on the stream, so what the CPU wrote is
// moved, and the CPU must synchronise the stream before it reads or writes again.
//
// The resource must outlive the buffer. Errors: the resource's, thrown as out_of_memory or
// memory_error; after an error the buffer is as it was.
template <class T>
class buffer {
  static_assert(std::is_trivially_copyable_v<T>,
                "a buffer's contents are copied as bytes, by the GPU");
  static_assert(!std::is_const_v<T> && !std::is_volatile_v<T>, "a buffer owns what it holds");

 public:
  using value_type = T;
  static constexpr std::uint64_t alignment =
      alignof(T) > default_alignment ? alignof(T) : default_alignment;

  // Empty: holds no memory and asks for none.
  buffer(memory_resource& from, stream_handle stream) noexcept : from_(&from), stream_(stream) {}
  buffer(std::size_t count, memory_resource& from, stream_handle stream,
         std::source_location where = std::source_location::current())
      : from_(&from), stream_(stream), made_(where) {
    resize(count, where);
  }
  // The same with the error as a result.
  [[nodiscard]] static result<buffer> create(
      std::size_t count, memory_resource& from, stream_handle stream,
      std::source_location where = std::source_location::current()) {
    buffer made(from, stream);
    made.made_ = where;
    if (auto answer = made.try_resize(count, where); !answer) return answer.error();
    return made;
  }

  buffer(buffer&& other) noexcept
      : from_(other.from_),
        stream_(other.stream_),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)),
        made_(other.made_) {}
  buffer& operator=(buffer&& other) noexcept {
    buffer(std::move(other)).swap(*this);
    return *this;
  }
  buffer(const buffer&) = delete;
  buffer& operator=(const buffer&) = delete;
  ~buffer() { reset(); }

  void swap(buffer& other) noexcept {
    std::swap(from_, other.from_);
    std::swap(stream_, other.stream_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    std::swap(made_, other.made_);
  }

  [[nodiscard]] T* data() noexcept { return data_; }
  [[nodiscard]] const T* data() const noexcept { return data_; }
  [[nodiscard]] device_address address() const noexcept {
    return reinterpret_cast<device_address>(data_);
  }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::uint64_t size_bytes() const noexcept {
    return std::uint64_t{size_} * sizeof(T);
  }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] memory_resource& resource() const noexcept { return *from_; }
  [[nodiscard]] stream_handle stream() const noexcept { return stream_; }

  // The elements for the CPU. Throws memory_error (not_supported) for memory that it cannot reach.
  [[nodiscard]] std::span<T> host_span() {
    require_host();
    return {data_, size_};
  }
  [[nodiscard]] std::span<const T> host_span() const {
    require_host();
    return {data_, size_};
  }

  // From now on the buffer belongs to `stream`: it is copied and given back there. Does no more
  // than that: the caller orders the new stream after all work on the old one that uses the buffer,
  // before the buffer is used, resized or ended there (record an event on the old stream, make the
  // new one wait).
  void set_stream(stream_handle stream) noexcept { stream_ = stream; }

  // Changes the number of elements. Beyond the capacity the memory is allocated anew, exactly as
  // large, and the elements copied on the stream; addresses change. New elements have no value.
  // Never gives memory back.
  void resize(std::size_t count, std::source_location where = std::source_location::current()) {
    or_throw(try_resize(count, where));
  }
  [[nodiscard]] result<void> try_resize(
      std::size_t count, std::source_location where = std::source_location::current()) {
    if (auto answer = try_reserve(count, where); !answer) return answer;
    size_ = count;
    return {};
  }
  // Makes room for count elements without changing their number.
  void reserve(std::size_t count, std::source_location where = std::source_location::current()) {
    or_throw(try_reserve(count, where));
  }
  [[nodiscard]] result<void> try_reserve(
      std::size_t count, std::source_location where = std::source_location::current()) {
    return count <= capacity_ ? result<void>() : move_to(count, where);
  }
  // Gives back what is beyond the size, by a copy into smaller memory.
  void shrink_to_fit(std::source_location where = std::source_location::current()) {
    if (size_ == capacity_) return;
    if (size_ == 0) return reset();
    or_throw(move_to(size_, where));
  }

  // Hands the memory to the caller, who gives it back to resource() with `capacity() * sizeof(T)`
  // bytes (or 0); the buffer is empty then. nullptr where there is none.
  [[nodiscard]] T* release() noexcept {
    size_ = 0;
    capacity_ = 0;
    return std::exchange(data_, nullptr);
  }
  // Gives the memory back on the stream; the buffer is empty then. Errors go to the resource's
  // error sink.
  void reset() noexcept {
    if (data_ == nullptr) return;
    const std::uint64_t bytes = std::uint64_t{capacity_} * sizeof(T);
    const scoped_call_site here{call_site("the end of a buffer made at", made_)};
    from_->deallocate(release(), bytes, stream_);
  }

 private:
  void require_host() const {
    if (from_->host_accessible()) return;
    throw memory_error({error_code::not_supported, std::string("buffer: the CPU cannot reach ") +
                                                       to_string(from_->kind()) + " memory"});
  }
  result<void> move_to(std::size_t count, std::source_location where) {
    const scoped_call_site here{call_site(where)};
    // A count whose bytes do not fit 64 bits is more than any device has: the resource says so.
    const std::uint64_t bytes = count > std::numeric_limits<std::uint64_t>::max() / sizeof(T)
                                    ? std::numeric_limits<std::uint64_t>::max()
                                    : std::uint64_t{count} * sizeof(T);
    auto moved = detail::reallocate(*from_, stream_, data_, std::uint64_t{capacity_} * sizeof(T),
                                    bytes, size_bytes(), alignment);
    if (!moved) return moved.error();
    data_ = static_cast<T*>(*moved);
    capacity_ = count;
    return {};
  }

  memory_resource* from_;
  stream_handle stream_;
  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
  std::source_location made_{};
};

template <class T>
void swap(buffer<T>& a, buffer<T>& b) noexcept {
  a.swap(b);
}

}  // namespace millpond
