#include "millpond/staging.hpp"

#include <algorithm>
#include <cstring>
#include <system_error>

#include "base/bits.hpp"
#include "millpond/units.hpp"

namespace millpond {
namespace {

// The smallest chunk: a call to the driver costs some 2 us, in which the link moves as many bytes.
constexpr std::uint64_t least_chunk = 128 * KiB;
// How often a thread looks at another's progress before it yields: a chunk is put on the stream in microseconds.
constexpr unsigned looks_before_yield = 64;

}  // namespace

result<std::unique_ptr<staging>> staging::create(std::shared_ptr<driver> gpu, memory_resource& memory,
                                                 staging_options options) {
  if (gpu == nullptr) return error{error_code::invalid_argument, "staging: no driver"};
  if (memory.kind() != memory_kind::pinned) {
    return error{error_code::wrong_kind, std::string("staging: chunks must be pinned memory; this resource's is ") +
                                             to_string(memory.kind())};
  }
  if (options.chunk_bytes < 4 * KiB || options.chunk_bytes > GiB) {
    return error{error_code::invalid_argument, "staging: chunk_bytes is " + format_bytes(options.chunk_bytes) +
                                                   ", expected from 4 KiB to 1 GiB"};
  }
  if (options.threads == 0) options.threads = std::clamp(std::thread::hardware_concurrency() / 2, 1u, 8u);
  std::unique_ptr<staging> made(new staging(std::move(gpu), memory, options));
  if (auto ready = made->prepare(); !ready) return ready.error();
  return made;
}

staging::staging(std::shared_ptr<driver> gpu, memory_resource& memory, staging_options options)
    : gpu_(std::move(gpu)), memory_(memory), options_(options) {}

result<void> staging::prepare() {
  for (unsigned i = 0; i < 2 * options_.threads; ++i) {
    auto got = memory_.try_allocate(options_.chunk_bytes, default_alignment, nullptr);
    if (!got) return got.error();
    slots_.push_back(std::make_unique<slot>());
    slots_.back()->memory = static_cast<unsigned char*>(*got);
    if (const auto answer = gpu_->event_create(&slots_.back()->done); !answer.ok()) return to_error(answer, "staging: making an event");
  }
  try {
    for (unsigned i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {
    // Fewer threads are slower and no more: the caller works too.
  }
  return {};
}

staging::~staging() {
  ending_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& each : threads_) each.join();
  for (const auto& each : slots_) {
    if (each->pending) static_cast<void>(gpu_->event_synchronize(each->done));
    if (each->done != nullptr) static_cast<void>(gpu_->event_destroy(each->done));
    memory_.deallocate(each->memory, options_.chunk_bytes, nullptr);
  }
}

staging_statistics staging::statistics() const {
  const std::lock_guard turn(turn_);
  return statistics_;
}

result<void> staging::to_device(device_address to, const void* from, std::uint64_t bytes, stream_handle stream) {
  return move({direction::to_device, to, static_cast<unsigned char*>(const_cast<void*>(from)), bytes, stream});
}
result<void> staging::to_host(void* to, device_address from, std::uint64_t bytes, stream_handle stream) {
  return move({direction::to_host, from, static_cast<unsigned char*>(to), bytes, stream});
}

result<void> staging::move_plainly(const transfer& what) {
  const auto host = reinterpret_cast<device_address>(what.host);
  auto answer = what.way == direction::to_host ? gpu_->copy_async(host, what.device, what.bytes, what.stream)
                                               : gpu_->copy_async(what.device, host, what.bytes, what.stream);
  if (answer.ok()) answer = gpu_->stream_synchronize(what.stream);
  if (!answer.ok()) return to_error(answer, "staging: a plain copy");
  ++statistics_.transfers;
  ++statistics_.plain_transfers;
  statistics_.bytes += what.bytes;
  return {};
}

// Chunks of about a quarter of a thread's share, none over chunk_bytes. The first of each thread are small where data goes to the
// device, since the link waits for them; the last where it comes back, since the caller waits for their last byte.
void staging::cut(std::uint64_t bytes) {
  const std::uint64_t crew = options_.threads + 1;
  const std::uint64_t least = std::min(least_chunk, options_.chunk_bytes);
  const std::uint64_t full = std::clamp(align_up(divide_up(bytes, 4 * crew), 64 * KiB), least, options_.chunk_bytes);
  ends_.clear();
  std::vector<std::uint64_t> sizes;
  std::uint64_t left = bytes, small = least;
  while (left > 0) {
    const std::uint64_t size = std::min(left, std::min(small, full));
    sizes.push_back(size);
    left -= size;
    if (sizes.size() % crew == 0) small = std::min(2 * small, full);
  }
  if (now_.way == direction::to_host) std::ranges::reverse(sizes);
  std::uint64_t end = 0;
  for (const std::uint64_t size : sizes) ends_.push_back(end += size);
}

result<void> staging::move(const transfer& what) {
  if (what.bytes == 0) return {};
  if (what.host == nullptr || what.device == 0) return error{error_code::invalid_argument, "staging: a null address"};
  capture_info capture;
  if (const auto answer = gpu_->stream_capture(what.stream, &capture); !answer.ok()) {
    return to_error(answer, "staging: asking the stream");
  }
  if (capture.status != capture_status::none) {
    return error{error_code::not_permitted,
                 "staging: the stream captures; a replay would copy what the chunks hold then. Copy from pinned memory of your own"};
  }
  const std::lock_guard turn(turn_);
  if (what.bytes < options_.least_bytes) return move_plainly(what);
  now_ = what;
  cut(what.bytes);
  for (const auto& each : slots_) each->turns.store(0, std::memory_order_relaxed);
  next_.store(0, std::memory_order_relaxed);
  failed_.store(false, std::memory_order_relaxed);
  failure_ = {};
  crew_.store(0, std::memory_order_release);  // open: what is above is seen by who joins
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  // What comes back is put on the stream before anybody is awake, as far as there are slots.
  if (what.way == direction::to_host) {
    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(slots_.size(), ends_.size()) && !failed_.load(std::memory_order_relaxed); ++i) {
      if (const auto started = start(i); !started.ok()) {
        const std::lock_guard lock(failure_mutex_);
        failure_ = started;
        failed_.store(true, std::memory_order_relaxed);
      }
    }
  }
  const std::uint64_t own = take_part();
  // Nobody joins any more; those who are in it finish their chunk.
  std::uint32_t at_work = crew_.fetch_or(closed, std::memory_order_acquire);
  for (unsigned looks = 0; (at_work & ~closed) != 0; at_work = crew_.load(std::memory_order_acquire)) {
    if (++looks > looks_before_yield) std::this_thread::yield();
  }
  ++statistics_.transfers;
  statistics_.bytes += what.bytes;
  statistics_.chunks += ends_.size();
  statistics_.chunks_of_caller += own;
  if (!failure_.ok()) return to_error(failure_, "staging " + format_bytes(what.bytes));
  return {};
}

void staging::work() {
  static_cast<void>(gpu_->bind_thread());
  std::uint32_t seen = 0;
  while (!ending_.load(std::memory_order_relaxed)) {
    for (unsigned looks = 0; round_.load(std::memory_order_acquire) == seen && looks < options_.looks_before_sleep; ++looks) {
      std::this_thread::yield();
    }
    round_.wait(seen, std::memory_order_acquire);
    seen = round_.load(std::memory_order_acquire);
    std::uint32_t crew = crew_.load(std::memory_order_relaxed);
    while ((crew & closed) == 0 && !crew_.compare_exchange_weak(crew, crew + 1, std::memory_order_acquire, std::memory_order_relaxed)) {
    }
    if ((crew & closed) != 0) continue;  // woken too late: it is done without this thread
    static_cast<void>(take_part());
    crew_.fetch_sub(1, std::memory_order_release);
  }
}

// Moves chunks until there are none. Answers how many.
std::uint64_t staging::take_part() {
  std::uint64_t moved = 0;
  while (!failed_.load(std::memory_order_relaxed)) {
    const std::uint64_t chunk = next_.fetch_add(1, std::memory_order_relaxed);
    if (chunk >= ends_.size()) break;
    const call_result answer = now_.way == direction::to_device ? fill(chunk) : empty(chunk);
    ++moved;
    if (answer.ok()) continue;
    const std::lock_guard lock(failure_mutex_);
    if (failure_.ok()) failure_ = answer;
    failed_.store(true, std::memory_order_relaxed);
  }
  return moved;
}

// Until `turn` chunks have gone through the slot. False where another thread failed, whose chunk never comes.
bool staging::wait_for_turn(const slot& s, std::uint64_t turn) const noexcept {
  for (unsigned looks = 0; s.turns.load(std::memory_order_acquire) != turn; ++looks) {
    if (failed_.load(std::memory_order_relaxed)) return false;
    if (looks > looks_before_yield) std::this_thread::yield();
  }
  return true;
}

// Puts a chunk's copy on the stream, through its slot, which is this thread's to use.
call_result staging::start(std::uint64_t chunk) {
  slot& s = *slots_[chunk % slots_.size()];
  const std::uint64_t at = chunk == 0 ? 0 : ends_[chunk - 1], bytes = ends_[chunk] - at;
  const auto pinned = reinterpret_cast<device_address>(s.memory);
  if (now_.way == direction::to_host && s.pending) {  // of an earlier transfer to the device
    if (const auto waited = gpu_->event_synchronize(s.done); !waited.ok()) return waited;
    s.pending = false;
  }
  const auto copied = now_.way == direction::to_device ? gpu_->copy_async(now_.device + at, pinned, bytes, now_.stream)
                                                       : gpu_->copy_async(pinned, now_.device + at, bytes, now_.stream);
  if (!copied.ok()) return copied;
  s.pending = true;
  if (const auto recorded = gpu_->event_record(s.done, now_.stream); !recorded.ok()) {
    static_cast<void>(gpu_->stream_synchronize(now_.stream));  // nothing else would tell when the slot is free
    s.pending = false;
    return recorded;
  }
  s.turns.store(chunk / slots_.size() + 1, std::memory_order_release);
  return {};
}

call_result staging::fill(std::uint64_t chunk) {
  slot& s = *slots_[chunk % slots_.size()];
  if (!wait_for_turn(s, chunk / slots_.size())) return {};
  if (s.pending) {
    if (const auto waited = gpu_->event_synchronize(s.done); !waited.ok()) return waited;
  }
  const std::uint64_t at = chunk == 0 ? 0 : ends_[chunk - 1];
  std::memcpy(s.memory, now_.host + at, ends_[chunk] - at);
  return start(chunk);
}

call_result staging::empty(std::uint64_t chunk) {
  slot& s = *slots_[chunk % slots_.size()];
  if (!wait_for_turn(s, chunk / slots_.size() + 1)) return {};
  if (const auto waited = gpu_->event_synchronize(s.done); !waited.ok()) return waited;
  s.pending = false;
  const std::uint64_t at = chunk == 0 ? 0 : ends_[chunk - 1];
  std::memcpy(now_.host + at, s.memory, ends_[chunk] - at);
  const std::uint64_t next = chunk + slots_.size();
  return next < ends_.size() ? start(next) : call_result{};
}

}  // namespace millpond
