// The registry's table and its shards. The messages are in registry_messages.cpp.
#include "millpond/detail/pointer_registry.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <deque>
#include <mutex>
#include <new>
#include <set>

#include "base/fork.hpp"
#include "resource/address_table.hpp"
#include "resource/registry_messages.hpp"

namespace millpond {
namespace {

constexpr std::size_t shard_count = 64;  // a power of two; the limit on threads that do not meet
constexpr unsigned shard_bits = 6;

// A record and the records under it, outermost first.
struct layers {
  block_facts top;
  std::unique_ptr<layers> under;
};

// Lock order: a shard's lock is a leaf; two shards are never locked at once.
struct alignas(64) shard {
  mutable std::mutex mutex;
  address_table<layers> table;
  std::vector<freed_block> freed;  // a ring, newest just before next
  std::size_t next = 0;
};

}  // namespace

struct pointer_registry::state {
  options chosen;
  std::uint32_t born_in_fork = fork_count();
  std::size_t ring = 0;  // freed blocks remembered a shard
  std::array<shard, shard_count> shards;
  mutable std::mutex owners_mutex;  // of the two below; a leaf
  std::deque<block_owner> owners;   // addresses stay
  std::set<std::string, std::less<>> texts;
  // Counts alone: they publish nothing.
  std::atomic<std::uint64_t> refused{0}, stale{0}, leaked_blocks{0}, leaked_bytes{0};

  [[nodiscard]] bool forked() const noexcept { return born_in_fork != fork_count(); }

  shard& of(std::uint64_t address) noexcept {
    // Another multiplier than the table's, or a shard would use few of its slots.
    return shards[(address * 0xd6e8feb86659fd93ULL) >> (64 - shard_bits)];
  }

  void remember(shard& in, const freed_block& block) {
    if (ring == 0) return;
    if (in.freed.size() < ring) {
      in.freed.push_back(block);
      in.next = in.freed.size() % ring;
      return;
    }
    in.freed[in.next] = block;
    in.next = (in.next + 1) % ring;
  }

  // The newest free of this address, or nullptr.
  static const freed_block* recall(const shard& in, std::uint64_t address) noexcept {
    for (std::size_t back = 1; back <= in.freed.size(); ++back) {
      const auto& block = in.freed[(in.next + in.freed.size() - back) % in.freed.size()];
      if (block.was.address == address) return &block;
    }
    return nullptr;
  }

  template <class Visit>  // visit(const block_facts&) for each record of each layer
  void for_each(Visit&& visit) {
    for (shard& each : shards) {
      const std::lock_guard lock(each.mutex);
      each.table.for_each([&](std::uint64_t, layers& at) {
        visit(at.top);
        for (const layers* under = at.under.get(); under != nullptr; under = under->under.get()) {
          visit(under->top);
        }
      });
    }
  }

  bool containing(std::uint64_t address, block_facts* out) {
    bool found = false;
    for_each([&](const block_facts& block) {
      if (address < block.address || address - block.address >= block.bytes) return;
      if (!found || block.bytes < out->bytes) *out = block;
      found = true;
    });
    return found;
  }

  error refuse(error why) noexcept {
    refused.fetch_add(1, std::memory_order_relaxed);
    return why;
  }
};

pointer_registry::pointer_registry() : pointer_registry(options{}) {}

pointer_registry::pointer_registry(options chosen) : state_(std::make_unique<state>()) {
  state_->ring = (chosen.remembered_frees + shard_count - 1) / shard_count;
  for (shard& each : state_->shards) each.freed.reserve(state_->ring);
  if (!chosen.leak_sink) {
    chosen.leak_sink = [](const leak_report& report) {
      std::fprintf(stderr, "millpond: %s\n", report.text().c_str());
    };
  }
  state_->chosen = std::move(chosen);
}

pointer_registry::~pointer_registry() {
  if (state_->forked()) return;
  const leak_report left = report();
  if (!left.empty()) state_->chosen.leak_sink(left);
}

const block_owner* pointer_registry::enrol(block_owner owner) {
  const std::lock_guard lock(state_->owners_mutex);
  return &state_->owners.emplace_back(std::move(owner));
}

std::vector<block_facts> pointer_registry::dismiss(const block_owner* owner) {
  std::vector<block_facts> left;
  if (state_->forked()) return left;
  left = live(owner);
  for (const block_facts& block : left) {
    shard& in = state_->of(block.address);
    const std::lock_guard lock(in.mutex);
    layers* at = in.table.find(block.address);
    if (at == nullptr) continue;
    if (at->top.owner == owner) {
      if (at->under) {
        *at = std::move(*std::unique_ptr<layers>(std::move(at->under)));
      } else {
        in.table.erase(block.address);
      }
      continue;
    }
    for (; at->under; at = at->under.get()) {
      if (at->under->top.owner != owner) continue;
      at->under = std::move(std::unique_ptr<layers>(std::move(at->under))->under);
      break;
    }
  }
  if (!left.empty()) {
    const leak_report reported = add_up(left);
    state_->leaked_blocks.fetch_add(reported.blocks, std::memory_order_relaxed);
    state_->leaked_bytes.fetch_add(reported.bytes, std::memory_order_relaxed);
    state_->chosen.leak_sink(reported);
  }
  return left;
}

result<void> pointer_registry::add(const block_facts& facts) {
  if (state_->forked()) return refused_in_child();
  shard& in = state_->of(facts.address);
  try {
    const std::lock_guard lock(in.mutex);
    if (layers* const there = in.table.find(facts.address); there != nullptr) {
      if (there->top.owner == facts.owner) {
        state_->stale.fetch_add(1, std::memory_order_relaxed);
        there->top = facts;
      } else {
        auto under = std::make_unique<layers>(std::move(*there));
        there->top = facts;
        there->under = std::move(under);
      }
      return {};
    }
    in.table.insert(facts.address).top = facts;
  } catch (const std::bad_alloc&) {
    return error{error_code::out_of_memory,
                 facts.owner->name + ": no host memory for the block's record"};
  }
  return {};
}

result<block_facts> pointer_registry::take(const block_owner* owner, std::uint64_t address,
                                           std::uint64_t bytes, stream_handle stream,
                                           const call_site& freed) noexcept {
  if (state_->forked()) return refused_in_child();
  const free_attempt attempt{owner, address, bytes, freed};
  shard& in = state_->of(address);
  block_facts block;
  freed_block before;
  bool live_here = false;
  bool freed_before = false;
  {
    const std::lock_guard lock(in.mutex);
    if (layers* const at = in.table.find(address); at != nullptr) {
      live_here = true;
      block = at->top;
      if (block.owner == owner && (bytes == 0 || bytes == block.bytes)) {
        state_->remember(in, {block, owner, stream, freed});
        if (at->under) {
          *at = std::move(*std::unique_ptr<layers>(std::move(at->under)));
        } else {
          in.table.erase(address);
        }
        return block;
      }
    } else if (const freed_block* const found = state_->recall(in, address); found != nullptr) {
      freed_before = true;
      before = *found;
    }
  }
  if (live_here) {
    if (block.owner == owner) return state_->refuse(wrong_size(attempt, block));
    return state_->refuse(wrong_owner(attempt, block));
  }
  if (freed_before) return state_->refuse(freed_twice(attempt, before));
  if (state_->containing(address, &block)) return state_->refuse(interior(attempt, block));
  return state_->refuse(foreign(attempt));
}

void pointer_registry::restore(const block_facts& facts) noexcept {
  if (state_->forked()) return;
  shard& in = state_->of(facts.address);
  {
    const std::lock_guard lock(in.mutex);
    // Forget the free that did not happen.
    for (freed_block& block : in.freed) {
      if (block.was.address == facts.address && block.was.owner == facts.owner)
        block.was.address = 0;
    }
  }
  // The record's place in the table was there a moment ago, so this fails only where another thread
  // took the last host memory between; the block then is live unknown to us, and a later free of it
  // is foreign.
  static_cast<void>(add(facts));
}

bool pointer_registry::find(std::uint64_t address, block_facts* out) const {
  return !state_->forked() && state_->containing(address, out);
}

std::vector<block_facts> pointer_registry::live(const block_owner* owner) const {
  std::vector<block_facts> found;
  if (state_->forked()) return found;
  state_->for_each([&](const block_facts& block) {
    if (owner == nullptr || block.owner == owner) found.push_back(block);
  });
  return found;
}

leak_report pointer_registry::report(const block_owner* owner) const {
  return add_up(live(owner));
}

const char* pointer_registry::intern(std::string_view text) {
  const std::lock_guard lock(state_->owners_mutex);
  auto found = state_->texts.find(text);
  if (found == state_->texts.end()) found = state_->texts.emplace(text).first;
  return found->c_str();
}

pointer_registry::counts pointer_registry::count() const {
  counts now;
  if (!state_->forked()) state_->for_each([&](const block_facts&) { ++now.live_blocks; });
  now.refused_frees = state_->refused.load(std::memory_order_relaxed);
  now.stale_records = state_->stale.load(std::memory_order_relaxed);
  now.leaked_blocks = state_->leaked_blocks.load(std::memory_order_relaxed);
  now.leaked_bytes = state_->leaked_bytes.load(std::memory_order_relaxed);
  return now;
}

}  // namespace millpond
