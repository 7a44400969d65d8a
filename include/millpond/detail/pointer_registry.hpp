// The pointer registry: what each pointer is. It knows, for every block that the kinds and the
// guards on it have out, the owner, the kind, the size, the stream and the place of its allocation,
// and the same of the blocks freed lately, so that a wrong free is answered with both calls and
// both places, and the memory stays.
//
// One registry serves all resources of a driver, best of a whole process: pass the same shared_ptr
// to each, and a block freed through the wrong one is recognised as such, and not as a foreign
// pointer. It is never a singleton.
//
// Layers: a pool hands out an address that its upstream handed out to it, as a whole or as the
// first block. Each address has a stack of records; only the owner of the topmost may free it.
//
// Thread-safe: the table is 64 shards by address, a lock each; no lock is held while anything else
// is called. One thread's add and take cost some tens of nanoseconds. Messages about interior and
// foreign pointers look through every shard, which costs time in proportion to the live blocks;
// they are errors. In a forked child every call refuses.
#pragma once
#include "millpond/detail/language.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millpond/base/result.hpp"
#include "millpond/driver/driver.hpp"
#include "millpond/memory/call_site.hpp"

namespace millpond {

// Who hands out blocks and by which calls, for the messages.
struct block_owner {
  std::string name = {};  // "pinned_resource"
  memory_kind kind{};
  std::string allocate_call = {};  // "cuMemHostAlloc"
  std::string free_call = {};      // "cuMemFreeHost"
};

// One live block.
struct block_facts {
  std::uint64_t address = 0;       // as the caller has it
  std::uint64_t bytes = 0;         // as asked for
  std::uint64_t base = 0;          // as the owner's own source gave it; differs by alignment
  std::uint64_t reserved = 0;      // bytes from base
  stream_handle stream = nullptr;  // of the allocation
  const block_owner* owner = nullptr;
  call_site allocated{};
};

// Blocks still out where none should be, added up by place and owner, the largest first.
struct leak_report {
  struct line {
    std::string allocated = {};  // the place in words, so that a report outlives its registry
    std::string owner = {};
    memory_kind kind{};
    std::uint64_t blocks = 0;
    std::uint64_t bytes = 0;
  };
  std::vector<line> lines = {};
  std::uint64_t blocks = 0;
  std::uint64_t bytes = 0;
  [[nodiscard]] bool empty() const noexcept { return blocks == 0; }
  // One line for the total and one a place, at most 20 of them and then how many more.
  [[nodiscard]] std::string text() const;
};

class pointer_registry {
 public:
  struct options {
    // Freed blocks remembered for the message of a double free, rounded up to a multiple of 64.
    // 4096 take half a MiB. 0: a double free is reported as a foreign pointer.
    std::size_t remembered_frees = 4096;
    // Reported of leaks when an owner or the registry ends with blocks out. Default: prints text()
    // to stderr.
    std::function<void(const leak_report&)> leak_sink = {};
  };

  pointer_registry();
  explicit pointer_registry(options chosen);
  // Reports what is still out. Owners must have been dismissed or be gone with their memory.
  ~pointer_registry();
  pointer_registry(const pointer_registry&) = delete;
  pointer_registry& operator=(const pointer_registry&) = delete;

  // A new owner, valid for the registry's life.
  [[nodiscard]] const block_owner* enrol(block_owner owner);
  // Ends an owner: its records go, and are returned for it to give back; leaks are reported to the
  // sink and counted. Blocks of other owners stay.
  std::vector<block_facts> dismiss(const block_owner* owner);

  // Records a block that facts.owner hands out. Errors: out_of_memory for the record itself,
  // not_permitted in a forked child; nothing is recorded then. A record of the same owner under
  // this address is stale: someone freed that block behind our back. It is replaced, and counted.
  result<void> add(const block_facts& facts);

  // Takes the record of the block that `owner` is asked to free; the owner then frees it, or puts
  // it back by restore. bytes: as the caller says, 0 where unknown. Errors, the block staying as it
  // is: wrong_kind, double_free, interior_pointer, foreign_pointer (another owner of the same kind,
  // or nobody's), invalid_argument (wrong size), not_permitted (forked child).
  result<block_facts> take(const block_owner* owner, std::uint64_t address, std::uint64_t bytes,
                           stream_handle stream, const call_site& freed) noexcept;
  // After a failed free: the block is live again as it was.
  void restore(const block_facts& facts) noexcept;

  // The block that has this address in it, the innermost where blocks nest; false where none.
  [[nodiscard]] bool find(std::uint64_t address, block_facts* out) const;
  // Every block of an owner (of all owners: nullptr), in no order.
  [[nodiscard]] std::vector<block_facts> live(const block_owner* owner) const;
  [[nodiscard]] leak_report report(const block_owner* owner = nullptr) const;

  // A copy of text that lives as long as the registry, one a different text: for place::text.
  [[nodiscard]] const char* intern(std::string_view text);

  struct counts {
    std::uint64_t live_blocks = 0;
    std::uint64_t refused_frees = 0;  // takes that answered an error
    std::uint64_t stale_records = 0;  // see add
    std::uint64_t leaked_blocks = 0;  // found by dismiss
    std::uint64_t leaked_bytes = 0;
  };
  [[nodiscard]] counts count() const;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace millpond
