// On a real card: growing in place, sleep and wake, and memory shared with another process, each
// with its contents checked.
#include <sys/socket.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "millpond/base/units.hpp"
#include "millpond/growable/growable_buffer.hpp"
#include "millpond/pool/pool.hpp"
#include "millpond/shared/shared_memory.hpp"
#include "support/other_process.hpp"

namespace millpond {
namespace {

class on_card : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = open_cuda_driver(0);
    if (!opened) GTEST_SKIP() << opened.error().message;
    gpu = *opened;
    ok(gpu->bind_thread());
    ok(gpu->stream_create(&s));
    void* host = nullptr;
    ok(gpu->host_allocate(&host, sizeof(identity_report), driver::host_flags::none));
    report = new (host) identity_report;
  }
  void TearDown() override {
    if (gpu == nullptr) return;
    ok(gpu->host_free(report));
    ok(gpu->stream_destroy(s));
  }
  static void ok(call_result answer) { ASSERT_TRUE(answer.ok()) << to_string(answer); }
  void write(device_address at, std::uint64_t bytes, std::uint64_t identity) {
    const identity_block block{at, bytes, identity};
    ok(gpu->identity_write({&block, 1}, s));
  }
  std::uint64_t wrong(device_address at, std::uint64_t bytes, std::uint64_t identity) {
    *report = {};
    const identity_block block{at, bytes, identity};
    ok(gpu->identity_check({&block, 1}, report, s));
    ok(gpu->stream_synchronize(s));
    return report->mismatches;
  }
  std::uint64_t free_bytes() {
    std::uint64_t free = 0, total = 0;
    ok(gpu->memory_info(&free, &total));
    return free;
  }
  static double ms_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
  }

  std::shared_ptr<driver> gpu;
  stream_handle s = nullptr;
  identity_report* report = nullptr;
};

TEST_F(on_card, a_growable_buffer_keeps_address_and_contents_and_gives_back_what_it_shrinks) {
  const std::uint64_t before = free_bytes();
  {
    growable_buffer<std::byte> b(gpu, 8 * GiB, s);
    b.resize(100 * MiB);
    const device_address at = b.address();
    write(at, 100 * MiB, 5);
    for (std::uint64_t mib = 132; mib <= 1028; mib += 32) b.resize(mib * MiB);
    EXPECT_EQ(b.address(), at);
    EXPECT_EQ(wrong(at, 100 * MiB, 5), 0u);
    write(at, b.size(), 6);
    EXPECT_EQ(wrong(at, b.size(), 6), 0u);
    EXPECT_LE(free_bytes(), before - GiB);

    // It grows while a kernel runs, and does not wait for it.
    ok(gpu->spin(200'000'000, s));
    const auto start = std::chrono::steady_clock::now();
    b.resize(1200 * MiB);
    EXPECT_LT(ms_since(start), 50.0);
    b.resize(100 * MiB);
    b.shrink_to_fit();
    EXPECT_LT(ms_since(start), 50.0);
    EXPECT_GT(b.memory().retired_bytes(), 0u) << "the kernel may still read there";
    ok(gpu->stream_synchronize(s));
    b.memory().give_back();
    EXPECT_EQ(b.memory().retired_bytes(), 0u);
    EXPECT_EQ(wrong(at, 100 * MiB, 6), 0u);
  }
  EXPECT_GE(free_bytes() + 64 * MiB, before);
}

TEST_F(on_card, a_pool_sleeps_and_wakes_with_its_contents_at_their_addresses) {
  auto made = pool::create(gpu, {});
  ASSERT_TRUE(made.has_value()) << made.error().message;
  pool& p = **made;
  struct held {
    void* at;
    std::uint64_t bytes;
  };
  std::vector<held> all;
  for (std::uint64_t i = 0; i < 60; ++i) {
    const std::uint64_t bytes = (i % 9 + 1) * 5 * MiB + i * 512;
    all.push_back({p.allocate(bytes, s), bytes});
    write(reinterpret_cast<device_address>(all.back().at), bytes, 100 + i);
  }
  for (std::size_t i = 0; i < all.size(); i += 4) {
    p.deallocate(all[i].at, all[i].bytes, s);
    all[i].at = nullptr;
  }
  ok(gpu->stream_synchronize(s));
  ASSERT_TRUE(p.set_tag(all[1].at, "scratch").has_value());
  for (int round = 0; round < 3; ++round) {
    const std::uint64_t awake = free_bytes();
    const auto slept = p.sleep({.drop = {"scratch"}});
    ASSERT_TRUE(slept.has_value()) << slept.error().message;
    EXPECT_GE(free_bytes(), awake + slept->released_bytes - 64 * MiB);
    EXPECT_EQ(slept->dropped_bytes, (all[1].bytes + 511) / 512 * 512);
    EXPECT_EQ(p.try_allocate(MiB, default_alignment, s).error().code, error_code::not_permitted);
    const auto woke = p.wake();
    ASSERT_TRUE(woke.has_value()) << woke.error().message;
    for (std::size_t i = 2; i < all.size(); ++i) {
      if (all[i].at == nullptr) continue;
      EXPECT_EQ(wrong(reinterpret_cast<device_address>(all[i].at), all[i].bytes, 100 + i), 0u)
          << "block " << i;
    }
    void* const more = p.allocate(300 * MiB, s);
    write(reinterpret_cast<device_address>(more), 300 * MiB, 9);
    EXPECT_EQ(wrong(reinterpret_cast<device_address>(more), 300 * MiB, 9), 0u);
    p.deallocate(more, 300 * MiB, s);
  }
  for (const held& h : all) p.deallocate(h.at, h.bytes, s);
  p.check();
}

TEST_F(on_card, memory_of_another_process_outlives_it) {
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
  {
    const other_process owner("card_owner.DISABLED_makes_memory_and_waits", sockets[1]);
    ::close(sockets[1]);
    auto got = receive_shared(sockets[0], gpu);
    ASSERT_TRUE(got.has_value()) << got.error().message;
    const shared_memory& memory = got->memory;
    EXPECT_EQ(memory.bytes(), 200 * MiB);
    EXPECT_EQ(wrong(memory.address(), memory.bytes(), 77), 0u);
    owner.kill();
    EXPECT_EQ(wrong(memory.address(), memory.bytes(), 77), 0u) << "its maker is dead";
    write(memory.address(), memory.bytes(), 78);
    EXPECT_EQ(wrong(memory.address(), memory.bytes(), 78), 0u);
  }
  ::close(sockets[0]);
}

TEST_F(on_card, wrong_sizes_and_descriptors_are_refused) {
  auto made = shared_memory::create(gpu, 4 * MiB);
  ASSERT_TRUE(made.has_value()) << made.error().message;
  auto fd = made->export_descriptor();
  ASSERT_TRUE(fd.has_value()) << fd.error().message;
  EXPECT_FALSE(shared_memory::import(gpu, fd->get(), 8 * MiB).has_value());
  auto right = shared_memory::import(gpu, fd->get(), 4 * MiB);
  ASSERT_TRUE(right.has_value()) << right.error().message;
  write(made->address(), 4 * MiB, 3);
  EXPECT_EQ(wrong(right->address(), 4 * MiB, 3), 0u);
}

// Not a test: the other process of the one above.
TEST(card_owner, DISABLED_makes_memory_and_waits) {
  const int socket = other_process::socket_of_this_one();
  if (socket < 0) GTEST_SKIP();
  auto gpu = open_cuda_driver(0);
  ASSERT_TRUE(gpu.has_value());
  ASSERT_TRUE((*gpu)->bind_thread().ok());
  auto made = shared_memory::create(*gpu, 200 * MiB);
  ASSERT_TRUE(made.has_value()) << made.error().message;
  const identity_block block{made->address(), made->bytes(), 77};
  ASSERT_TRUE((*gpu)->identity_write({&block, 1}, nullptr).ok());
  ASSERT_TRUE((*gpu)->context_synchronize().ok());
  ASSERT_TRUE(send_shared(socket, *made, "weights").has_value());
  for (;;) ::pause();
}

}  // namespace
}  // namespace millpond
