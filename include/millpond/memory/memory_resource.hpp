// The one small interface of all memory: allocate on a stream, free on a stream.
#pragma once
#include "millpond/detail/language.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <new>
#include <string>

#include "millpond/driver/driver.hpp"

namespace millpond {

inline constexpr std::uint64_t default_alignment = 512;  // libraries choose kernels by it
inline constexpr std::uint64_t max_alignment = std::uint64_t{2} << 20;
// More than any device or address space has, and far from where adding an alignment would wrap.
inline constexpr std::uint64_t max_bytes = std::uint64_t{1} << 60;

// Thrown by allocate when the memory is not there. what() is the whole report; json() is it for
// programs, empty where the resource has none (the pool has: memory_report.hpp).
class out_of_memory : public std::bad_alloc {
 public:
  explicit out_of_memory(std::string report, std::string json = {})
      : report_(std::move(report)), json_(std::move(json)) {}
  explicit out_of_memory(const error& failure) : out_of_memory(failure.message, failure.json) {}
  [[nodiscard]] const char* what() const noexcept override { return report_.c_str(); }
  [[nodiscard]] const std::string& json() const noexcept { return json_; }

 private:
  std::string report_;
  std::string json_;
};

// Thrown by allocate for every other error.
class memory_error : public std::exception {
 public:
  explicit memory_error(millpond::error failure) : error_(std::move(failure)) {}
  [[nodiscard]] const char* what() const noexcept override { return error_.message.c_str(); }
  [[nodiscard]] error_code code() const noexcept { return error_.code; }

 private:
  millpond::error error_;
};

// The throwing edge: what a call answered, or its error as the exception of its sort.
[[noreturn]] void throw_error(const error& failure);
template <class T>
T or_throw(result<T> answer) {
  if (!answer) throw_error(answer.error());
  return std::move(answer).value();
}
inline void or_throw(const result<void>& answer) {
  if (!answer) throw_error(answer.error());
}

// Where deallocate reports, since it cannot throw. Counted by every resource; the default sink
// prints the first ten to stderr. Called with no lock of ours held, on the thread that freed.
using error_sink = std::function<void(const error&)>;
[[nodiscard]] error_sink default_error_sink();

// A source of memory of one kind. Thread-safe unless a resource says otherwise. In a forked child
// every call answers not_permitted: the GPU and its memory belong to the parent.
class memory_resource {
 public:
  virtual ~memory_resource() = default;
  memory_resource() noexcept;
  memory_resource(const memory_resource&) = delete;
  memory_resource& operator=(const memory_resource&) = delete;

  [[nodiscard]] virtual memory_kind kind() const noexcept = 0;
  // Whether the CPU may read and write the blocks: pinned, managed and pageable memory, unless a
  // resource knows better (a driver pool of host memory).
  [[nodiscard]] virtual bool host_accessible() const noexcept;
  // Whether kernels may: every kind but pageable, which needs a device with pageable memory access.
  [[nodiscard]] virtual bool device_accessible() const noexcept;
  // The driver whose streams use the blocks; nullptr where the resource has none. Lives as long as
  // this.
  [[nodiscard]] virtual driver* gpu() const noexcept { return nullptr; }

  // Memory usable by work put on `stream` from now on. 0 bytes gives nullptr. alignment: a power of
  // two up to max_alignment. More than max_bytes is out_of_memory before anyone is asked. Errors as
  // results; nothing is lost.
  [[nodiscard]] result<void*> try_allocate(std::uint64_t bytes, std::uint64_t alignment,
                                           stream_handle stream);
  // The same; throws out_of_memory or memory_error.
  [[nodiscard]] void* allocate(std::uint64_t bytes, std::uint64_t alignment, stream_handle stream);
  [[nodiscard]] void* allocate(std::uint64_t bytes, stream_handle stream) {
    return allocate(bytes, default_alignment, stream);
  }

  // Gives a block back; work on `stream` so far may still use it. nullptr is legal. bytes: what was
  // asked for, or 0 where the caller does not know. Never throws: errors go to the resource's error
  // sink.
  void deallocate(void* ptr, std::uint64_t bytes, stream_handle stream) noexcept;
  // The same with the error as a result.
  [[nodiscard]] result<void> try_deallocate(void* ptr, std::uint64_t bytes,
                                            stream_handle stream) noexcept;

  // Errors that deallocate has met so far.
  [[nodiscard]] std::uint64_t deallocation_errors() const noexcept {
    return deallocation_errors_.load(std::memory_order_relaxed);
  }
  void set_error_sink(error_sink sink);

 protected:
  // bytes > 0 and the alignment is valid.
  virtual result<void*> do_allocate(std::uint64_t bytes, std::uint64_t alignment,
                                    stream_handle stream) = 0;
  // ptr != nullptr.
  virtual result<void> do_deallocate(void* ptr, std::uint64_t bytes,
                                     stream_handle stream) noexcept = 0;

  // Counts an error of a deallocation and tells the sink.
  void report(const error& failure) noexcept;

  // True in a child of the process that made this resource: touch no lock and no driver then.
  [[nodiscard]] bool forked() const noexcept;

 private:
  const std::uint32_t born_in_fork_;                   // the fork count when this was made
  std::atomic<std::uint64_t> deallocation_errors_{0};  // a count alone: publishes nothing
  std::mutex sink_mutex_;  // a leaf lock, taken only when an error is reported
  error_sink sink_ = default_error_sink();
};

}  // namespace millpond
