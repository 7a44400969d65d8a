#include "millpond/staging.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <system_error>

#include "base/bits.hpp"
#include "millpond/units.hpp"

namespace millpond {
namespace {

// The smallest chunk: a call to the driver costs some 2 us, in which the link moves as many bytes.
constexpr std::uint64_t least_chunk = 128 * KiB;
// How often a thread looks at another's progress before it yields: a chunk is put on the stream in microseconds.
constexpr unsigned looks_before_yield = 256;

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
  // Room for all that a transfer notes: nothing may throw while threads are at it.
  on_link_.reserve(slots_.size());
  filled_next_.resize(slots_.size());
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
  for (const auto& [each, turn] : on_link_) static_cast<void>(gpu_->event_synchronize(each->done));
  for (const auto& each : slots_) {
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
  // Chunks of an earlier transfer to the device may still be on the link: their slots are free when they have passed.
  const bool back = what.way == direction::to_host;
  for (const auto& each : slots_) {
    each->moved.store(0, std::memory_order_relaxed);
    each->ready.store(back ? 0 : 1, std::memory_order_relaxed);
  }
  for (auto& [each, next_turn] : on_link_) {
    each->ready.store(0, std::memory_order_relaxed);
    next_turn = 1;
  }
  next_.store(0, std::memory_order_relaxed);
  failed_.store(false, std::memory_order_relaxed);
  crew_.store(0, std::memory_order_release);  // open: what is above is seen by who joins
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  const call_result answer = back ? conduct_to_host() : conduct_to_device();
  if (!answer.ok()) failed_.store(true, std::memory_order_relaxed);
  // Nobody joins any more; those who are in it end at once.
  std::uint32_t at_work = crew_.fetch_or(closed, std::memory_order_acquire);
  for (unsigned looks = 0; (at_work & ~closed) != 0; at_work = crew_.load(std::memory_order_acquire)) {
    if (++looks > looks_before_yield) std::this_thread::yield();
  }
  ++statistics_.transfers;
  statistics_.bytes += what.bytes;
  statistics_.chunks += ends_.size();
  if (!answer.ok()) return to_error(answer, "staging " + format_bytes(what.bytes));
  return {};
}

call_result staging::put_on_stream(std::uint64_t chunk) {
  slot& s = *slots_[chunk % slots_.size()];
  const std::uint64_t at = begin_of(chunk), bytes = ends_[chunk] - at;
  const auto pinned = reinterpret_cast<device_address>(s.memory);
  const auto copied = now_.way == direction::to_device ? gpu_->copy_async(now_.device + at, pinned, bytes, now_.stream)
                                                       : gpu_->copy_async(pinned, now_.device + at, bytes, now_.stream);
  if (!copied.ok()) return copied;
  if (const auto recorded = gpu_->event_record(s.done, now_.stream); !recorded.ok()) {
    static_cast<void>(gpu_->stream_synchronize(now_.stream));  // nothing else would tell when the slot is free
    return recorded;
  }
  // To the device the turn after this one may begin when the copy is done; from it this turn has landed then.
  on_link_.emplace_back(&s, chunk / slots_.size() + (now_.way == direction::to_device ? 2 : 1));
  return {};
}

// Copies of one stream end in their order, and those of an earlier transfer were put before.
call_result staging::look_at_copies(bool& happened) {
  while (!on_link_.empty()) {
    const auto asked = gpu_->event_query(on_link_.front().first->done);
    if (asked.status == driver_status::not_ready) return {};
    if (!asked.ok()) return asked;
    on_link_.front().first->ready.store(on_link_.front().second, std::memory_order_release);
    on_link_.erase(on_link_.begin());
    happened = true;
  }
  return {};
}

// Puts chunks on the stream as they are filled, in whatever order.
call_result staging::conduct_to_device() {
  const std::uint64_t slots = slots_.size(), chunks = ends_.size();
  std::iota(filled_next_.begin(), filled_next_.end(), std::uint64_t{0});
  std::uint64_t left = chunks;
  for (unsigned idle = 0; left > 0;) {
    bool happened = false;
    for (std::uint64_t& chunk : filled_next_) {
      if (chunk >= chunks || slots_[chunk % slots]->moved.load(std::memory_order_acquire) != chunk / slots + 1) continue;
      if (const auto put = put_on_stream(chunk); !put.ok()) return put;
      chunk += slots;
      --left;
      happened = true;
    }
    if (happened) {
      idle = 0;
      continue;  // what is ready goes first
    }
    if (const auto looked = look_at_copies(happened); !looked.ok()) return looked;
    if (!happened && !help() && ++idle > looks_before_yield) std::this_thread::yield();
  }
  return {};
}

// Keeps every empty slot on the stream, and tells what has landed.
call_result staging::conduct_to_host() {
  const std::uint64_t slots = slots_.size(), chunks = ends_.size();
  // The slots' last copies, of an earlier transfer, end before these begin where the stream is the same; where not they are waited for.
  while (!on_link_.empty()) {
    if (const auto waited = gpu_->event_synchronize(on_link_.front().first->done); !waited.ok()) return waited;
    on_link_.erase(on_link_.begin());
  }
  std::uint64_t put = 0, emptied = 0;
  for (unsigned idle = 0; emptied < chunks;) {
    bool happened = false;
    while (put < chunks && (put < slots || slots_[put % slots]->moved.load(std::memory_order_acquire) >= put / slots)) {
      if (const auto answer = put_on_stream(put); !answer.ok()) return answer;
      ++put;
      happened = true;
      if (const auto looked = look_at_copies(happened); !looked.ok()) return looked;
    }
    if (const auto looked = look_at_copies(happened); !looked.ok()) return looked;
    while (emptied < put && slots_[emptied % slots]->moved.load(std::memory_order_acquire) > emptied / slots) {
      ++emptied;
      happened = true;
    }
    if (happened) idle = 0;
    else if (!help() && ++idle > looks_before_yield) std::this_thread::yield();
  }
  return {};
}

// The caller moves a chunk where nobody else is there to do it. False where it did nothing.
bool staging::help() {
  if (crew_.load(std::memory_order_relaxed) > 1) return false;
  std::uint64_t chunk = next_.load(std::memory_order_relaxed);
  if (chunk >= ends_.size()) return false;
  // Only one that needs no waiting.
  if (slots_[chunk % slots_.size()]->ready.load(std::memory_order_acquire) < chunk / slots_.size() + 1) return false;
  if (!next_.compare_exchange_strong(chunk, chunk + 1, std::memory_order_relaxed)) return false;
  ++statistics_.chunks_of_caller;
  return move_chunk(chunk);
}

void staging::work() {
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
    for (;;) {
      const std::uint64_t chunk = next_.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= ends_.size() || !move_chunk(chunk)) break;
    }
    crew_.fetch_sub(1, std::memory_order_release);
  }
}

// Fills a chunk when its slot is free, or empties it when it has landed. False where the transfer has failed.
bool staging::move_chunk(std::uint64_t chunk) {
  slot& s = *slots_[chunk % slots_.size()];
  const std::uint64_t turn = chunk / slots_.size() + 1, at = begin_of(chunk);
  for (unsigned looks = 0; s.ready.load(std::memory_order_acquire) < turn; ++looks) {
    if (failed_.load(std::memory_order_relaxed)) return false;
    if (looks > looks_before_yield) std::this_thread::yield();
  }
  if (now_.way == direction::to_device) std::memcpy(s.memory, now_.host + at, ends_[chunk] - at);
  else std::memcpy(now_.host + at, s.memory, ends_[chunk] - at);
  s.moved.store(turn, std::memory_order_release);
  return true;
}

}  // namespace millpond
