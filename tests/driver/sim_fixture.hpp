// A simulated GPU for a test: streams and events are given back at the end, and then nothing may be
// left and no rule may have been broken, unless the test says otherwise.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "millpond/sim/simulated_gpu.hpp"

namespace millpond {

class sim_test : public ::testing::Test {
 protected:
  void make(simulated_gpu_options options = {}) {
    auto made = simulated_gpu::create(std::move(options));
    ASSERT_TRUE(made.has_value()) << made.error().message;
    gpu = *made;
  }
  static simulated_gpu_options in_bytes() {
    simulated_gpu_options options;
    options.mode = simulated_gpu_options::contents::bytes;
    return options;
  }
  static void ok(call_result answer) { EXPECT_TRUE(answer.ok()) << to_string(answer); }
  stream_handle stream() {
    stream_handle s = nullptr;
    ok(gpu->stream_create(&s));
    streams_.push_back(s);
    return s;
  }
  event_handle event() {
    event_handle e = nullptr;
    ok(gpu->event_create(&e));
    events_.push_back(e);
    return e;
  }
  void forget(stream_handle s) { std::erase(streams_, s); }
  void forget(event_handle e) { std::erase(events_, e); }
  // The rules broken so far, by name, in order.
  [[nodiscard]] std::vector<std::string> rules() const {
    std::vector<std::string> out;
    for (const violation& v : gpu->violations()) out.push_back(v.rule);
    return out;
  }
  // Exactly this one was broken, with both places named; it is forgotten.
  void expect_only(const std::string& rule, const std::string& first, const std::string& second) {
    const auto all = gpu->violations();
    ASSERT_EQ(all.size(), 1u) << (all.empty() ? "none" : all[0].text + "\n" + all.back().text);
    EXPECT_EQ(all[0].rule, rule) << all[0].text;
    EXPECT_EQ(all[0].first_call_site, first) << all[0].text;
    EXPECT_EQ(all[0].second_call_site, second) << all[0].text;
    gpu->clear_violations();
  }
  void TearDown() override {
    if (gpu == nullptr || !leak_check) return;
    for (const violation& v : gpu->violations()) ADD_FAILURE() << v.rule << ": " << v.text;
    for (stream_handle s : streams_) ok(gpu->stream_destroy(s));
    for (event_handle e : events_) ok(gpu->event_destroy(e));
    EXPECT_EQ(gpu->leaks().total(), 0u) << to_string(gpu->leaks());
    EXPECT_EQ(gpu->physical_bytes(), 0u);
    streams_.clear();
    events_.clear();
  }

  std::shared_ptr<simulated_gpu> gpu;
  bool leak_check = true;

 private:
  std::vector<stream_handle> streams_;
  std::vector<event_handle> events_;
};

}  // namespace millpond
