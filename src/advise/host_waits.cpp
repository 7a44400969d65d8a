#include "advise/host_waits.hpp"

#include "trace/event_views.hpp"

namespace millpond::advise {
namespace {

using scope = host_wait::scope;
using trace::copy_direction;

host_wait of_copy(const trace::event& at) noexcept {
  const trace::copy_operands copy = trace::as_copy(at);
  const bool host_side = at.of != trace::kind::device;
  copy_direction way = copy.direction;
  // Left to the addresses: a synchronous copy with a side on the host waits either way.
  if (way == copy_direction::unknown)
    way = host_side ? copy_direction::device_to_host : copy_direction::device_to_device;
  const bool pinned = at.of == trace::kind::pinned;
  switch (way) {
    case copy_direction::host_to_host: return {scope::stream};
    case copy_direction::device_to_host:
      return copy.asynchronous && pinned ? host_wait{} : host_wait{scope::stream};
    case copy_direction::host_to_device:
      if (pinned) return copy.asynchronous ? host_wait{} : host_wait{scope::stream};
      if (copy.asynchronous && at.bytes <= staged_bytes) return {};
      return {scope::stream, true};
    case copy_direction::device_to_device:
    case copy_direction::unknown: break;
  }
  return {};
}

}  // namespace

host_wait wait_of(const trace::event& at, bool call_known, bool unmaps,
                  trace::kind target) noexcept {
  if (at.status != 0) return {};
  switch (at.what) {
    case trace::action::stream_synchronize: return {scope::stream};
    case trace::action::event_synchronize: return {scope::event};
    case trace::action::device_synchronize: return {scope::device};
    case trace::action::copy: return of_copy(at);
    case trace::action::memset:
      // Of pinned and managed memory the form without a stream is synchronous; a recording of
      // either form on the default stream looks the same.
      if (at.stream == 0 && (target == trace::kind::pinned || target == trace::kind::managed))
        return {scope::stream};
      return {};
    case trace::action::free:
      if (!call_known || unmaps) return {};
      return at.of == trace::kind::device || at.of == trace::kind::pinned ||
                     at.of == trace::kind::managed
                 ? host_wait{scope::device}
                 : host_wait{};
    default: return {};
  }
}

bool blocks_though_asynchronous(const trace::event& at) noexcept {
  const trace::copy_operands copy = trace::as_copy(at);
  if (!copy.asynchronous || at.of != trace::kind::pageable) return false;
  return copy.direction == copy_direction::device_to_host ||
         (copy.direction == copy_direction::host_to_device && at.bytes > staged_bytes);
}

}  // namespace millpond::advise
