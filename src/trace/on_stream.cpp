#include "trace/on_stream.hpp"

#include "trace/event_views.hpp"

namespace millpond::trace {

bool on_stream(const event& at) noexcept {
  switch (at.what) {
    case action::allocate:
    case action::free: return at.stream != 0 || at.of == kind::driver_pool || name_of(at) == 0;
    case action::use:
    case action::stream_synchronize:
    case action::event_record:
    case action::event_wait:
    case action::stream_create:
    case action::copy:
    case action::memset:
    case action::kernel:
    case action::prefetch:
    case action::capture_begin:
    case action::capture_end:
    case action::graph_launch: return true;
    case action::event_synchronize:
    case action::device_synchronize:
    case action::stream_destroy:
    case action::advise:
    case action::graph_destroy:
    case action::segment_allocate:
    case action::segment_free:
    case action::mark:
    case action::free_complete:
    case action::segment_map:
    case action::segment_unmap:
    case action::pool_set:
    case action::pages: return false;
  }
  return false;
}

}  // namespace millpond::trace
