// Two threads of the canary that hand each other blocks: one allocates on a stream and has
// identities written, the other has them checked on the same stream and frees them, half of the
// time by a cache handle. So blocks go home between the caches of one stream, in both directions,
// at any speed of the two.
//
// The stream goes with work pending and is made anew when all that was handed over has been freed:
// who frees names a stream only while blocks of it are his.
#pragma once
#include <atomic>
#include <mutex>
#include <optional>
#include <vector>

#include "base/random.hpp"
#include "bench/support/canary.hpp"
#include "millpond/base/units.hpp"
#include "millpond/pool/pool.hpp"

namespace millpond::canary {

// From one thread to another: batches of blocks of one stream, at most a few. Any two threads.
class handover {
 public:
  struct batch {
    stream_handle stream = nullptr;
    std::uint64_t generation = 0;  // of the stream: its handle may come back for another
    std::vector<held> blocks;
  };
  [[nodiscard]] bool full() const noexcept {
    return given_.load(std::memory_order_relaxed) - taken_.load(std::memory_order_relaxed) >= 8;
  }
  // All that was given has been taken and freed.
  [[nodiscard]] bool done() const noexcept {
    return given_.load(std::memory_order_relaxed) == freed_.load(std::memory_order_acquire);
  }
  void give(batch what) {
    const std::lock_guard lock(mutex_);
    batches_.push_back(std::move(what));
    given_.fetch_add(1, std::memory_order_relaxed);
  }
  [[nodiscard]] std::optional<batch> take() {
    const std::lock_guard lock(mutex_);
    if (batches_.empty()) return std::nullopt;
    batch out = std::move(batches_.front());
    batches_.erase(batches_.begin());
    taken_.fetch_add(1, std::memory_order_relaxed);
    return out;
  }
  // The last batch that was taken is freed, and its stream named no more.
  void freed() noexcept { freed_.fetch_add(1, std::memory_order_release); }

 private:
  std::mutex mutex_;
  std::vector<batch> batches_;
  std::atomic<std::uint64_t> given_{0}, taken_{0}, freed_{0};
};

class pen_pal {
 public:
  pen_pal(driver& gpu, pool& memory, identity_report* report, totals& sums, handover& out,
          handover& in, std::uint64_t seed)
      : gpu_(gpu),
        memory_(memory),
        report_(report),
        sums_(sums),
        out_(out),
        in_(in),
        pick_(seed),
        identity_(seed << 40 | std::uint64_t{1} << 39) {
    static_cast<void>(gpu_.stream_create(&stream_));
  }

  void round() {
    if (!out_.full()) write();
    read();
    if (pick_.chance(0.01)) renew();
  }
  // The other thread takes what is left for it, and this one what is left here, until both say so.
  void read_all() {
    while (read()) {
    }
  }
  // When both have read all: the other's blocks of this stream are freed.
  void finish() {
    cache_.reset();
    read_cache_.reset();
    static_cast<void>(gpu_.stream_synchronize(stream_));
    static_cast<void>(gpu_.stream_destroy(stream_));
  }

 private:
  void launch(call_result answer) {
    if (!answer.ok()) sums_.failures.fetch_add(1);
    sums_.launches.fetch_add(1, std::memory_order_relaxed);
  }
  [[nodiscard]] void* allocate(std::uint64_t bytes) {
    if (cache_) {
      try {
        return cache_->allocate(bytes);
      } catch (const std::bad_alloc&) {
        return nullptr;
      }
    }
    const auto got = memory_.try_allocate(bytes, default_alignment, stream_);
    return got ? *got : nullptr;
  }
  void write() {
    if (pick_.chance(0.05))
      cache_.reset();
    else if (!cache_ && pick_.chance(0.05))
      cache_.emplace(memory_.cache(stream_));
    handover::batch made{stream_, generation_, {}};
    std::vector<identity_block> blocks;
    // Mostly few sizes, as programs have them, so that what comes back is wanted.
    static constexpr std::uint64_t sizes[] = {4 * KiB, 64 * KiB, 256 * KiB, 1 * MiB};
    for (std::uint64_t n = pick_.between(4, 32); n > 0; --n) {
      const std::uint64_t bytes = pick_.chance(0.1) ? pick_.log_uniform(256, 96 * KiB)
                                                    : sizes[pick_.below(pick_.chance(0.1) ? 4 : 3)];
      void* const ptr = allocate(bytes);
      if (ptr == nullptr) {
        sums_.failures.fetch_add(1);
        continue;
      }
      made.blocks.push_back({ptr, bytes, ++identity_});
      blocks.push_back(block_of(made.blocks.back()));
    }
    if (blocks.empty()) return;
    launch(gpu_.identity_write(blocks, stream_));
    sums_.operations.fetch_add(blocks.size(), std::memory_order_relaxed);
    out_.give(std::move(made));
  }
  bool read() {
    const auto got = in_.take();
    if (!got) return false;
    std::vector<identity_block> blocks;
    for (const held& h : got->blocks) blocks.push_back(block_of(h));
    launch(gpu_.identity_check(blocks, report_, got->stream));
    // A handle of a stream that went is let go: a call by it would name that.
    if (read_generation_ != got->generation) read_cache_.reset();
    read_generation_ = got->generation;
    if (!read_cache_ && pick_.chance(0.5))
      read_cache_.emplace(memory_.cache(got->stream));
    else if (pick_.chance(0.02))
      read_cache_.reset();
    for (const held& h : got->blocks) {
      if (read_cache_)
        read_cache_->deallocate(h.ptr, h.bytes);
      else
        memory_.deallocate(h.ptr, h.bytes, got->stream);
    }
    sums_.by_other_thread.fetch_add(got->blocks.size(), std::memory_order_relaxed);
    sums_.operations.fetch_add(got->blocks.size(), std::memory_order_relaxed);
    in_.freed();
    return true;
  }
  void renew() {
    if (!out_.done()) return;
    cache_.reset();
    static_cast<void>(gpu_.spin(50'000, stream_));
    static_cast<void>(gpu_.stream_destroy(stream_));
    static_cast<void>(gpu_.stream_create(&stream_));
    ++generation_;
    sums_.streams_made.fetch_add(1, std::memory_order_relaxed);
  }

  driver& gpu_;
  pool& memory_;
  identity_report* report_;
  totals& sums_;
  handover& out_;
  handover& in_;
  millpond::random pick_;
  std::uint64_t identity_;
  stream_handle stream_ = nullptr;
  std::uint64_t generation_ = 1;
  std::uint64_t read_generation_ = 0;
  std::optional<pool::cache_handle> cache_, read_cache_;
};

}  // namespace millpond::canary
