// Registers a pool's memory with NCCL, so that collectives may use it in place instead of through
// their own buffers.
//
//     const millpond::nccl_registration whole(communicator, block, bytes);     // while the block
//     lives
//
// NCCL registers whole allocations of the driver best; it may refuse what it cannot use (an error,
// and then the collective copies as before): registered() says so, nothing is thrown. Includes
// <nccl.h>; the program links NCCL.
#pragma once
#include "millpond/detail/language.hpp"

#include <nccl.h>

#include <cstddef>
#include <utility>

namespace millpond {

class nccl_registration {
 public:
  nccl_registration() noexcept = default;
  // The block must not be freed before this ends, nor the communicator.
  nccl_registration(ncclComm_t communicator, void* block, std::size_t bytes) noexcept
      : communicator_(communicator) {
    answer_ = ncclCommRegister(communicator, block, bytes, &handle_);
    if (answer_ != ncclSuccess) handle_ = nullptr;
  }
  nccl_registration(nccl_registration&& other) noexcept
      : communicator_(other.communicator_),
        handle_(std::exchange(other.handle_, nullptr)),
        answer_(other.answer_) {}
  nccl_registration& operator=(nccl_registration&& other) noexcept {
    if (this != &other) {
      reset();
      communicator_ = other.communicator_;
      handle_ = std::exchange(other.handle_, nullptr);
      answer_ = other.answer_;
    }
    return *this;
  }
  ~nccl_registration() { reset(); }

  [[nodiscard]] bool registered() const noexcept { return handle_ != nullptr; }
  // What ncclCommRegister said.
  [[nodiscard]] ncclResult_t answer() const noexcept { return answer_; }
  void reset() noexcept {
    if (handle_ != nullptr)
      static_cast<void>(ncclCommDeregister(communicator_, std::exchange(handle_, nullptr)));
  }

 private:
  ncclComm_t communicator_ = nullptr;
  void* handle_ = nullptr;
  ncclResult_t answer_ = ncclSuccess;
};

}  // namespace millpond
