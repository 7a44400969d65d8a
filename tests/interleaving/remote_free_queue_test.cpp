#include "pool/cache/remote_free_queue.hpp"

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "interleaving/expect.hpp"
#include "pool/cache/thread_cache.hpp"

namespace interleaving {
namespace {

using millpond::remote_free_queue;
using millpond::thread_cache;
using millpond::heap::extent;
using millpond::heap::granule;

constexpr std::size_t blocks = 80;
constexpr std::uint64_t no_limit = std::uint64_t{1} << 40;

// A queue of which the lines have been used before: `before` were sent and opened.
struct route {
  thread_cache sends, receives;
  remote_free_queue queue{sends, receives};
  std::array<extent, blocks> records;
  std::vector<std::uint64_t> put, got;
  std::uint64_t next = 0;

  explicit route(unsigned before) {
    set_barrier(barrier::of_all);
    for (extent& each : records) each.bytes = granule;
    for (unsigned i = 0; i < before; ++i) {
      send_one();
      receive(1);
      queue.tell();
    }
  }
  bool send_one(bool now = true) {
    if (!queue.put((next + 1) * granule, granule, no_limit)) return false;
    put.push_back(++next);
    if (now) queue.send();
    return true;
  }
  extent* accept(std::uint64_t address, std::uint64_t bytes) {
    const std::uint64_t number = address / granule;
    require(bytes == granule && number >= 1 && number <= blocks, "a word that nobody sent");
    got.push_back(number);
    return &records[number - 1];
  }
  // All that can be seen, or the next line that can be seen.
  void receive(unsigned opens) {
    for (unsigned i = 0; i < opens; ++i)
      queue.open(
          [&](std::uint64_t address, std::uint64_t bytes) { return accept(address, bytes); });
    while (queue.front() != nullptr) queue.take_front();
  }
  void receive_rest() {
    queue.send();
    queue.open_all(
        [&](std::uint64_t address, std::uint64_t bytes) { return accept(address, bytes); });
    while (queue.front() != nullptr) queue.take_front();
    require(got == put, "blocks are lost, come twice or in another order");
    require(queue.bytes() == 0, "bytes that nobody has");
  }
};

// The sender comes round to lines that the receiver may still read.
std::function<program()> around(unsigned sends) {
  return [=] {
    auto r = std::make_shared<route>(remote_free_queue::lines - 1);
    // All lines but one are under way.
    for (std::size_t i = 0; i + 1 < remote_free_queue::lines; ++i) r->send_one();
    return program{{[=] {
                      for (unsigned i = 0; i < sends; ++i) static_cast<void>(r->send_one());
                    },
                    [=] {
                      for (int i = 0; i < 2; ++i) {
                        r->receive(1);
                        r->queue.tell();
                      }
                    }},
                   [=] { r->receive_rest(); }};
  };
}

std::function<program()> from_the_start() {
  return [] {
    auto r = std::make_shared<route>(0);
    return program{{[=] {
                      static_cast<void>(r->send_one(false));
                      static_cast<void>(r->send_one());
                      static_cast<void>(r->send_one());
                      static_cast<void>(r->send_one(false));
                    },
                    [=] {
                      r->receive(2);
                      r->queue.tell();
                      r->receive(1);
                      r->queue.tell();
                    }},
                   [=] { r->receive_rest(); }};
  };
}

options three() {
  options out;
  out.preemptions = 3;
  return out;
}

TEST(remote_free_queue_interleaved, what_was_sent_comes_once_and_in_order) {
  expect_right(three(), from_the_start());
}

TEST(remote_free_queue_interleaved, a_line_is_written_again_only_when_it_was_opened) {
  expect_right(three(), around(3));
}

// The receiver only opens, and shows no line as opened while many blocks are open: what is open,
// under way and not sent never passes the bound.
TEST(remote_free_queue_interleaved, no_more_blocks_than_there_are_places) {
  expect_right(three(), [] {
    auto r = std::make_shared<route>(0);
    // All but the last lines, of seven blocks each.
    const auto fill = [=] {
      while (r->next < blocks && r->send_one(false)) {
      }
    };
    for (int i = 0; i < 49; ++i) static_cast<void>(r->send_one(false));
    const auto open_all = [=] {
      r->queue.open_all([&](std::uint64_t a, std::uint64_t b) { return r->accept(a, b); });
      r->queue.tell();
    };
    open_all();
    return program{{fill,
                    [=] {
                      open_all();
                      open_all();
                    }},
                   [=] {
                     require(r->put.size() <= remote_free_queue::most_blocks, "too many");
                     r->receive_rest();
                   }};
  });
}

TEST(remote_free_queue_orders, each) {
  expect_orders(three(), {"remote_free_queue"}, {from_the_start(), around(2)},
                {"remote_free_queue::open_line load acquire as relaxed",
                 "remote_free_queue::put load acquire as relaxed",
                 "remote_free_queue::send store release as relaxed",
                 "remote_free_queue::tell store release as relaxed"},
                {});
}

}  // namespace
}  // namespace interleaving
