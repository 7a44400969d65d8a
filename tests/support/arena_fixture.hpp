// Captures attached to an arena on a simulated GPU whose checker knows which of them share
// memory.
#pragma once
#include <vector>

#include "support/pool_fixture.hpp"

namespace millpond {

class pool_arena : public pool_test {
 protected:
  // Begins a capture and attaches it; the checker learns that its graph shares memory with the
  // arena's others.
  void begin(const graph_arena& arena, stream_handle s, capture_mode mode = capture_mode::global) {
    ok(gpu->capture_begin(s, mode));
    const auto attached = attach(arena, s);
    EXPECT_TRUE(attached.has_value()) << attached.error().message;
    capture_info info;
    ok(gpu->stream_capture(s, &info));
    gpu->note_shared_captures(info.id, info.id);  // its results outlive it: the arena is held
    for (const std::uint64_t before : captures) gpu->note_shared_captures(before, info.id);
    captures.push_back(info.id);
  }
  result<void> attach(const graph_arena& arena, stream_handle s) {
    const simulated_gpu::library_scope library;
    const handle_watch::serving call(s);
    return p->capture_into(arena, s);
  }
  graph_exec_handle finish(stream_handle s) {
    graph_handle graph = nullptr;
    ok(gpu->capture_end(s, &graph));
    graph_exec_handle exec = nullptr;
    ok(gpu->graph_instantiate(&exec, graph));
    ok(gpu->graph_destroy(graph));
    return exec;
  }
  // A graph of so many layers, each reading the one before.
  graph_exec_handle layers(const graph_arena& arena, stream_handle s, int count,
                           std::uint64_t bytes) {
    begin(arena, s);
    void* last = take(bytes, s);
    work(last, s, 10 * microsecond, bytes);
    for (int i = 1; i < count; ++i) {
      void* const next = take(bytes, s);
      work(next, s, 10 * microsecond, bytes);
      give(last, s);
      last = next;
    }
    give(last, s);
    return finish(s);
  }

  std::vector<std::uint64_t> captures;
};

}  // namespace millpond
