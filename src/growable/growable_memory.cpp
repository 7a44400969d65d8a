// Growth in place. Pieces lie one behind the other from the start of the reserved addresses; the
// first of them are usable, those behind were shrunk off and wait, mapped, for their fence. Only
// the last piece is ever unmapped, so that there is never a hole.
#include <algorithm>
#include <new>
#include <vector>

#include "base/bits.hpp"
#include "base/fork.hpp"
#include "driver/insist.hpp"
#include "driver/own_calls.hpp"
#include "millpond/growable/growable_buffer.hpp"
#include "order/event_cache.hpp"

namespace millpond {
namespace {

// One event for all pieces of one shrink.
struct fence {
  order::event_cache& from;
  event_handle event;
  bool passed = false;
  fence(order::event_cache& cache, event_handle recorded) noexcept : from(cache), event(recorded) {}
  fence(const fence&) = delete;
  fence& operator=(const fence&) = delete;
  ~fence() { from.put(event); }
};

}  // namespace

struct growable_memory::inside {
  struct piece {
    std::uint64_t bytes = 0;
    physical_handle handle = 0;
    bool accessible = false;
    std::shared_ptr<fence> until =
        {};  // of a piece that was shrunk off; nullptr: nothing runs on it
  };

  inside(std::shared_ptr<driver> driver_, growable_options options_, stream_handle stream_)
      : gpu(std::move(driver_)), options(std::move(options_)), stream(stream_), events(*gpu) {}

  [[nodiscard]] std::uint64_t end_of(std::size_t count) const noexcept {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += pieces[i].bytes;
    return sum;
  }
  // What the driver has out for this memory, mapped or not.
  [[nodiscard]] std::uint64_t held_bytes() const noexcept {
    std::uint64_t sum = total;
    for (const piece& p : unreleased) sum += p.bytes;
    return sum;
  }
  [[nodiscard]] bool forked() const noexcept { return born != fork_count(); }
  bool has_passed(fence& of) noexcept {
    if (!of.passed) of.passed = gpu->event_query(of.event).ok();
    return of.passed;
  }
  call_result create_piece(piece& of) {
    if (share != nullptr && !share->try_take(of.bytes))
      return {driver_status::out_of_memory, "memory_budget"};
    const call_result answer =
        gpu->physical_create(&of.handle, of.bytes, options.location, driver::shareable::no);
    if (!answer.ok() && share != nullptr) share->give(of.bytes);
    return answer;
  }
  // What the driver refuses to take back is kept in mind, and it is asked again by later calls.
  void release_piece(const piece& of) {
    unreleased.push_back(of);
    release_all();
  }
  void release_all() noexcept {
    std::erase_if(unreleased, [this](const piece& p) {
      const bool gone = insist([&] { return gpu->physical_release(p.handle); }).ok();
      if (gone && share != nullptr) share->give(p.bytes);
      return gone;
    });
  }
  // Unmaps and releases the last piece, which nothing uses. False, and the piece is still there,
  // where the driver refuses.
  bool drop_last() noexcept {
    piece& last = pieces.back();
    const device_address at = base + total - last.bytes;
    if (!insist([&] { return gpu->unmap(at, last.bytes); }).ok()) return false;
    const piece gone = last;
    total -= gone.bytes;
    pieces.pop_back();
    release_piece(gone);
    return true;
  }
  std::uint64_t give_back() noexcept {
    const std::uint64_t before = total;
    release_all();
    while (pieces.size() > usable) {
      if (pieces.back().until != nullptr && !has_passed(*pieces.back().until)) break;
      if (!drop_last()) break;
    }
    return before - total;
  }
  result<void> grow(std::uint64_t bytes);
  result<void> shrink(std::uint64_t bytes);
  result<void> end();
  call_result reclaim(std::size_t count);
  result<void> add(std::uint64_t bytes);
  [[nodiscard]] error refused(call_result answer, std::uint64_t more) const;

  std::shared_ptr<driver> gpu;
  growable_options options;
  stream_handle stream;
  order::event_cache events;
  std::shared_ptr<memory_budget::member> share;
  const std::uint32_t born = fork_count();
  device_address base = 0;
  std::uint64_t reserved = 0;  // of addresses
  std::uint64_t granularity = 0;
  std::vector<piece> pieces;
  std::vector<piece> unreleased;  // mapped nowhere any more
  std::size_t usable = 0;         // of pieces
  std::uint64_t usable_bytes = 0;
  std::uint64_t total = 0;  // of all pieces
};

error growable_memory::inside::refused(call_result answer, std::uint64_t more) const {
  const std::string doing = "growing '" + options.name + "' from " + format_bytes(usable_bytes) +
                            " by " + format_bytes(more);
  if (std::string_view(answer.call) != "memory_budget") return to_error(answer, doing);
  const memory_budget& shared = share->budget();
  return {error_code::out_of_memory, doing + ": the budget's limit of " +
                                         format_bytes(shared.limits().hard_bytes) +
                                         " would be passed, " + format_bytes(shared.used_bytes()) +
                                         " are in use by all its members"};
}

// Pieces that were shrunk off and are still mapped serve again, behind what still runs on them.
call_result growable_memory::inside::reclaim(std::size_t count) {
  std::shared_ptr<fence> asked;
  device_address at = base + usable_bytes;
  for (std::size_t i = usable; i < count; ++i) {
    piece& p = pieces[i];
    if (p.until != nullptr && p.until != asked && !has_passed(*p.until)) {
      capture_info capture;
      if (const call_result answer = gpu->stream_capture(stream, &capture); !answer.ok())
        return answer;
      // A capture cannot wait for work outside of it.
      if (capture.status != capture_status::none)
        return {driver_status::capture_unsupported, "cuStreamWaitEvent"};
      if (const call_result answer = gpu->stream_wait_event(stream, p.until->event); !answer.ok())
        return answer;
      asked = p.until;
    }
    if (!p.accessible) {
      if (const call_result answer = gpu->set_access(at, p.bytes, options.location); !answer.ok())
        return answer;
      p.accessible = true;
    }
    at += p.bytes;
  }
  return {};
}

// New pieces behind all others: all of them or none.
result<void> growable_memory::inside::add(std::uint64_t bytes) {
  const std::size_t before = pieces.size();
  const std::uint64_t from = total;
  const std::uint64_t step = options.step_bytes;  // a multiple of the granularity, since create()
  const std::uint64_t largest =
      std::max(step, align_down(options.largest_handle_bytes, granularity));
  std::vector<piece> made;
  std::uint64_t fresh = 0;
  std::uint64_t mapped = 0;
  const auto undo = [&](error why) -> error {
    for (std::size_t i = made.size(); i-- > 0;) {
      fresh -= made[i].bytes;
      if (fresh < mapped &&
          !insist([&] { return gpu->unmap(base + from + fresh, made[i].bytes); }).ok()) {
        // It stays where it is, out of use, and the driver is asked again by the next call; those
        // before it stay with it.
        for (std::size_t k = 0; k <= i; ++k) {
          total += made[k].bytes;
          pieces.push_back(made[k]);
        }
        return why;
      }
      release_piece(made[i]);
    }
    return why;
  };
  while (fresh < bytes) {
    const std::uint64_t missing = bytes - fresh;
    const std::uint64_t least = std::min(align_up(missing, granularity), largest);
    const std::uint64_t room = reserved - from - fresh;
    piece p;
    p.bytes =
        std::min({missing >= largest ? largest : divide_up(missing, step) * step, largest, room});
    if (share != nullptr && share->budget().passes_soft(p.bytes)) {
      static_cast<void>(share->budget().reclaim(p.bytes, share.get()));
      if (share->budget().passes_soft(p.bytes)) p.bytes = std::min(p.bytes, least);
    }
    call_result answer = create_piece(p);
    if (answer.status == driver_status::out_of_memory && p.bytes > least) {
      p.bytes = least;
      answer = create_piece(p);
    }
    if (answer.status == driver_status::out_of_memory && share != nullptr &&
        share->budget().reclaim(p.bytes, share.get()) > 0) {
      answer = create_piece(p);
    }
    if (!answer.ok()) return undo(refused(answer, bytes));
    fresh += p.bytes;
    made.push_back(p);
  }
  for (const piece& p : made) {
    if (const call_result answer = gpu->map(base + from + mapped, p.bytes, p.handle); !answer.ok())
      return undo(refused(answer, bytes));
    mapped += p.bytes;
  }
  if (const call_result answer = gpu->set_access(base + from, fresh, options.location);
      !answer.ok())
    return undo(refused(answer, bytes));
  pieces.reserve(before + made.size());
  for (piece& p : made) {
    p.accessible = true;
    pieces.push_back(p);
  }
  total += fresh;
  return {};
}

result<void> growable_memory::inside::grow(std::uint64_t bytes) {
  if (forked()) return refused_in_child();
  if (bytes <= usable_bytes) return {};
  if (bytes > reserved) {
    return error{error_code::out_of_memory, "growing '" + options.name + "' to " +
                                                format_bytes(bytes) +
                                                ": addresses were reserved for " +
                                                format_bytes(reserved) + " when it was made"};
  }
  const own_calls_scope own_calls(*gpu);
  release_all();
  std::size_t count = usable;
  std::uint64_t reached = usable_bytes;
  while (count < pieces.size() && reached < bytes) reached += pieces[count++].bytes;
  if (const call_result answer = reclaim(count); !answer.ok())
    return refused(answer, bytes - usable_bytes);
  if (reached < bytes) {
    if (auto added = add(bytes - reached); !added) return added;
    count = pieces.size();
    reached = total;
  }
  for (std::size_t i = usable; i < count; ++i) pieces[i].until.reset();
  usable = count;
  usable_bytes = reached;
  return {};
}

result<void> growable_memory::inside::shrink(std::uint64_t bytes) {
  if (forked()) return refused_in_child();
  const own_calls_scope own_calls(*gpu);
  std::size_t keep = 0;
  std::uint64_t kept = 0;
  while (keep < usable && kept < bytes) kept += pieces[keep++].bytes;
  if (keep < usable) {
    capture_info capture;
    call_result answer = gpu->stream_capture(stream, &capture);
    if (answer.ok() && capture.status != capture_status::none) {
      return error{
          error_code::not_permitted,
          "shrinking '" + options.name + "': its stream captures, and what a graph uses must stay"};
    }
    event_handle event = nullptr;
    if (answer.ok()) answer = events.get(&event);
    if (answer.ok()) {
      answer = gpu->event_record(event, stream);
      if (!answer.ok()) events.put(event);
    }
    if (!answer.ok()) return to_error(answer, "shrinking '" + options.name + "'");
    const auto until = std::make_shared<fence>(events, event);
    for (std::size_t i = keep; i < usable; ++i) pieces[i].until = until;
    usable = keep;
    usable_bytes = kept;
  }
  give_back();
  return {};
}

// The face
// ----------------------------------------------------------------------------------------------

result<growable_memory> growable_memory::create(std::shared_ptr<driver> gpu,
                                                std::uint64_t max_bytes_, stream_handle stream,
                                                growable_options options) {
  if (gpu == nullptr) return error{error_code::invalid_argument, "growable_memory: no driver"};
  if (max_bytes_ == 0)
    return error{error_code::invalid_argument,
                 "growable_memory: no bytes to reserve addresses for"};
  const device_info& info = gpu->info();
  const std::uint64_t granularity = !info.virtual_memory ? 0
                                    : options.location == memory_location::device
                                        ? info.granularity
                                        : info.host_granularity;
  if (granularity == 0) {
    return error{error_code::not_supported,
                 "growable_memory: " + info.name + " has no virtual memory management for " +
                     (options.location == memory_location::device ? "device" : "host") + " memory"};
  }
  if (max_bytes_ > millpond::max_bytes) {
    return error{error_code::out_of_memory, "growable_memory: " + std::to_string(max_bytes_) +
                                                " bytes is more than any device has"};
  }
  auto made = std::make_unique<inside>(std::move(gpu), std::move(options), stream);
  made->granularity = granularity;
  const std::uint64_t reserved = align_up(max_bytes_, granularity);
  const own_calls_scope own_calls(*made->gpu);
  if (const call_result answer = made->gpu->address_reserve(
          &made->base, reserved, std::max<std::uint64_t>(granularity, 2 * MiB));
      !answer.ok()) {
    return to_error(answer, "reserving " + format_bytes(reserved) + " of addresses for '" +
                                made->options.name + "'");
  }
  made->reserved = reserved;
  // "All at once", however large the number that says so.
  std::uint64_t& step = made->options.step_bytes;
  step = align_up(std::clamp<std::uint64_t>(step, 1, reserved), granularity);
  if (made->options.budget != nullptr)
    made->share = made->options.budget->join(made->options.name, {});
  return growable_memory(std::move(made));
}

growable_memory::growable_memory(std::unique_ptr<inside> state) noexcept
    : state_(std::move(state)) {}
growable_memory::growable_memory(growable_memory&& other) noexcept = default;
growable_memory& growable_memory::operator=(growable_memory&& other) noexcept {
  if (this != &other) {
    growable_memory old(std::move(*this));
    state_ = std::move(other.state_);
  }
  return *this;
}

// Everything waits for the stream; then nothing runs on any piece. What the driver refuses is left
// to it, counted by the budget, and said.
growable_memory::~growable_memory() {
  if (state_ == nullptr || state_->forked() || !state_->gpu->alive()) return;
  const auto ended = state_->end();
  const std::uint64_t left = state_->held_bytes();
  if (left == 0 || !state_->gpu->alive()) return;
  if (state_->share != nullptr) state_->share->leave_to_driver(left);
  try {
    const error why =
        ended ? error{error_code::driver_failure, "cuMemRelease failed twice"} : ended.error();
    default_error_sink()(
        {why.code, "'" + state_->options.name + "' leaves " + format_bytes(left) +
                       " to the driver, in use until its context ends: " + why.message});
  } catch (const std::bad_alloc&) {
    // No host memory to say it with.
  }
}

result<void> growable_memory::inside::end() {
  if (usable > 0) {
    result<void> shrunk = shrink(0);
    if (!shrunk && shrunk.error().code != error_code::not_permitted) shrunk = shrink(0);
    if (!shrunk) return shrunk;
  }
  const own_calls_scope own_calls(*gpu);
  while (!pieces.empty()) {
    if (const auto& until = pieces.back().until; until != nullptr && !until->passed) {
      const call_result waited = insist([&] { return gpu->event_synchronize(until->event); });
      if (!waited.ok()) return to_error(waited, "waiting for its stream");
      until->passed = true;
    }
    if (!drop_last()) return error{error_code::driver_failure, "cuMemUnmap failed twice"};
  }
  release_all();
  static_cast<void>(insist([&] { return gpu->address_free(base, reserved); }));
  for (const event_handle e : events.take_all())
    static_cast<void>(insist([&] { return gpu->event_destroy(e); }));
  return {};
}

device_address growable_memory::address() const noexcept {
  return state_ == nullptr ? 0 : state_->base;
}
std::uint64_t growable_memory::max_bytes() const noexcept {
  return state_ == nullptr ? 0 : state_->reserved;
}
std::uint64_t growable_memory::bytes() const noexcept {
  return state_ == nullptr ? 0 : state_->usable_bytes;
}
std::uint64_t growable_memory::retired_bytes() const noexcept {
  return state_ == nullptr ? 0 : state_->total - state_->usable_bytes;
}
std::uint64_t growable_memory::handles() const noexcept {
  return state_ == nullptr ? 0 : state_->pieces.size();
}
stream_handle growable_memory::stream() const noexcept {
  return state_->stream;
}
driver& growable_memory::gpu() const noexcept {
  return *state_->gpu;
}
const growable_options& growable_memory::options() const noexcept {
  return state_->options;
}
void growable_memory::set_stream(stream_handle stream) noexcept {
  state_->stream = stream;
}

result<void> growable_memory::grow(std::uint64_t bytes) {
  if (state_ == nullptr)
    return error{error_code::not_permitted, "a growable_memory that was moved from"};
  return state_->grow(bytes);
}
result<void> growable_memory::shrink(std::uint64_t bytes) {
  if (state_ == nullptr)
    return error{error_code::not_permitted, "a growable_memory that was moved from"};
  return state_->shrink(bytes);
}
std::uint64_t growable_memory::give_back() noexcept {
  if (state_ == nullptr || state_->forked()) return 0;
  const own_calls_scope own_calls(*state_->gpu);
  return state_->give_back();
}

}  // namespace millpond
