// Learning of a graph's end.
#pragma once
#include <memory>
#include <utility>

#include "millpond/driver/driver.hpp"

namespace millpond {

// Has `gone()` called when the graph and all that was made from it are gone: by the driver, from
// any thread, so that it may make no driver call. Not called where this answers a failure.
template <class Gone>
call_result when_graph_is_gone(driver& gpu, graph_handle graph, Gone gone) {
  auto held = std::make_unique<Gone>(std::move(gone));
  const call_result answer = gpu.graph_retain(
      graph, [](void* data) { (*std::unique_ptr<Gone>(static_cast<Gone*>(data)))(); }, held.get());
  if (answer.ok()) static_cast<void>(held.release());
  return answer;
}

}  // namespace millpond
