#include "trace/event.hpp"

namespace millpond::trace {

const char* to_string(action what) noexcept {
  switch (what) {
    case action::allocate: return "allocate";
    case action::free: return "free";
    case action::use: return "use";
    case action::stream_synchronize: return "stream_synchronize";
    case action::event_synchronize: return "event_synchronize";
    case action::device_synchronize: return "device_synchronize";
    case action::event_record: return "event_record";
    case action::event_wait: return "event_wait";
    case action::stream_create: return "stream_create";
    case action::stream_destroy: return "stream_destroy";
    case action::copy: return "copy";
    case action::memset: return "memset";
    case action::kernel: return "kernel";
    case action::prefetch: return "prefetch";
    case action::advise: return "advise";
    case action::capture_begin: return "capture_begin";
    case action::capture_end: return "capture_end";
    case action::graph_launch: return "graph_launch";
    case action::graph_destroy: return "graph_destroy";
    case action::segment_allocate: return "segment_allocate";
    case action::segment_free: return "segment_free";
    case action::mark: return "mark";
    case action::free_complete: return "free_complete";
    case action::segment_map: return "segment_map";
    case action::segment_unmap: return "segment_unmap";
    case action::pool_set: return "pool_set";
    case action::pages: return "pages";
  }
  return "unknown";
}

const char* to_string(kind of) noexcept {
  switch (of) {
    case kind::device: return "device";
    case kind::driver_pool: return "driver_pool";
    case kind::pinned: return "pinned";
    case kind::managed: return "managed";
    case kind::pageable: return "pageable";
  }
  return "unknown";
}

}  // namespace millpond::trace
