// The ground of the suite that every driver answers to (driver_contract.hpp): who is tested, what
// each test starts with, and the few moves that they share.
//
// It runs on a shared card: nothing here takes more than about a GiB, and free memory is compared
// only in the direction that others cannot change much.
#pragma once
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "driver/identity.hpp"
#include "driver/own_calls.hpp"
#include "millpond/base/units.hpp"
#include "millpond/driver/driver.hpp"

namespace millpond {

struct contract_subject {
  std::string name;
  // A driver bound to the calling thread; null and a reason where there is none.
  std::function<std::shared_ptr<driver>(std::string& why_not)> open;
  // Looks for what a test left behind.
  std::function<void(driver&)> finish = [](driver&) {};
};
inline void PrintTo(const contract_subject& subject, std::ostream* out) {
  *out << subject.name;
}

#define OK(call)                                            \
  do {                                                      \
    const ::millpond::call_result answer_ = (call);         \
    ASSERT_TRUE(answer_) << ::millpond::to_string(answer_); \
  } while (false)

class driver_contract : public ::testing::TestWithParam<contract_subject> {
 protected:
  static constexpr device_address no_address = 0;
  static constexpr std::uint64_t ten_ms = 10'000'000;

  void SetUp() override {
    std::string why_not;
    gpu_ = GetParam().open(why_not);
    if (gpu_ == nullptr) GTEST_SKIP() << why_not;
    stream_ = make_stream();
    void* report = nullptr;
    OK(gpu_->host_allocate(&report, sizeof(identity_report), driver::host_flags::none));
    report_ = new (report) identity_report{};
  }
  void TearDown() override {
    if (gpu_ == nullptr) return;
    EXPECT_TRUE(gpu_->context_synchronize());
    for (stream_handle each : streams_) EXPECT_TRUE(gpu_->stream_destroy(each));
    for (event_handle each : events_) EXPECT_TRUE(gpu_->event_destroy(each));
    EXPECT_TRUE(report_ == nullptr || gpu_->host_free(report_));
    EXPECT_TRUE(gpu_->alive());
    GetParam().finish(*gpu_);
  }

  stream_handle make_stream() {
    stream_handle made = nullptr;
    EXPECT_TRUE(gpu_->stream_create(&made));
    streams_.push_back(made);
    return made;
  }
  event_handle make_event() {
    event_handle made = nullptr;
    EXPECT_TRUE(gpu_->event_create(&made));
    events_.push_back(made);
    return made;
  }
  void forget(stream_handle stream) { std::erase(streams_, stream); }
  void wait() { OK(gpu_->stream_synchronize(stream_)); }

  // Words that differ, checked on the device. Waits.
  std::uint64_t mismatches(std::span<const identity_block> blocks) {
    *report_ = {};
    EXPECT_TRUE(gpu_->identity_check(blocks, report_, stream_));
    EXPECT_TRUE(gpu_->stream_synchronize(stream_));
    return report_->mismatches;
  }
  std::uint64_t mismatches(identity_block block) {
    return mismatches(std::span<const identity_block>(&block, 1));
  }
  void write(identity_block block) {
    EXPECT_TRUE(gpu_->identity_write(std::span<const identity_block>(&block, 1), stream_));
  }
  // Device bytes, read by a copy. Waits.
  std::vector<unsigned char> read(device_address at, std::uint64_t bytes) {
    std::vector<unsigned char> host(bytes);
    EXPECT_TRUE(gpu_->copy_async(address_of(host.data()), at, bytes, stream_));
    EXPECT_TRUE(gpu_->stream_synchronize(stream_));
    return host;
  }
  static device_address address_of(const void* at) { return reinterpret_cast<device_address>(at); }
  // A destructor of a graph's object runs on a thread of the driver's, some time after.
  static bool becomes(const std::atomic<int>& counter, int value) {
    for (int i = 0; i < 2000 && counter.load() != value; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return counter.load() == value;
  }
  static void count_up(void* counter) { static_cast<std::atomic<int>*>(counter)->fetch_add(1); }

  // A handle mapped at a fresh address, with access.
  struct mapping {
    device_address at = 0;
    physical_handle handle = 0;
    std::uint64_t bytes = 0;
  };
  mapping make_mapping(std::uint64_t bytes, memory_location location,
                       driver::shareable share = driver::shareable::no) {
    mapping made;
    made.bytes = bytes;
    EXPECT_TRUE(gpu_->address_reserve(&made.at, bytes, 0));
    EXPECT_TRUE(gpu_->physical_create(&made.handle, bytes, location, share));
    EXPECT_TRUE(gpu_->map(made.at, bytes, made.handle));
    EXPECT_TRUE(gpu_->set_access(made.at, bytes, location));
    return made;
  }
  void drop(const mapping& made) {
    EXPECT_TRUE(gpu_->unmap(made.at, made.bytes));
    EXPECT_TRUE(gpu_->physical_release(made.handle));
    EXPECT_TRUE(gpu_->address_free(made.at, made.bytes));
  }

  std::shared_ptr<driver> gpu_;
  stream_handle stream_ = nullptr;
  identity_report* report_ = nullptr;

 private:
  std::vector<stream_handle> streams_;
  std::vector<event_handle> events_;
};

}  // namespace millpond
