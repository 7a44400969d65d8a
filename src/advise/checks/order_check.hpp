// Uses against the order of streams: after a free, beside a free, before the allocation.
#pragma once
#include <cstdint>
#include <vector>

#include "advise/analysis.hpp"
#include "trace/event_views.hpp"

namespace millpond::advise {

class order_check {
 public:
  explicit order_check(analysis& of) : of_(of) {}

  void allocated(const trace::event& at, std::uint32_t index, std::uint32_t block);
  // A free that waits for nothing, before the book ends the block.
  void freed(const trace::event& at, std::uint32_t index, std::uint32_t block);
  // The block is gone.
  void forget(std::uint32_t block);

  // Work was given to a stream; the uses that follow are its own.
  void launched(const trace::event& at);
  // The work of launched() touches this address. Gives the live block, or no_index.
  std::uint32_t used(const trace::event& at, std::uint32_t index, std::uint64_t address);
  // A copy or memset that the driver refused: because its block is gone?
  void refused(const trace::event& at, std::uint32_t index, std::uint64_t address);
  // The program said that a block is used on a stream, so that its free waits.
  void reported(const trace::event& at);

  [[nodiscard]] epoch last_work() const noexcept { return work_; }

 private:
  struct use {
    epoch when;
    std::uint32_t event;
    std::uint32_t stack;
    std::uint64_t stream;
    std::uint32_t name;  // of the kernel, or 0
    bool reported;       // the free waits for it
  };
  struct state {      // of a live block
    epoch allocated;  // tracked only where the allocation is ordered on a stream
    std::uint64_t stream = 0;
    std::vector<use> uses;  // the last one of each stream
  };
  void free_in_use(const trace::event& at, std::uint32_t index, const block_facts& block,
                   const use& by);
  void use_after_free(const trace::event& at, std::uint32_t index, const block_facts& block,
                      std::uint64_t address);
  void use_before(const trace::event& at, std::uint32_t index, const block_facts& block,
                  const state& mine);
  state& state_of(block_facts& block);
  [[nodiscard]] std::string by_whom(std::uint32_t name) const;

  analysis& of_;
  std::vector<state> states_;
  std::vector<std::uint32_t> spare_;
  epoch work_;
  std::uint32_t name_ = 0;
};

}  // namespace millpond::advise
