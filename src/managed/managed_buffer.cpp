#include "millpond/managed/managed_buffer.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>

#include "base/bits.hpp"
#include "base/fork.hpp"
#include "driver/insist.hpp"
#include "driver/own_calls.hpp"
#include "managed/memory_traps.hpp"
#include "millpond/base/units.hpp"
#include "resource/quiet_stream.hpp"
#include "resource/wait.hpp"

namespace millpond::detail {
namespace {

constexpr std::uint64_t no_identity = ~std::uint64_t{0};  // of a stream that could not be asked

bool one_mapping_needed(const managed_resource& from) {
  return from.use().intent != managed_intent::unstated;
}

}  // namespace

managed_core::managed_core(managed_resource& from, managed_plan plan, std::uint64_t bytes,
                           stream_handle own)
    : from_(from),
      gpu_(*from.gpu()),
      plan_(std::move(plan)),
      bytes_(bytes),
      whole_(align_up(bytes, 2 * MiB)),
      born_in_fork_(fork_count()),
      own_(own) {}

result<std::unique_ptr<managed_core>> managed_core::create(managed_resource& from,
                                                           std::uint64_t bytes,
                                                           stream_handle stream,
                                                           managed_debug debug) {
  if (bytes == 0) return error{error_code::invalid_argument, "managed_buffer: no elements"};
  auto plan = plan_managed(from.use(), bytes, from.gpu()->info());
  if (!plan) return plan.error();
  const auto own = from.own_stream();
  if (!own) return own.error();
  std::unique_ptr<managed_core> made(new managed_core(from, std::move(*plan), bytes, *own));
  auto got = static_cast<memory_resource&>(from).try_allocate(bytes, default_alignment, stream);
  if (!got) return got.error();
  made->data_ = *got;
  made->on_host_ = !made->plan_.start_on_device;
  if (made->plan_.start_on_device) {
    if (auto noted = made->note_first_prefetch(stream); !noted) return noted.error();
  }
  if (from.use().intent == managed_intent::read_mostly) {
    made->applied_ = applied::read_mostly;  // by the resource
    if (auto unset = made->tell(applied::nothing); !unset) return unset.error();
  }
  if (debug == managed_debug::trap) {
    if (!one_mapping_needed(from)) {
      return error{error_code::not_supported,
                   "managed_buffer: traps need whole pages of the buffer's own: state the memory's "
                   "use, which aligns it to 2 MiB"};
    }
    if (auto guarded = made->guard(debug); !guarded) return guarded.error();
  }
  return made;
}

managed_core::~managed_core() {
  if (data_ == nullptr || born_in_fork_ != fork_count()) return;
  const bool alive = gpu_.alive();
  // Where the events cannot tell, the device can; and the free waits for it too.
  if (alive && !wait_for_views()) static_cast<void>(wait_for_device(gpu_));
  if (guard_ >= 0) {
    protect(guarding::off);
    memory_traps::release(guard_);
  }
  if (alive) {
    const own_calls_scope own_calls(gpu_);
    for (const user& each : users_)
      static_cast<void>(insist([&] { return gpu_.event_destroy(each.done); }));
  }
  static_cast<memory_resource&>(from_).deallocate(data_, bytes_, own_);
}

// The stream that has had, or has, a device view; made known where it is new.
result<managed_core::user*> managed_core::user_of(std::uint64_t id) {
  for (user& each : users_)
    if (each.id == id) return &each;
  user fresh;
  fresh.id = id;
  users_.reserve(users_.size() + 1);
  if (const auto answer = gpu_.event_create(&fresh.done); !answer.ok())
    return to_error(answer, "managed_buffer: making an event");
  users_.push_back(fresh);
  return &users_.back();
}

// The resource has put a prefetch on the stream that it allocated for: whoever has the pages next
// comes after it.
result<void> managed_core::note_first_prefetch(stream_handle stream) {
  const own_calls_scope own_calls(gpu_);
  std::uint64_t id = 0;
  capture_info capture;
  if (!gpu_.id_outside_capture(stream, &id)) {
    if (gpu_.stream_capture(stream, &capture).ok() && capture.status != capture_status::none)
      return {};  // nothing was put there
    id = no_identity;
  }
  const auto known = user_of(id);
  if (!known) return known.error();
  fence(**known, stream);
  return {};
}

// Behind all that is on the stream now; the capture is asked for first, since an event would be its
// graph's and the identity ends it.
void managed_core::fence(user& of, stream_handle stream) noexcept {
  std::uint64_t id = 0;
  of.unfenced = !(gpu_.id_outside_capture(stream, &id) && id == of.id &&
                  gpu_.event_record(of.done, stream).ok());
}

// Read-mostly is advised after the data has moved: a prefetch that duplicates takes 17 to 26 ms a
// 256 MiB where one that moves takes 5.4 (H200, driver 580.159, 2026-11-30), and the copies are
// made when the other side reads.
result<void> managed_core::tell(applied what) {
  if (applied_ == what) return {};
  const auto answer = gpu_.advise(reinterpret_cast<device_address>(data_), bytes_,
                                  what == applied::read_mostly ? managed_advice::set_read_mostly
                                                               : managed_advice::unset_read_mostly,
                                  memory_location::device);
  if (!answer.ok()) return to_error(answer, "managed_buffer: advising");
  applied_ = what;
  return {};
}

void managed_core::contradict(std::string what) {
  if (std::ranges::find(history_.contradictions, what) == history_.contradictions.end()) {
    history_.contradictions.push_back(std::move(what));
  }
}

result<void> managed_core::wait_for_unfenced() {
  if (std::ranges::none_of(users_, [](const user& each) { return each.unfenced; })) return {};
  ++history_.host_waits;
  if (const auto waited = wait_for_device(gpu_); !waited.ok())
    return to_error(waited, "managed_buffer: waiting for work that no event is behind");
  for (user& each : users_) each.unfenced = false;
  return {};
}

result<void> managed_core::wait_for_views() {
  const own_calls_scope own_calls(gpu_);
  if (auto waited = wait_for_unfenced(); !waited) return waited;
  for (const user& each : users_) {
    const auto asked = gpu_.event_query(each.done);
    if (asked.ok()) continue;
    ++history_.host_waits;
    if (const auto waited = gpu_.event_synchronize(each.done); !waited.ok()) {
      return to_error(waited, "managed_buffer: waiting for the work under a device view");
    }
  }
  return {};
}

result<void> managed_core::begin_host(access how) {
  const bool writes = how == access::write;
  if (device_views_ > 0 && (writes || device_writers_ > 0)) {
    return error{error_code::not_permitted,
                 "managed_buffer: a device view is alive; end it first, and the host view waits "
                 "for its work"};
  }
  const managed_use& use = from_.use();
  if (writes && use.intent != managed_intent::unstated &&
      !includes(use.writers, memory_side::host)) {
    contradict(
        fmt::format("the CPU writes memory that was stated as {} and not written by it; add the "
                    "host to its writers",
                    to_string(use.intent)));
  }
  const own_calls_scope own_calls(gpu_);
  if (auto waited = wait_for_views(); !waited) return waited;
  protect(guarding::off);
  const auto refused = [this](error why) {
    guard_again();
    return why;
  };
  if (writes) {
    if (auto unset = tell(applied::nothing); !unset) return refused(unset.error());
  }
  if (last_ == memory_side::device) {
    ++history_.side_changes;
    if (use.intent == managed_intent::gpu_resident && history_.side_changes > 8 &&
        history_.host_views * 4 > history_.device_views) {
      contradict(
          "gpu-resident memory that the CPU views again and again: its pages fault back at 38 ms a "
          "256 MiB; state ping-pong");
    }
    if (plan_.prefetch_to_host && bytes_ >= 2 * MiB) {
      ++history_.prefetches;
      auto answer = gpu_.prefetch_async(reinterpret_cast<device_address>(data_), bytes_,
                                        memory_location::host, own_);
      if (answer.ok()) answer = gpu_.stream_synchronize(own_);
      if (!answer.ok()) return refused(to_error(answer, "managed_buffer: prefetching to the host"));
    }
  }
  last_ = memory_side::host;
  on_host_ = on_host_ || writes || applied_ == applied::nothing;
  ++host_views_;
  ++history_.host_views;
  history_.host_writes += writes ? 1 : 0;
  host_writers_ += writes ? 1 : 0;
  return {};
}

void managed_core::end_host(access how) noexcept {
  --host_views_;
  host_writers_ -= how == access::write ? 1 : 0;
  guard_again();
}

// Where the CPU has no view and the device may still use the memory, a stray pointer is caught.
void managed_core::guard_again() noexcept {
  if (host_views_ == 0 && device_views_ > 0) protect(guarding::on);
}

// Puts the stream behind what other streams did to the memory under device views.
result<void> managed_core::order_behind_others(access how, stream_handle stream, std::uint64_t id) {
  const bool writes = how == access::write;
  const auto concerns = [&](const user& each) { return each.id != id && (writes || each.wrote); };
  for (const user& each : users_) {
    if (each.id != id && (each.writers > 0 || (writes && each.views > 0))) {
      return error{error_code::not_permitted,
                   "managed_buffer: a device view on another stream is alive and one of both "
                   "writes; end it first, and this stream is put behind its work"};
    }
  }
  if (std::ranges::any_of(users_,
                          [&](const user& each) { return concerns(each) && each.unfenced; }))
    if (auto waited = wait_for_unfenced(); !waited) return waited;
  for (const user& each : users_) {
    if (!concerns(each)) continue;
    if (const auto answer = gpu_.stream_wait_event(stream, each.done); !answer.ok())
      return to_error(answer, "managed_buffer: ordering the streams");
  }
  return {};
}

result<std::uint64_t> managed_core::begin_device(access how, stream_handle stream) {
  const bool writes = how == access::write;
  if (host_views_ > 0 && (writes || host_writers_ > 0)) {
    return error{
        error_code::not_permitted,
        "managed_buffer: a host view is alive; end it first, so that the kernel sees all of it"};
  }
  const managed_use& use = from_.use();
  if (writes && use.intent == managed_intent::read_mostly) {
    return error{error_code::not_permitted,
                 "managed_buffer: the device would write read-mostly memory, a fault of 27 to 132 "
                 "us for each 4 KiB; take "
                 "device_view_to_read, or state streaming or gpu-resident"};
  }
  if (writes && use.intent != managed_intent::unstated &&
      !includes(use.writers, memory_side::device)) {
    contradict(
        fmt::format("the device writes memory that was stated as {} and not written by it; add the "
                    "device to its writers",
                    to_string(use.intent)));
  }
  if (of_another_context(gpu_, stream)) {
    return error{
        error_code::invalid_argument,
        "managed_buffer: the default stream is another context's, since that is current on "
        "this thread; make the device's context current, or name a stream"};
  }
  const own_calls_scope own_calls(gpu_);
  capture_info capture;
  if (const auto answer = gpu_.stream_capture(stream, &capture); !answer.ok())
    return to_error(answer, "managed_buffer: asking the stream");
  if (capture.status != capture_status::none) {
    return error{error_code::not_permitted,
                 "managed_buffer: the stream captures, and a replay would find the pages "
                 "elsewhere; use device memory"};
  }
  std::uint64_t id = 0;
  if (const auto answer = gpu_.stream_id(stream, &id); !answer.ok())
    return to_error(answer, "managed_buffer: asking the stream");
  if (auto ordered = order_behind_others(how, stream, id); !ordered) return ordered.error();
  const auto known = user_of(id);
  if (!known) return known.error();
  if (last_ == memory_side::host) ++history_.side_changes;
  if (on_host_ && plan_.prefetch_to_device) {
    const auto answer = gpu_.prefetch_async(reinterpret_cast<device_address>(data_), bytes_,
                                            memory_location::device, stream);
    if (!answer.ok()) return to_error(answer, "managed_buffer: prefetching to the device");
    ++history_.prefetches;
  }
  if (use.intent == managed_intent::read_mostly) {
    if (auto set = tell(applied::read_mostly); !set) return set.error();
  }
  on_host_ = false;
  last_ = memory_side::device;
  if (host_views_ == 0) protect(guarding::on);
  ++device_views_;
  ++history_.device_views;
  history_.device_writes += writes ? 1 : 0;
  device_writers_ += writes ? 1 : 0;
  user& now = **known;
  ++now.views;
  now.writers += writes ? 1 : 0;
  now.wrote = now.wrote || writes;
  return id;
}

// Where no event can be put behind the view's work, since its stream captures or is gone or the
// driver refuses, whoever has the memory next waits for the device.
void managed_core::end_device(access how, stream_handle stream, std::uint64_t id) noexcept {
  const unsigned writers = how == access::write ? 1 : 0;
  --device_views_;
  device_writers_ -= writers;
  const own_calls_scope own_calls(gpu_);
  for (user& each : users_) {
    if (each.id != id) continue;
    --each.views;
    each.writers -= writers;
    fence(each, stream);
  }
}

// --- Traps
// -------------------------------------------------------------------------------------------

result<void> managed_core::guard(managed_debug) {
  auto taken = memory_traps::take(data_, whole_);
  if (!taken) return taken.error();
  guard_ = *taken;
  return {};
}

void managed_core::protect(guarding now) noexcept {
  if (guard_ < 0) return;
  const bool on = now == guarding::on;
  static_cast<void>(::mprotect(data_, whole_, on ? PROT_NONE : PROT_READ | PROT_WRITE));
  memory_traps::arm(guard_, on);
}

result<void> managed_core::watch(std::shared_ptr<managed_watch> by) {
  if (by == nullptr) return error{error_code::invalid_argument, "managed_buffer: no watch"};
  if (created_ < by->began() && !by->counts_earlier_memory()) {
    return error{error_code::not_permitted,
                 "managed_buffer: it was allocated before the watch began, and CUPTI counts "
                 "nothing of such memory; start the "
                 "watch first"};
  }
  auto now = by->counts(reinterpret_cast<device_address>(data_), bytes_);
  if (!now) return now.error();
  watch_ = std::move(by);
  watched_from_ = *now;
  return {};
}

result<void> managed_core::look() {
  if (watch_ == nullptr)
    return error{error_code::invalid_argument,
                 "managed_buffer: nothing watches; call watch() first"};
  auto now = watch_->counts(reinterpret_cast<device_address>(data_), bytes_);
  if (!now) return now.error();
  const managed_page_counts since{now->device_faults - watched_from_.device_faults,
                                  now->device_write_faults - watched_from_.device_write_faults,
                                  now->host_faults - watched_from_.host_faults,
                                  now->bytes_to_device - watched_from_.bytes_to_device,
                                  now->bytes_to_host - watched_from_.bytes_to_host,
                                  now->throttles - watched_from_.throttles};
  for (std::string& each : contradictions(from_.use(), since, bytes_)) {
    // Reported once, whatever the numbers in it are by then.
    const std::string_view kind =
        std::string_view(each).substr(0, each.find_first_of("0123456789"));
    const auto same = [kind](const std::string& known) { return known.starts_with(kind); };
    if (std::ranges::none_of(history_.contradictions, same))
      history_.contradictions.push_back(std::move(each));
  }
  return {};
}

}  // namespace millpond::detail
