// Managed memory: touched by the CPU while the GPU may use it, pages that go back and forth, advice
// against the use.
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "advise/analysis.hpp"

namespace millpond::advise {

class managed_check {
 public:
  explicit managed_check(analysis& of) : of_(of) {}
  // Work that was given an address in a managed block.
  void used(const trace::event& at, std::uint32_t index, std::uint32_t block, epoch work);
  void written(std::uint32_t block, std::uint32_t index,
               std::uint32_t stack);  // by a memset or a copy on the device
  void advised(const trace::event& at, std::uint32_t index);
  void prefetched(std::uint32_t block);
  // The host has waited for something, and goes on at this time: after the clocks took that in.
  void waited(std::uint64_t over_ns);
  void allocated(const trace::event& at, std::uint32_t block);
  void freed(const trace::event& at, std::uint32_t block);
  // The driver tells of pages late, often after the block is gone: they are sorted out at the end,
  // by their times.
  void pages(const trace::event& at, std::uint32_t index);
  [[nodiscard]] bool touched_by_cpu(std::uint32_t block) const {
    const auto found = blocks_.find(block);
    return found != blocks_.end() && found->second.cpu_faults > 0;
  }
  void finish();

 private:
  // Host times between which the GPU may have used the block: from the launch to the wait that
  // covers it.
  struct span {
    std::uint64_t begin_ns = 0, end_ns = UINT64_MAX;
    std::uint32_t event = no_index, stack = 0, name = 0;
    epoch work;
  };
  struct facts {
    std::vector<span> open, closed;
    std::uint64_t to_device = 0, to_host = 0;  // bytes that the program did not ask to be moved
    std::uint64_t turns = 0;                   // changes of direction that it did not ask for
    std::uint64_t cpu_faults = 0, gpu_faults = 0;
    double page_ns = 0;                                        // recorded
    std::uint64_t untimed_to_device = 0, untimed_to_host = 0;  // bytes of moves without a time
    int last_direction = 0;
    std::uint32_t first_move = no_index, kernels = 0;
    std::uint32_t read_mostly = no_index, prefers_host = no_index;  // events of the advice
    std::uint32_t advice_stack = 0, write_event = no_index, write_stack = 0;
    bool prefetch = false;
  };
  struct page_note {
    std::uint64_t time_ns, address, bytes;
    std::uint32_t duration_ns, event, stack;
    trace::page_change change;
    bool asked_for;  // moved by the program's own prefetch
  };
  struct lifetime {
    std::uint64_t begin, end, from_ns, to_ns;
    std::uint32_t block;
  };
  struct touch {
    std::uint32_t block;
    std::uint64_t time_ns;
    std::uint32_t event, stack;
  };
  [[nodiscard]] std::uint32_t block_of(const page_note& each) const;
  void moved(const page_note& each);
  void overlap(const touch& each);
  // Blocks of one place whose pages go to and fro.
  struct thrashing {
    facts sums;
    std::uint64_t blocks = 0, bytes = 0;
    std::uint32_t first_block = no_index;
    double after_ns = 0;
    bool small = true;
    void add(std::uint32_t id, const block_facts& block, const facts& of);
  };
  void thrash();
  void thrash(site_facts& site, const thrashing& of);
  void advice(std::uint32_t block, const facts& of);
  void written_advice(std::uint32_t block, const facts& of);

  analysis& of_;
  std::map<std::uint32_t, facts> blocks_;
  std::size_t open_spans_ = 0;
  std::vector<touch> touches_;
  std::vector<page_note> pages_;
  std::vector<lifetime> lifetimes_;  // of managed blocks, in order of allocation
};

}  // namespace millpond::advise
