#include "millpond/pinned/staging.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#include <emmintrin.h>
#endif

#include "base/bits.hpp"
#include "base/fork.hpp"
#include "base/threads.hpp"
#include "driver/own_calls.hpp"
#include "millpond/base/units.hpp"
#include "millpond/detail/allocate_and_wait.hpp"
#include "resource/quiet_stream.hpp"
#include "resource/wait.hpp"

namespace millpond {
namespace {

// What one thread moves at a time, at least and at most: it takes 2 to 30 us at the 8 GB/s of one
// core (H200's host, 2026-11-30).
constexpr std::uint64_t least_piece = 16 * KiB, largest_piece = 256 * KiB;
constexpr std::uint64_t small_buffer_step =
    64 * KiB;  // buffers under four of the largest pieces are multiples of this
// The smallest copy that is worth its fixed cost while others can follow: each copy costs some 8 us
// beside its bytes, as long as 440 KiB are on the link (the slope over the number of chunks of 1 to
// 4 MiB, bench/results/h200/c9a557579c4f/staging.json of 2026-11-30).
constexpr std::uint64_t least_copy = 512 * KiB;
// How often a thread looks at another's progress before it yields: a piece is moved in
// microseconds.
constexpr unsigned looks_before_yield = 256;

// Transfers up to this are held by the caches of the cores that write them: with memcpy alone 16
// MiB went at 52% of the link's rate, 64 MiB at 77% and 256 MiB at 90%; demoted at 84%, 86% and 81%
// (H200's host, twelve cores of 2 MiB, 2026-11-30).
constexpr std::uint64_t held_by_cores = 128 * MiB;

#if defined(__x86_64__)

bool demotes() noexcept {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c & (1u << 25)) != 0;
}

// `to` lies on 16 bytes.
void copy_past_caches(unsigned char* to, const unsigned char* from, std::uint64_t bytes) noexcept {
  const std::uint64_t whole = bytes / 64 * 64;
  for (std::uint64_t at = 0; at < whole; at += 64) {
    const auto* const source = reinterpret_cast<const __m128i*>(from + at);
    auto* const target = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1),
                  c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  std::memcpy(to + whole, from + whole, bytes - whole);
  _mm_sfence();  // before who reads the mark tells the device to read these
}

// In stretches that the innermost cache holds, so that the lines are still at hand.
void copy_demoted(unsigned char* to, const unsigned char* from, std::uint64_t bytes) noexcept {
  constexpr std::uint64_t stretch = 8 * KiB;
  for (std::uint64_t at = 0; at < bytes; at += stretch) {
    const std::uint64_t here = std::min(stretch, bytes - at);
    std::memcpy(to + at, from + at, here);
    for (std::uint64_t line = 0; line < here; line += 64) {
      asm volatile(".byte 0x0f, 0x1c, 0x00" : : "a"(to + at + line) : "memory");  // cldemote (%rax)
    }
  }
}

#else

bool demotes() noexcept {
  return false;
}
void copy_past_caches(unsigned char* to, const unsigned char* from, std::uint64_t bytes) noexcept {
  std::memcpy(to, from, bytes);
}
void copy_demoted(unsigned char* to, const unsigned char* from, std::uint64_t bytes) noexcept {
  std::memcpy(to, from, bytes);
}

#endif

}  // namespace

result<std::unique_ptr<staging>> staging::create(std::shared_ptr<driver> gpu,
                                                 memory_resource& memory, staging_options options) {
  if (gpu == nullptr) return error{error_code::invalid_argument, "staging: no driver"};
  if (memory.kind() != memory_kind::pinned) {
    return error{error_code::wrong_kind,
                 std::string("staging: its buffer must be pinned memory; this resource's is ") +
                     to_string(memory.kind())};
  }
  if (options.buffer_bytes < 64 * KiB || options.buffer_bytes > 4 * GiB) {
    return error{error_code::invalid_argument, "staging: buffer_bytes is " +
                                                   format_bytes(options.buffer_bytes) +
                                                   ", expected from 64 KiB to 4 GiB"};
  }
  options.buffer_bytes =
      align_up(options.buffer_bytes,
               options.buffer_bytes < 4 * largest_piece ? small_buffer_step : largest_piece);
  if (options.threads == 0)
    options.threads = std::clamp(std::thread::hardware_concurrency() * 3 / 4, 1u, 12u);
  options.threads = std::min(options.threads, most_threads_of_a_call);
  std::unique_ptr<staging> made(new staging(std::move(gpu), memory, options));
  if (auto ready = made->prepare(); !ready) return ready.error();
  return made;
}

staging::staging(std::shared_ptr<driver> gpu, memory_resource& memory, staging_options options)
    : gpu_(std::move(gpu)), memory_(memory), options_(options), born_in_fork_(fork_count()) {}

bool staging::forked() const noexcept {
  return born_in_fork_ != fork_count();
}

result<void> staging::prepare() {
  auto got = detail::allocate_and_wait(memory_, options_.buffer_bytes, default_alignment, nullptr);
  if (!got) return got.error();
  buffer_ = static_cast<unsigned char*>(*got);
  const own_calls_scope own_calls(*gpu_);
  marks_ = std::make_unique<mark[]>(options_.buffer_bytes / least_piece);
  for (flight& each : flights_) {
    if (const auto answer = gpu_->event_create(&each.done); !answer.ok())
      return to_error(answer, "staging: making an event");
  }
  try {
    for (unsigned i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { work(); });
  } catch (const std::exception&) {
    // Fewer threads are slower and no more: the caller works too.
  }
  return {};
}

staging::~staging() {
  if (forked()) {  // the threads did not come along, and the buffer is the parent's
    for (std::thread& each : threads_) each.detach();
    return;
  }
  ending_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& each : threads_) each.join();
  const own_calls_scope own_calls(*gpu_);
  if (!wait_for_copies().ok()) static_cast<void>(wait_for_device(*gpu_));
  for (const flight& each : flights_) {
    if (each.done != nullptr) static_cast<void>(gpu_->event_destroy(each.done));
  }
  if (buffer_ != nullptr) memory_.deallocate(buffer_, options_.buffer_bytes, nullptr);
}

staging_statistics staging::statistics() const {
  if (forked()) return {};  // whoever held the lock did not come along
  const std::lock_guard turn(turn_);
  return statistics_;
}

result<void> staging::to_device(device_address to, const void* from, std::uint64_t bytes,
                                stream_handle stream) {
  return move({direction::to_device, to, static_cast<unsigned char*>(const_cast<void*>(from)),
               bytes, stream});
}
result<void> staging::to_host(void* to, device_address from, std::uint64_t bytes,
                              stream_handle stream) {
  return move({direction::to_host, from, static_cast<unsigned char*>(to), bytes, stream});
}

result<void> staging::move_plainly(const transfer& what) {
  const auto host = reinterpret_cast<device_address>(what.host);
  auto answer = what.way == direction::to_host
                    ? gpu_->copy_async(host, what.device, what.bytes, what.stream)
                    : gpu_->copy_async(what.device, host, what.bytes, what.stream);
  if (answer.ok()) answer = gpu_->stream_synchronize(what.stream);
  if (!answer.ok()) return to_error(answer, "staging: a plain copy");
  ++statistics_.transfers;
  ++statistics_.plain_transfers;
  statistics_.bytes += what.bytes;
  return {};
}

result<void> staging::move(const transfer& what) {
  if (forked()) return refused_in_child("staging");
  if (what.bytes == 0) return {};
  if (what.host == nullptr || what.device == 0)
    return error{error_code::invalid_argument, "staging: a null address"};
  if (what.bytes > max_bytes) {
    return error{error_code::invalid_argument,
                 "staging: " + std::to_string(what.bytes) + " bytes, more than any device has"};
  }
  const std::lock_guard turn(turn_);
  if (detail::of_another_context(*gpu_, what.stream)) {
    return error{error_code::invalid_argument,
                 "staging: the default stream is another context's, since that is current on this "
                 "thread; make the device's context current, or name a stream"};
  }
  const own_calls_scope own_calls(*gpu_);  // another thread's capture is left alone
  capture_info capture;
  if (const auto answer = gpu_->stream_capture(what.stream, &capture); !answer.ok()) {
    return to_error(answer, "staging: asking the stream");
  }
  if (capture.status != capture_status::none) {
    return error{error_code::not_permitted,
                 "staging: the stream captures; a replay would copy what the buffer holds then. "
                 "Copy from pinned memory of your own"};
  }
  if (what.bytes < options_.least_bytes) return move_plainly(what);
  const bool back = what.way == direction::to_host;
  if (back) {
    // What an earlier transfer left on the link ends before: on the same stream anyway, and on
    // another it is waited for.
    if (const auto waited = wait_for_copies(); !waited.ok())
      return to_error(waited, "staging: an earlier copy");
  }
  now_ = what;
  writes_ = options_.writes;
  if (writes_ == buffer_writes::chosen) {
    static const bool can_demote = demotes();
    writes_ = what.bytes > held_by_cores ? buffer_writes::plain
              : can_demote               ? buffer_writes::demoted
                                         : buffer_writes::past_caches;
  }
  // Some eight pieces a thread, so that all end at about the same time.
  const std::uint64_t share = std::bit_floor(
      std::max<std::uint64_t>(1, what.bytes / (std::uint64_t{8} * (options_.threads + 1))));
  // None goes around the buffer's end: its size is a multiple of theirs, and so is the place where
  // a transfer begins.
  const std::uint64_t largest =
      options_.buffer_bytes < 4 * largest_piece ? small_buffer_step : largest_piece;
  piece_bytes_ =
      std::min({std::max(share, least_piece), largest, std::bit_floor(options_.buffer_bytes / 4)});
  base_ = align_up(next_place_, piece_bytes_);
  next_place_ = base_ + pieces() * piece_bytes_;
  limit_.store(
      back ? base_
           : (in_flight_ == 0 ? base_ : flights_[first_flight_].begin) + options_.buffer_bytes,
      std::memory_order_relaxed);
  next_.store(0, std::memory_order_relaxed);
  failed_.store(false, std::memory_order_relaxed);
  crew_.store(0, std::memory_order_release);  // open: what is above is seen by who joins
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  const call_result answer = back ? conduct_to_host() : conduct_to_device();
  if (!answer.ok()) failed_.store(true, std::memory_order_relaxed);
  // Nobody joins any more; those who are in it end at once.
  std::uint32_t at_work = crew_.fetch_or(closed, std::memory_order_acquire);
  for (unsigned looks = 0; (at_work & ~closed) != 0;
       at_work = crew_.load(std::memory_order_acquire)) {
    if (++looks > looks_before_yield) std::this_thread::yield();
  }
  ++statistics_.transfers;
  statistics_.bytes += what.bytes;
  statistics_.pieces += pieces();
  if (!answer.ok()) return to_error(answer, "staging " + format_bytes(what.bytes));
  return {};
}

// Bytes [from, end) of the transfer, which do not go around the end of the buffer.
call_result staging::put_on_stream(std::uint64_t from, std::uint64_t end) {
  flight& f = flights_[(first_flight_ + in_flight_) % flights_.size()];
  f.begin = base_ + from;
  f.end = base_ + end;
  const auto pinned = reinterpret_cast<device_address>(buffer_ + f.begin % options_.buffer_bytes);
  const auto copied = now_.way == direction::to_device
                          ? gpu_->copy_async(now_.device + from, pinned, end - from, now_.stream)
                          : gpu_->copy_async(pinned, now_.device + from, end - from, now_.stream);
  if (!copied.ok()) return copied;
  ++statistics_.copies;
  if (const auto recorded = gpu_->event_record(f.done, now_.stream); !recorded.ok()) {
    static_cast<void>(gpu_->stream_synchronize(
        now_.stream));  // nothing else would tell when its part of the buffer is free
    return recorded;
  }
  ++in_flight_;
  return {};
}

// Copies of one stream end in their order, and those of an earlier transfer were put before.
// passed: where the last that is done ended; unchanged where none was.
call_result staging::look_at_copies(std::uint64_t& passed) {
  while (in_flight_ > 0) {
    const flight& first = flights_[first_flight_];
    const auto asked = gpu_->event_query(first.done);
    if (asked.status == driver_status::not_ready) return {};
    if (!asked.ok()) return asked;
    passed = first.end;
    first_flight_ = (first_flight_ + 1) % flights_.size();
    --in_flight_;
  }
  return {};
}

call_result staging::wait_for_copies() {
  while (in_flight_ > 0) {
    if (const auto waited = gpu_->event_synchronize(flights_[first_flight_].done); !waited.ok())
      return waited;
    first_flight_ = (first_flight_ + 1) % flights_.size();
    --in_flight_;
  }
  return {};
}

// Everything that is filled without a gap goes as one copy. The first goes early, since the link
// waits for it; while one copy is on the link and another behind it, more is filled, so that copies
// grow by themselves to what the threads are ahead of the link.
call_result staging::conduct_to_device() {
  const std::uint64_t all = pieces(), most = options_.buffer_bytes / 4;
  const std::uint64_t first = std::clamp(now_.bytes / 32, piece_bytes_, least_copy);
  std::uint64_t filled = 0, sent = 0, worth = first;  // pieces, bytes, bytes
  for (unsigned idle = 0; sent < now_.bytes;) {
    bool happened = false;
    std::uint64_t passed = 0;
    if (const auto looked = look_at_copies(passed); !looked.ok()) return looked;
    while (filled < all && mark_of(filled).load(std::memory_order_acquire) == marked(filled))
      ++filled;
    const std::uint64_t there = std::min(filled * piece_bytes_, now_.bytes);
    const std::uint64_t before_end =
        options_.buffer_bytes - (base_ + sent) % options_.buffer_bytes;  // the buffer's
    const std::uint64_t next = std::min({there - sent, before_end, most});
    const bool last = there == now_.bytes || next == before_end || next == most;
    if (next > 0 && in_flight_ < flights_.size() &&
        (last || next >= (in_flight_ == 0 ? first : worth)) && (in_flight_ < 2 || last)) {
      if (const auto put = put_on_stream(sent, sent + next); !put.ok()) return put;
      sent += next;
      worth = std::max(worth, next);
      happened = true;
    }
    if (passed != 0 || happened) {
      limit_.store(
          (in_flight_ == 0 ? base_ + sent : flights_[first_flight_].begin) + options_.buffer_bytes,
          std::memory_order_release);
      idle = 0;
    } else if (!help() && ++idle > looks_before_yield) {
      std::this_thread::yield();
    }
  }
  return {};
}

// Copies are put ahead as far as the buffer goes, and tell what has landed. They are large first
// and small at last: each is emptied while the next is on the link, and the caller waits for the
// last.
call_result staging::conduct_to_host() {
  const std::uint64_t all = pieces(), most = options_.buffer_bytes / 4;
  std::uint64_t asked = 0, emptied = 0;  // bytes, pieces
  for (unsigned idle = 0; emptied < all;) {
    bool happened = false;
    while (asked < now_.bytes && in_flight_ < flights_.size()) {
      const std::uint64_t left = now_.bytes - asked;
      const std::uint64_t before_end =
          options_.buffer_bytes - (base_ + asked) % options_.buffer_bytes;
      std::uint64_t next =
          std::min({std::max(align_up(left / 4, piece_bytes_), std::max(least_copy, piece_bytes_)),
                    left, before_end, most});
      if (next != left) next -= next % piece_bytes_;
      if (base_ + asked + next > base_ + emptied * piece_bytes_ + options_.buffer_bytes) break;
      if (const auto put = put_on_stream(asked, asked + next); !put.ok()) return put;
      asked += next;
      happened = true;
    }
    std::uint64_t landed = 0;
    if (const auto looked = look_at_copies(landed); !looked.ok()) return looked;
    if (landed != 0) {
      limit_.store(landed, std::memory_order_release);
      happened = true;
    }
    while (emptied < all && mark_of(emptied).load(std::memory_order_acquire) == marked(emptied)) {
      ++emptied;
      happened = true;
    }
    if (happened)
      idle = 0;
    else if (!help() && ++idle > looks_before_yield)
      std::this_thread::yield();
  }
  return {};
}

// The caller moves a piece where nobody else is there to do it. False where it did nothing.
bool staging::help() {
  if (crew_.load(std::memory_order_relaxed) > 1) return false;
  std::uint64_t piece = next_.load(std::memory_order_relaxed);
  if (piece >= pieces() || base_ + end_of(piece) > limit_.load(std::memory_order_relaxed))
    return false;  // only one that needs no waiting
  if (!next_.compare_exchange_strong(piece, piece + 1, std::memory_order_relaxed)) return false;
  ++statistics_.pieces_of_caller;
  return move_piece(piece);
}

void staging::work() {
  std::uint32_t seen = 0;
  while (!ending_.load(std::memory_order_relaxed)) {
    for (unsigned looks = 0;
         round_.load(std::memory_order_acquire) == seen && looks < options_.looks_before_sleep;
         ++looks) {
      std::this_thread::yield();
    }
    round_.wait(seen, std::memory_order_acquire);
    seen = round_.load(std::memory_order_acquire);
    std::uint32_t crew = crew_.load(std::memory_order_relaxed);
    while ((crew & closed) == 0 &&
           !crew_.compare_exchange_weak(crew, crew + 1, std::memory_order_acquire,
                                        std::memory_order_relaxed)) {
    }
    if ((crew & closed) != 0) continue;  // woken too late: it is done without this thread
    for (const std::uint64_t all = pieces();;) {
      const std::uint64_t piece = next_.fetch_add(1, std::memory_order_relaxed);
      if (piece >= all || !move_piece(piece)) break;
    }
    crew_.fetch_sub(1, std::memory_order_release);
  }
}

// Fills a piece of the buffer when it is free, or empties it when it has landed. False where the
// transfer has failed.
bool staging::move_piece(std::uint64_t piece) {
  const std::uint64_t from = piece * piece_bytes_, end = end_of(piece);
  for (unsigned looks = 0; limit_.load(std::memory_order_acquire) < base_ + end; ++looks) {
    if (failed_.load(std::memory_order_relaxed)) return false;
    if (looks > looks_before_yield) std::this_thread::yield();
  }
  unsigned char* const pinned = buffer_ + (base_ + from) % options_.buffer_bytes;
  if (now_.way == direction::to_host)
    std::memcpy(now_.host + from, pinned, end - from);
  else if (writes_ == buffer_writes::demoted)
    copy_demoted(pinned, now_.host + from, end - from);
  else if (writes_ == buffer_writes::past_caches)
    copy_past_caches(pinned, now_.host + from, end - from);
  else
    std::memcpy(pinned, now_.host + from, end - from);
  mark_of(piece).store(marked(piece), std::memory_order_release);
  return true;
}

}  // namespace millpond
