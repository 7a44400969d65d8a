// What the adaptors have in common: a memory_resource over another, of the same kind and driver.
#pragma once
#include "millpond/detail/language.hpp"

#include "millpond/detail/tracked_resource.hpp"

namespace millpond {

// The upstream must outlive the adaptor, and blocks go back through the adaptor that gave them.
class resource_adaptor : public placed_resource {
 public:
  [[nodiscard]] memory_kind kind() const noexcept final { return upstream_.kind(); }
  [[nodiscard]] bool host_accessible() const noexcept final { return upstream_.host_accessible(); }
  [[nodiscard]] bool device_accessible() const noexcept final {
    return upstream_.device_accessible();
  }
  [[nodiscard]] driver* gpu() const noexcept final { return upstream_.gpu(); }
  [[nodiscard]] memory_resource& upstream() const noexcept { return upstream_; }

 protected:
  explicit resource_adaptor(memory_resource& upstream) noexcept : upstream_(upstream) {}

 private:
  memory_resource& upstream_;
};

// How an adaptor that counts bytes learns the size of a block that is freed.
enum class free_sizes : std::uint8_t {
  remembered,  // it keeps each block's size, some tens of nanoseconds a call; frees may leave
               // theirs out
  reported,    // each free says its size, right, as C++ containers do; one without is refused
};

}  // namespace millpond
