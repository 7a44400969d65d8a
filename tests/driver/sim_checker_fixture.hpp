// A simulated GPU whose checker is put to the test: the test plays the allocator, and tells it what
// it likes.
#pragma once
#include <string>
#include <vector>

#include "driver/sim_fixture.hpp"
#include "millpond/base/units.hpp"

namespace millpond {

// The test plays the allocator: one arena of mapped memory, from which it hands out what it likes.
class sim_checker : public sim_test {
 protected:
  void SetUp() override { start({}); }
  void start(simulated_gpu_options options) {
    make(std::move(options));
    ok(gpu->physical_create(&handle, 8 * MiB, memory_location::device, driver::shareable::no));
    ok(gpu->address_reserve(&window, 64 * MiB, 0));
    at = window;
    ok(gpu->map(at, 8 * MiB, handle));
    ok(gpu->set_access(at, 8 * MiB, memory_location::device));
    a = stream();
    b = stream();
  }
  void finish() {
    if (handle == 0) return;
    ok(gpu->unmap(at, 8 * MiB));
    ok(gpu->physical_release(handle));
    ok(gpu->address_free(window, 64 * MiB));
    handle = 0;
  }
  void TearDown() override {
    ok(gpu->context_synchronize());
    finish();
    sim_test::TearDown();
  }
  void allocate(device_address where, std::uint64_t bytes, stream_handle s, const char* location) {
    gpu->note_allocate(where, bytes, s, location);
  }
  void free(device_address where, std::uint64_t bytes, stream_handle s, const char* location) {
    gpu->note_free(where, bytes, s, location);
  }
  void write(device_address where, std::uint64_t bytes, stream_handle s) {
    const identity_block block{where, bytes, 1};
    ok(gpu->identity_write({&block, 1}, s));
  }
  void read(device_address where, std::uint64_t bytes, stream_handle s) {
    const identity_block block{where, bytes, 1};
    ok(gpu->identity_check({&block, 1}, &report, s));
  }
  void clean() { EXPECT_EQ(rules(), std::vector<std::string>{}); }

  physical_handle handle = 0;
  device_address window = 0, at = 0;
  stream_handle a = nullptr, b = nullptr;
  identity_report report;
};

}  // namespace millpond
