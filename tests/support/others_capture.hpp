// What else a program does meanwhile. A capture that another thread runs, in the mode that forbids
// most: what the library does beside it must leave it whole. Another context that is current.
#pragma once
#include <gtest/gtest.h>

#include "millpond/sim/simulated_gpu.hpp"

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

// Another context of the device, as cuCtxCreate makes them: current on the calling thread while
// this lives. It goes with this, and so do the streams and events that were made in it.
class another_context {
 public:
  explicit another_context(simulated_gpu& gpu) : gpu_(gpu) {
    EXPECT_TRUE(gpu_.context_create(&made_).ok());
  }
  ~another_context() {
    EXPECT_EQ(gpu_.current_context(), made_) << "it was not put back";
    EXPECT_TRUE(gpu_.context_destroy(made_).ok());
  }
  another_context(const another_context&) = delete;
  another_context& operator=(const another_context&) = delete;

 private:
  simulated_gpu& gpu_;
  simulated_gpu::context made_ = nullptr;
};

}  // namespace millpond
