// Every driver call of a life whose blocks lie in stitched ranges fails once, each in turn: mapping
// pages a second time, giving back handles that are mapped more than once. Live blocks keep their
// contents, and the pool goes on.
#include <set>
#include <vector>

#include "support/failing_driver.hpp"
#include "support/pool_fixture.hpp"

namespace millpond {
namespace {

class pool_move_faults : public pool_test {
 protected:
  struct held {
    identity_block block;
    void* at;
  };
  // False where the pool refused.
  bool put(std::uint64_t bytes) {
    void* const x = take(bytes, a);
    if (x == nullptr) return false;
    live.push_back({{reinterpret_cast<device_address>(x), bytes, ++identities}, x});
    ok(gpu->identity_write({&live.back().block, 1}, a));
    return true;
  }
  void drop(std::size_t i) {
    ok(gpu->identity_check({&live[i].block, 1}, report, a));
    give(live[i].at, a);
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
  }
  // Answers how many requests were refused.
  int life() {
    int refused = 0;
    for (int i = 0; i < 12; ++i) refused += !put(16 * MiB);
    for (std::size_t i = 0; i < live.size(); ++i) drop(i);  // every other
    for (const std::uint64_t large : {48, 56, 40, 64}) {
      const std::size_t before = live.size();
      refused += !put(large * MiB);
      if (live.size() > before) drop(before);
    }
    for (const held& h : live) ok(gpu->identity_check({&h.block, 1}, report, a));
    while (!live.empty()) drop(0);
    ok(gpu->context_synchronize());
    trim();
    return refused;
  }
  void sweep(driver_status status) {
    std::set<std::string> failed_calls;
    std::uint64_t moved = 0;
    for (std::uint64_t at = 1; at < 2000; ++at) {
      make(steady());
      auto failing = std::make_shared<failing_driver>(gpu);
      a = stream();
      void* host = nullptr;
      ok(gpu->host_allocate(&host, sizeof(identity_report), driver::host_flags::none));
      report = new (host) identity_report;
      auto made = pool::create(failing, {});
      ASSERT_TRUE(made);
      p = std::move(made).value();
      p->set_error_sink([this](const error& e) { errors.push_back(e); });
      failing->fail(at, status);
      EXPECT_LE(life(), 1) << failing->failed();
      const std::string failed = failing->failed();
      p->check();
      failing->fail(0, status);
      EXPECT_EQ(life(), 0) << "after " << failed << " at " << at;
      moved = p->statistics().stitches;
      EXPECT_EQ(p->statistics().reserved_bytes, 0u) << "after " << failed << " at " << at;
      ok(gpu->context_synchronize());
      EXPECT_EQ(report->mismatches, 0u) << "after " << failed << " at " << at;
      errors.clear();
      ok(gpu->host_free(report));
      failing.reset();
      end_pool();
      if (failed.empty()) break;
      failed_calls.insert(failed);
    }
    EXPECT_GT(moved, 0u);
    for (const char* const call :
         {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"}) {
      EXPECT_TRUE(failed_calls.contains(call)) << call;
    }
  }

  stream_handle a = nullptr;
  identity_report* report = nullptr;
  std::uint64_t identities = 0;
  std::vector<held> live;
};

TEST_F(pool_move_faults, any_call_may_fail) {
  sweep(driver_status::unknown);
}
TEST_F(pool_move_faults, any_call_may_run_out_of_memory) {
  sweep(driver_status::out_of_memory);
}

}  // namespace
}  // namespace millpond
