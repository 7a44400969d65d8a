#include "millpond/memory/kinds.hpp"

#include "base/bits.hpp"
#include "base/fork.hpp"
#include "driver/own_calls.hpp"
#include "millpond/base/units.hpp"
#include "resource/host_room.hpp"
#include "resource/quiet_stream.hpp"
#include "resource/wait.hpp"

namespace millpond {

managed_resource::managed_resource(std::shared_ptr<driver> gpu,
                                   std::shared_ptr<pointer_registry> registry, managed_use use)
    : tracked_resource(
          std::move(gpu), std::move(registry),
          {"managed_resource", memory_kind::managed, "cuMemAllocManaged", "cuMemFree"}),
      use_(use),
      own_(std::make_unique<detail::quiet_stream>()) {}

managed_resource::~managed_resource() {
  give_back_all();
  if (!forked() && gpu()->alive()) own_->end(*gpu());
}

result<stream_handle> managed_resource::own_stream() {
  if (forked()) return refused_in_child("managed_resource: a stream");
  stream_handle out = nullptr;
  if (const call_result made = own_->get(*gpu(), &out); !made.ok())
    return to_error(made, name() + ": making a stream");
  return out;
}

result<void> managed_resource::may_allocate(std::uint64_t bytes) {
  if (auto can = managed_can_exist(*gpu(), room_of(gpu()), bytes, name()); !can) return can;
  if (use_.intent == managed_intent::unstated) return {};
  const auto plan = plan_managed(use_, bytes, gpu()->info());
  if (!plan) return plan.error();
  return {};
}

call_result managed_resource::obtain(device_address* out, std::uint64_t bytes, std::uint64_t,
                                     stream_handle stream) noexcept {
  const own_calls_scope own_calls(*gpu());
  if (!own_calls.entered()) return own_calls.entered();
  if (use_.intent == managed_intent::unstated) return gpu()->managed_allocate(out, bytes);
  const auto plan = plan_managed(use_, bytes, gpu()->info());
  if (!plan)
    return {driver_status::not_supported, "cuMemAllocManaged"};  // may_allocate has said why
  const std::uint64_t whole = align_up(bytes, 2 * MiB);
  call_result answer = gpu()->managed_allocate(out, whole);
  if (!answer.ok()) return answer;
  for (const managed_plan::advice& each : plan->advices) {
    if (answer.ok()) answer = gpu()->advise(*out, whole, each.what, each.location);
  }
  capture_info capture;
  const bool recorded =
      !gpu()->stream_capture(stream, &capture).ok() || capture.status != capture_status::none;
  if (answer.ok() && plan->start_on_device && !recorded) {  // into a capture it would be replayed
    answer = gpu()->prefetch_async(*out, whole, memory_location::device, stream);
  }
  if (!answer.ok()) static_cast<void>(gpu()->memory_free(*out));
  return answer;
}

call_result managed_resource::give_back(device_address base, stream_handle stream) noexcept {
  const own_calls_scope own_calls(*gpu());
  if (!own_calls.entered()) return own_calls.entered();
  if (const call_result waited = wait_for_stream(*gpu(), stream); !waited.ok()) return waited;
  return gpu()->memory_free(base);
}

}  // namespace millpond
