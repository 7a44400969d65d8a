// A capture that another thread of the program runs meanwhile, in the mode that forbids most: what
// the library does beside it must leave it whole.
#pragma once
#include <gtest/gtest.h>

#include "millpond/sim/simulated_gpu.hpp"
#include "support/forwarding_driver.hpp"

namespace millpond {

class others_capture {
 public:
  // on: the stream that captures; nullptr: one of its own. The calling thread is thread 2 then.
  explicit others_capture(simulated_gpu& gpu, capture_mode mode = capture_mode::global,
                          stream_handle on = nullptr)
      : gpu_(gpu), stream_(on) {
    simulated_gpu::set_thread(capturing_thread);
    if (on == nullptr) {
      EXPECT_TRUE(gpu_.stream_create(&stream_).ok());
    }
    own_ = on == nullptr;
    EXPECT_TRUE(gpu_.capture_begin(stream_, mode).ok());
    simulated_gpu::set_thread(calling_thread);
  }
  ~others_capture() {
    if (!ended_) {
      EXPECT_TRUE(end().ok());
    }
    if (own_) {
      EXPECT_TRUE(gpu_.stream_destroy(stream_).ok());
    }
  }
  others_capture(const others_capture&) = delete;
  others_capture& operator=(const others_capture&) = delete;

  // Ends it, as its thread does.
  call_result end() {
    ended_ = true;
    simulated_gpu::set_thread(capturing_thread);
    graph_handle graph = nullptr;
    const call_result answer = gpu_.capture_end(stream_, &graph);
    if (graph != nullptr) {
      EXPECT_TRUE(gpu_.graph_destroy(graph).ok());
    }
    simulated_gpu::set_thread(calling_thread);
    return answer;
  }

 private:
  static constexpr std::uint64_t capturing_thread = 1'000'001, calling_thread = 1'000'002;
  simulated_gpu& gpu_;
  stream_handle stream_;
  bool own_ = false, ended_ = false;
};

// Another context is current on the calling thread.
class another_context final : public forwarding_driver {
 public:
  using forwarding_driver::forwarding_driver;
  bool in_own_context() noexcept override { return false; }
};

}  // namespace millpond
