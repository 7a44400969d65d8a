// GPU memory that several processes share: one copy of weights for all that serve them.
//
// A shared block has a driver handle of its own, made shareable when it is created, so that nothing
// of a neighbour goes to the other process along with it. It travels as a file descriptor over a
// Unix socket (send_shared, receive_shared).
//
// Whoever imported the memory holds it: the driver gives it back when the last process that has it
// lets go or ends. The death of the one that made it takes nothing away, and nobody learns of it;
// all may write, and nobody is kept from it.
#pragma once
#include "millpond/detail/language.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "millpond/base/result.hpp"
#include "millpond/driver/driver.hpp"
#include "millpond/memory/memory_budget.hpp"

namespace millpond {

// A file descriptor that is closed when it goes.
class unique_descriptor {
 public:
  unique_descriptor() = default;
  explicit unique_descriptor(int fd) noexcept : fd_(fd) {}
  unique_descriptor(unique_descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  unique_descriptor& operator=(unique_descriptor&& other) noexcept;
  ~unique_descriptor();
  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// A block of device memory that this process made to be shared, or has from another one. Movable;
// not thread-safe, but for the getters. In a forked child it is the parent's: the child imports its
// own.
class shared_memory {
 public:
  // Memory of its own, rounded up to the driver's granularity, whose rest past `bytes` goes along.
  // budget: may be nullptr; its other members give back what they do not use before this is
  // refused. Errors: not_supported where the device exports no file descriptors, out_of_memory.
  [[nodiscard]] static result<shared_memory> create(
      std::shared_ptr<driver> gpu, std::uint64_t bytes,
      const std::shared_ptr<memory_budget>& budget = {});
  // The memory behind a descriptor that another process (or this one) exported; the descriptor
  // stays the caller's. bytes: what bytes() says there. The same device must be open on both sides.
  [[nodiscard]] static result<shared_memory> import(std::shared_ptr<driver> gpu, int fd,
                                                    std::uint64_t bytes);
  shared_memory(shared_memory&& other) noexcept;
  shared_memory& operator=(shared_memory&& other) noexcept;
  // Waits for the device (cuCtxSynchronize), then lets go. Not while a stream captures. What the
  // driver refuses twice is left to it, reported to the default error sink, and stays counted by
  // the budget.
  ~shared_memory();

  // A new descriptor for another process. The memory stays while anyone holds it, its sender or
  // not.
  [[nodiscard]] result<unique_descriptor> export_descriptor() const;

  [[nodiscard]] device_address address() const noexcept { return address_; }
  [[nodiscard]] void* data() const noexcept { return reinterpret_cast<void*>(address_); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }  // as asked for
  [[nodiscard]] std::uint64_t mapped_bytes() const noexcept { return mapped_; }
  enum class origin : std::uint8_t { made_here, imported };
  [[nodiscard]] origin from() const noexcept { return from_; }
  [[nodiscard]] driver& gpu() const noexcept { return *gpu_; }

 private:
  shared_memory() = default;
  result<void> open(std::uint64_t bytes);
  void let_go() noexcept;
  std::shared_ptr<driver> gpu_;
  std::shared_ptr<memory_budget::member> share_;
  physical_handle handle_ = 0;
  bool held_ = false, mapped_here_ = false;
  device_address address_ = 0;
  std::uint64_t bytes_ = 0, mapped_ = 0;
  origin from_ = origin::made_here;
  std::uint32_t born_in_fork_ = 0;
};

// Sends the memory over a connected Unix socket (SOCK_STREAM or SOCK_SEQPACKET) with a name of at
// most 255 bytes. Errors: output_failure with the system's reason.
[[nodiscard]] result<void> send_shared(int socket, const shared_memory& what,
                                       std::string_view name = {});
// Waits for one. Errors: bad_input where what came is not one, or the other side is gone before it
// sent one.
struct received_memory {
  shared_memory memory;
  std::string name = {};
};
[[nodiscard]] result<received_memory> receive_shared(int socket, std::shared_ptr<driver> gpu);

}  // namespace millpond
