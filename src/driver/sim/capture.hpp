// Captures and graphs: work that is written down instead of run. A capture has a branch for each
// stream that it holds; a branch is a timeline of its own, since work in a graph is in no order
// with what the stream did before. Offsets are nanoseconds from the graph's start.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "driver/sim/clocks.hpp"
#include "driver/sim/operation.hpp"
#include "millpond/driver/driver.hpp"

namespace millpond::sim {

struct stream_record;
struct node_memory;

struct graph_node {
  work what;
  std::string name;
  double duration_ns = 0;
  std::shared_ptr<node_memory> memory;  // the checker's; null without one
  std::uint64_t end_offset_ns = 0;
};

struct user_object {
  void (*destroy)(void*) = nullptr;
  void* data = nullptr;
};

// What a graph and all its instances share; gone with the last of them, and not before the device
// is done.
struct graph_body {
  std::uint64_t capture_id = 0;
  std::vector<graph_node> nodes;
  std::uint64_t length_ns = 0;
  std::vector<user_object> retained;
  std::vector<std::uint64_t> pool_blocks;  // allocated by the capture and not freed in it
  std::vector<std::shared_ptr<graph_body>> children;  // graphs that were launched into the capture
  std::function<void(graph_body&)> on_end;
  ~graph_body() {
    if (on_end) on_end(*this);
  }
};

struct capture_branch {
  stream_record* stream = nullptr;
  timeline line;
  std::uint64_t end_offset_ns = 0;
  std::uint64_t last_node_tick = 0;  // 0: nothing was captured on it
};

struct capture_record {
  std::uint64_t id = 0;
  capture_mode mode = capture_mode::global;
  std::uint64_t thread = 0;
  stream_record* origin = nullptr;
  bool invalidated = false;
  graph_handle graph = nullptr;
  std::shared_ptr<graph_body> body;
  std::vector<std::unique_ptr<capture_branch>> branches;
};

struct graph_record {
  std::shared_ptr<graph_body> body;
  bool capturing = false;
};
struct graph_exec_record {
  std::shared_ptr<graph_body> body;
  std::uint64_t end_ns = 0;  // an instance runs after itself
};

}  // namespace millpond::sim
