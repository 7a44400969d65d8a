// The owner of a thread cache and a stranger who holds its lock without emptying it: statistics,
// explain, or another cache that makes a route.
#include "pool/cache/thread_cache.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "interleaving/expect.hpp"
#include "pool/cache/stream_cache.hpp"

namespace interleaving {
namespace {

using millpond::biased_lock;
using millpond::class_bytes;
using millpond::stream_cache;
using millpond::thread_cache;
using millpond::heap::extent;

constexpr unsigned size_class = 0;
constexpr std::uint64_t limit = std::uint64_t{1} << 20;

struct two_caches {
  thread_cache own;
  stream_cache shared;
  std::array<extent, 4> records;
  extent* served = nullptr;
  bool quick = false;

  // One block in the thread cache, three in the stream cache.
  two_caches() {
    set_barrier(barrier::of_all);
    own.small_limit_bytes = limit;
    stream_cache::chain chain;
    for (std::uint32_t i = 0; i < records.size(); ++i) {
      records[i].id = i + 1;
      records[i].bytes = class_bytes(size_class);
      records[i].holder_class = size_class;
      if (i == 0) {
        static_cast<void>(own.push_small(&records[0]));
        continue;
      }
      records[i].link = chain.head;
      chain.head = &records[i];
      ++chain.count;
    }
    static_cast<void>(shared.put(size_class, chain, limit));
  }
  extent* pop_quickly() {
    if (!own.lock.owner_lock()) return nullptr;
    extent* const out = own.pop(1);
    own.lock.owner_unlock();
    quick = out != nullptr;
    return out;
  }
  void check() {
    std::vector<std::uint32_t> seen;
    if (served != nullptr) seen.push_back(served->id);
    require(own.small_bytes % class_bytes(size_class) == 0, "bytes of no whole block");
    for (extent* each = own.empty(); each != nullptr; each = each->link) seen.push_back(each->id);
    for (extent* each = shared.take(size_class, 4).head; each != nullptr; each = each->link)
      seen.push_back(each->id);
    std::sort(seen.begin(), seen.end());
    require(seen == std::vector<std::uint32_t>{1, 2, 3, 4}, "a block is lost or there twice");
    require(own.small_bytes == 0, "bytes that no block of the cache has");
  }
};

// What the sequence may do wrong.
struct plan {
  bool pops_again = true;   // after it entered, however it did
  bool adopt_keeps = true;  // what the cache has of the class
};

extent* pop_slowly(two_caches& c, plan how) {
  const auto entered = c.own.lock.enter();
  extent* out = nullptr;
  if (how.pops_again || entered == biased_lock::entry::stranger) out = c.own.pop(1);
  if (out == nullptr) {
    const stream_cache::chain taken = c.shared.take(size_class, 3);
    out = taken.head;
    if (taken.count > 1) {
      if (!how.adopt_keeps) c.own.small[size_class] = nullptr;  // as if there were none
      c.own.adopt(taken.head->link, size_class, taken.count - 1);
    }
  }
  c.own.lock.leave(entered);
  return out;
}

std::function<program()> allocation_beside_a_reader(plan how) {
  return [=] {
    auto c = std::make_shared<two_caches>();
    return program{{[=] {
                      c->served = c->pop_quickly();
                      if (c->served == nullptr) c->served = pop_slowly(*c, how);
                      require(c->served != nullptr, "nothing was served");
                      require(!how.pops_again || c->served == &c->records[0],
                              "the cache's own block was passed by");
                    },
                    [=] {
                      c->own.lock.foreign_lock();
                      require(c->own.small_bytes <= limit, "read under the lock");
                      c->own.lock.foreign_unlock();
                    }},
                   [=] { c->check(); }};
  };
}

options two() {
  options out;
  out.preemptions = 2;
  return out;
}

TEST(thread_cache_interleaved, an_allocation_beside_a_reader_of_its_cache_loses_nothing) {
  expect_right(two(), allocation_beside_a_reader({}));
}

// adopt() keeps what is there, so that not popping again costs an order and no block.
TEST(thread_cache_interleaved, adopting_a_chain_keeps_what_the_cache_has) {
  expect_right(two(), allocation_beside_a_reader({.pops_again = false}));
}

TEST(thread_cache_planted, a_skipped_pop_and_a_chain_over_a_chain_lose_blocks) {
  expect_found(two(), "a block is lost",
               allocation_beside_a_reader({.pops_again = false, .adopt_keeps = false}));
}

// A stranger empties the cache meanwhile.
TEST(thread_cache_interleaved, an_allocation_beside_pressure_loses_nothing) {
  expect_right(two(), [] {
    auto c = std::make_shared<two_caches>();
    return program{{[=] {
                      c->served = c->pop_quickly();
                      if (c->served == nullptr) c->served = pop_slowly(*c, {});
                    },
                    [=] {
                      c->own.lock.foreign_lock();
                      extent* chain = c->own.empty();
                      c->own.small_bytes = 0;
                      c->own.lock.foreign_unlock();
                      while (chain != nullptr) {
                        extent* const next = chain->link;
                        chain->link = nullptr;
                        require(c->shared.put(size_class, {chain, chain, 1}, limit), "refused");
                        chain = next;
                      }
                    }},
                   [=] { c->check(); }};
  });
}

}  // namespace
}  // namespace interleaving
