// The ways of giving a server its memory, each as five questions: activations, weights, buffers of
// the clients, control data, and what it does when a batch is over.
#pragma once
#include <millpond/driver/driver.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace inference {

struct surroundings {
  std::shared_ptr<millpond::driver> gpu;
  std::vector<millpond::stream_handle> streams;
  std::uint64_t largest_bytes = 0;  // of one activation
  std::size_t activations = 0;      // of one batch
  std::uint64_t most_bytes =
      0;  // of all that is out at once when every stream has its largest batch, weights included
};

// A stream's control data: the CPU writes it, the GPU reads it and writes its answer, the CPU reads
// that.
struct control_data {
  unsigned char* host = nullptr;        // what the CPU touches; 4 KiB
  millpond::device_address device = 0;  // what the GPU touches; the same memory where both reach it
  bool copied = false;                  // the two are kept the same by copies
  bool managed = false;
};
inline constexpr std::uint64_t control_bytes = 4096;

class strategy {
 public:
  virtual ~strategy() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::string meaning() const = 0;
  // Not among those that are measured where none is named.
  [[nodiscard]] virtual bool by_name_only() const { return false; }
  // Empty, or why it cannot be had here.
  virtual std::string begin(const surroundings& where) = 0;
  virtual void end() = 0;

  // An activation of a batch. 0 where there is no memory.
  virtual millpond::device_address take(std::size_t stream, std::uint64_t bytes) = 0;
  virtual void give(std::size_t stream, millpond::device_address at, std::uint64_t bytes) = 0;
  virtual millpond::device_address weights(std::uint64_t bytes) = 0;  // kept to the end
  virtual void* client_buffer(std::uint64_t bytes) = 0;               // kept to the end
  [[nodiscard]] virtual bool managed_buffers() const { return false; }
  virtual control_data control(std::size_t stream) = 0;  // kept to the end
  // The allocator's own time of one take and one give on the simulated GPU, where nothing measures
  // it; nanoseconds.
  [[nodiscard]] virtual double own_ns() const { return 0; }
  // What it did, counted since it began; empty where it counts nothing.
  [[nodiscard]] virtual std::string counted() const { return {}; }
};

[[nodiscard]] std::vector<std::unique_ptr<strategy>> own_strategies();
// The allocators of a plug-in (bench/support/peer.h), for activations. False with a reason where it
// cannot be loaded.
[[nodiscard]] bool add_peers(const std::string& file, std::vector<std::unique_ptr<strategy>>& to,
                             std::string& why);

}  // namespace inference
