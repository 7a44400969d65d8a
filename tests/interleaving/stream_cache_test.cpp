#include "pool/cache/stream_cache.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "interleaving/expect.hpp"

namespace interleaving {
namespace {

using millpond::class_bytes;
using millpond::stream_cache;
using millpond::heap::extent;

constexpr std::uint64_t no_limit = std::uint64_t{1} << 40;
constexpr std::size_t blocks = 6;
constexpr std::uint64_t large_bytes = std::uint64_t{4} << 20;

struct shared_blocks {
  stream_cache cache;
  std::array<extent, blocks> records;
  // What each thread has, by the index of the record.
  std::array<std::vector<extent*>, 3> has;

  shared_blocks() {
    for (std::uint32_t i = 0; i < records.size(); ++i) {
      records[i].id = i + 1;
      records[i].bytes = large_bytes;
    }
  }
  stream_cache::chain chain_of(std::initializer_list<std::size_t> which) {
    stream_cache::chain out;
    for (const std::size_t i : which) {
      records[i].link = out.head;
      if (out.tail == nullptr) out.tail = &records[i];
      out.head = &records[i];
      ++out.count;
    }
    return out;
  }
  void put(std::initializer_list<std::size_t> which) {
    require(cache.put(0, chain_of(which), no_limit), "refused below its limit");
  }
  void take(std::size_t thread, std::uint64_t most) {
    const stream_cache::chain got = cache.take(0, most);
    std::uint64_t count = 0;
    for (extent* each = got.head; each != nullptr; each = each->link) {
      has[thread].push_back(each);
      ++count;
    }
    require(count == got.count && count <= most, "a chain of another length than it says");
  }
  void put_again(std::size_t thread) {
    for (extent* const each : has[thread]) {
      each->link = nullptr;
      require(cache.put(0, {each, each, 1}, no_limit), "refused below its limit");
    }
    has[thread].clear();
  }
  void take_large(std::size_t thread) {
    if (const std::uint32_t id = cache.take_large(large_bytes); id != 0) {
      extent& block = records[id - 1];
      block.link = &block;  // its record is this thread's now
      has[thread].push_back(&block);
    }
  }
  void put_large(std::size_t thread) {
    while (!has[thread].empty()) {
      extent& block = *has[thread].back();
      block.link = nullptr;
      if (!cache.put_large(block, no_limit)) return;
      has[thread].pop_back();
    }
  }
  // Each of the first `count` records is somewhere, once.
  void check(std::size_t count, std::uint64_t bytes_each) {
    std::vector<std::size_t> seen;
    for (const auto& each : has) {
      for (const extent* block : each) seen.push_back(block->id);
    }
    const std::size_t taken = seen.size();
    require(cache.bytes() == (count - taken) * bytes_each, "its bytes are not those of its blocks");
    for (extent* each = cache.take(0, blocks).head; each != nullptr; each = each->link)
      seen.push_back(each->id);
    cache.empty_large([&](std::uint32_t id) { seen.push_back(id); });
    std::sort(seen.begin(), seen.end());
    std::vector<std::size_t> all;
    for (std::size_t i = 1; i <= count; ++i) all.push_back(i);
    require(seen == all, "a block is lost or there twice");
    require(cache.bytes() == 0, "bytes of nothing");
  }
};

// Every put meets a put or a take.
std::function<program()> small_blocks() {
  return [] {
    auto s = std::make_shared<shared_blocks>();
    s->put({0, 1});
    return program{{[=] {
                      s->put({2});
                      s->take(0, 1);
                    },
                    [=] { s->put({3, 4}); }, [=] { s->take(2, 2); }},
                   [=] { s->check(5, class_bytes(0)); }};
  };
}

std::function<program()> small_blocks_of_two() {
  return [] {
    auto s = std::make_shared<shared_blocks>();
    s->put({0, 1, 2});
    return program{{[=] {
                      s->take(0, 2);
                      s->put_again(0);
                    },
                    [=] {
                      s->take(1, 1);
                      s->put_again(1);
                    }},
                   [=] { s->check(3, class_bytes(0)); }};
  };
}

std::function<program()> large_blocks() {
  return [] {
    auto s = std::make_shared<shared_blocks>();
    s->has[0] = {&s->records[0]};
    s->has[1] = {&s->records[1]};
    return program{{[=] {
                      s->put_large(0);
                      s->take_large(0);
                    },
                    [=] { s->put_large(1); },
                    [=] {
                      s->take_large(2);
                      s->put_large(2);
                    }},
                   [=] { s->check(2, large_bytes); }};
  };
}

// empty_large() meets a put and a take.
std::function<program()> large_blocks_emptied() {
  return [] {
    auto s = std::make_shared<shared_blocks>();
    s->has[0] = {&s->records[0]};
    s->put_large(0);
    s->has[1] = {&s->records[1]};
    return program{{[=] { s->take_large(0); }, [=] { s->put_large(1); },
                    [=] {
                      s->cache.empty_large([&](std::uint32_t id) {
                        s->records[id - 1].link = nullptr;
                        s->has[2].push_back(&s->records[id - 1]);
                      });
                    }},
                   [=] { s->check(2, large_bytes); }};
  };
}

options bounded(unsigned preemptions, unsigned stale) {
  options out;
  out.preemptions = preemptions;
  out.stale_reads = stale;
  // "There is nothing": where it was wrong a block stays for the next call; and a word of a slot,
  // which the exchange compares again, and whose failure leads to the next slot.
  out.hints = {
      "stream_cache::take_large load",  "stream_cache::take_large compare_exchange fails and reads",
      "stream_cache::large_bytes load", "stream_cache::empty_large load",
      "stream_cache::put_large load",   "stream_cache::put_large compare_exchange fails and reads"};
  return out;
}

TEST(stream_cache_interleaved, small_blocks_of_three_threads_are_neither_lost_nor_doubled) {
  expect_right(bounded(2, 2), small_blocks());
}

TEST(stream_cache_interleaved, small_blocks_of_two_threads_are_neither_lost_nor_doubled) {
  expect_right(bounded(3, 2), small_blocks_of_two());
}

TEST(stream_cache_interleaved, large_blocks_of_three_threads_are_neither_lost_nor_doubled) {
  expect_right(bounded(2, 1), large_blocks());
}

TEST(stream_cache_interleaved, emptying_it_beside_a_put_and_a_take_loses_nothing) {
  expect_right(bounded(2, 1), large_blocks_emptied());
}

TEST(stream_cache_orders, small_blocks) {
  expect_orders(bounded(2, 1), {"stream_cache"}, {small_blocks_of_two()},
                {"stream_cache::put_counted compare_exchange release as relaxed",
                 "stream_cache::put_counted exchange acquire as relaxed",
                 "stream_cache::take exchange acquire as relaxed"},
                {});
}

TEST(stream_cache_orders, large_blocks) {
  expect_orders(bounded(2, 1), {"stream_cache"}, {large_blocks(), large_blocks_emptied()},
                {"stream_cache::empty_large exchange acquire as relaxed",
                 "stream_cache::put_large compare_exchange release as relaxed",
                 "stream_cache::take_large compare_exchange acquire as relaxed"},
                {});
}

}  // namespace
}  // namespace interleaving
