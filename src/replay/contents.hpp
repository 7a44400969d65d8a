// Contents: an identity is written into each block by a kernel on its stream and checked before the
// free, so that two blocks on the same bytes, or a block reused too early, are found by what they
// did to memory.
//
// Writes wait in a batch a stream (a launch costs more than an allocation) until the batch is full,
// or until something reads one of its blocks. Checks of one run of frees go in one launch, before
// the first of them.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millpond/driver/driver.hpp"
#include "replay/outcome.hpp"
#include "replay/workload.hpp"

namespace millpond::replay {

class contents_checker {
 public:
  // The report lies in pinned memory of `gpu`.
  [[nodiscard]] result<void> prepare(std::shared_ptr<driver> gpu,
                                     std::span<const stream_handle> streams, const workload& work);
  // A new round: identities of the one before are not taken for this one's.
  void begin_round(std::uint64_t round);

  // The block came to be; its stream will write it.
  [[nodiscard]] result<void> allocated(std::uint32_t block, device_address at);
  // Work on the block's own stream (the copy in, the kernel) replaced what it held: write it again,
  // now or with the batch.
  [[nodiscard]] result<void> overwritten(std::uint32_t block);
  [[nodiscard]] result<void> write_now(std::uint32_t block);
  // Something outside our knowledge writes it: it is not checked any more.
  void give_up(std::uint32_t block) { state_[block].known = false; }
  // What the block's stream still has in its batch is put on the stream: call before other streams
  // read it.
  [[nodiscard]] result<void> flush(std::uint16_t stream);
  // Checks the blocks by one kernel on `stream`, which is ordered after their own streams.
  [[nodiscard]] result<void> check(std::span<const std::uint32_t> blocks, std::uint16_t stream);
  // A mismatch that kernels which are done have reported, once.
  [[nodiscard]] std::optional<violation> poll();
  [[nodiscard]] result<void> finish();

  [[nodiscard]] std::uint64_t checked() const noexcept { return checked_; }
  [[nodiscard]] std::uint64_t wrong_words() const noexcept;

 private:
  struct block_state {
    device_address at = 0;
    bool known = false;    // an identity is, or will be, in it
    bool waiting = false;  // in its stream's batch
  };
  [[nodiscard]] std::uint64_t identity_of(std::uint32_t block) const noexcept {
    return round_ * work_->blocks.size() + block + 1;
  }
  [[nodiscard]] std::string name(std::uint32_t block) const;

  std::shared_ptr<driver> gpu_;
  std::vector<stream_handle> streams_;
  const workload* work_ = nullptr;
  std::uint64_t round_ = 0;
  std::vector<block_state> state_;
  std::vector<std::vector<std::uint32_t>> batches_;
  std::vector<identity_block> launch_;
  identity_report* report_ = nullptr;
  bool reported_ = false;
  std::uint64_t checked_ = 0;
  std::uint64_t wrong_words_ = 0;
};

}  // namespace millpond::replay
