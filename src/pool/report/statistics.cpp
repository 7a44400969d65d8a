// The pool in numbers and words: statistics, the answer to a bad free, the report of out_of_memory.
#include <algorithm>

#include "base/quote.hpp"
#include "driver/own_calls.hpp"
#include "millpond/base/units.hpp"
#include "pool/core.hpp"

namespace millpond {
namespace {

// How each refusal of a free begins.
std::string name_of_free(const void* ptr, memory_kind kind, stream_handle stream) {
  return "pool::deallocate of " + in_hex(ptr) + " (" + to_string(kind) + " pool, stream " +
         in_hex(stream) + "): ";
}

}  // namespace

pool_statistics pool::core::statistics() {
  pool_statistics out;
  captures_.count(out);
  streams_.count(out);
  memory_.count(out);
  count_blocks(out);
  out.pressure_callbacks = pressure_callbacks_.load(std::memory_order_relaxed);
  out.out_of_memory = out_of_memory_.load(std::memory_order_relaxed);
  return out;
}

void pool::core::count_blocks(pool_statistics& out) {
  out.pending_bytes += uses_.waiting_bytes();
  out.lock_waits = blocks_.lock_waits();
  const block_store::locked books(blocks_);
  const heap::heap& in = books.heap();
  out.reserved_bytes = books.reserved();
  out.peak_reserved_bytes = books.peak_reserved();
  out.peak_out_bytes = books.peak_of_all();
  out.idle_bytes = in.free_bytes(heap::anyone);
  out.metadata_bytes += sizeof(*this) + in.metadata_bytes();
  for (const auto& handle : in.handles()) out.mapped_bytes += handle.bytes * handle.mappings.size();
}

void pool::core::check() {
  block_store::locked(blocks_).heap().check();
}

error pool::core::explain_bad_free(const void* ptr, std::uint64_t bytes, stream_handle stream) {
  const std::uint64_t address = reinterpret_cast<std::uintptr_t>(ptr);
  const std::string who = name_of_free(ptr, options_.kind, stream);
  if (const heap::extent* const block = blocks_.find(address); block != nullptr) {
    switch (state_of(*block)) {
      case block_state::live:
      case block_state::special:
        return {error_code::invalid_argument,
                who + "freed with " + std::to_string(bytes) + " bytes, allocated with " +
                    std::to_string(block->requested) + "; the block stays allocated"};
      case block_state::cached:
      case block_state::sent:
      case block_state::guarded:
        return {error_code::double_free, who + "it was freed before (a block of " +
                                             std::to_string(block->requested) +
                                             " bytes) and not allocated since"};
      case block_state::none: break;
    }
  }
  {
    const block_store::locked books(blocks_);
    if (const heap::extent* const block = books.heap().covering(address); block != nullptr) {
      if (block->start() != address) {
        return {error_code::interior_pointer,
                who + "it points " + std::to_string(address - block->start()) +
                    " bytes into the block of " + std::to_string(block->bytes) + " bytes at " +
                    in_hex(block->start()) + "; free the block's start"};
      }
      return {error_code::double_free, who + "the block was freed before"};
    }
    if (books.heap().contains(address)) {
      return {
          error_code::double_free,
          who + "the address lies in free memory of this pool: freed before, or never handed out"};
    }
  }
  driver::pointer_facts facts;
  std::string kind = "nothing that the driver knows";
  if (gpu_->pointer_info(address, &facts).ok() && facts.bytes > 0) {
    kind = std::string(to_string(facts.kind)) + " memory of another owner";
    return {facts.kind == options_.kind ? error_code::foreign_pointer : error_code::wrong_kind,
            who + "it is " + kind + ", not of this pool; free it through what allocated it"};
  }
  return {error_code::foreign_pointer, who + "it is " + kind + ", not of this pool"};
}

// A free that was refused when its remote free queue was opened, by what the block's record said
// then.
error pool::core::explain_refused(const refused_frees::refused& one) {
  const std::string who = name_of_free(one.ptr, options_.kind, one.stream);
  switch (one.state) {
    case block_state::special:
      return {
          error_code::invalid_argument,
          who +
              "another use of it was declared (record_use, a tag or a capture) after it was freed; "
              "the block stays allocated"};
    case block_state::live:
    case block_state::sent:
      return {error_code::invalid_argument,
              who + "freed with " + std::to_string(one.bytes) + " bytes, allocated with " +
                  std::to_string(one.requested) + "; the block stays allocated"};
    case block_state::cached:
    case block_state::guarded:
      return {error_code::double_free, who + "it was freed before (a block of " +
                                           std::to_string(one.requested) +
                                           " bytes) and not allocated since"};
    case block_state::none: break;
  }
  return explain_bad_free(one.ptr, one.bytes, one.stream);
}

std::vector<error> pool::core::take_refused() {
  const refused_frees::taken refused = caches_.take_refused();
  std::vector<error> out;
  for (std::size_t i = 0; i < refused.count; ++i) out.push_back(explain_refused(refused.all[i]));
  if (refused.more > 0)
    out.push_back(
        {error_code::double_free,
         std::to_string(refused.more) +
             " more frees were of no live block, or of other bytes than it was allocated with"});
  return out;
}

error pool::core::out_of_memory_report(const block_request& what, std::vector<ladder_step> ladder) {
  const memory_report report = explain(&what, std::move(ladder));
  return {error_code::out_of_memory, to_text(report), to_json(report)};
}

}  // namespace millpond
