#include "millpond/staging.hpp"

#include <algorithm>
#include <cstring>
#include <system_error>

#include "base/bits.hpp"
#include "millpond/units.hpp"

namespace millpond {

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
    slots_.push_back({static_cast<unsigned char*>(*got), nullptr, false});
    if (const auto answer = gpu_->event_create(&slots_.back().done); !answer.ok()) return to_error(answer, "staging: making an event");
  }
  try {
    for (unsigned i = 0; i < options_.threads; ++i) threads_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error& why) {
    if (threads_.empty()) return error{error_code::not_permitted, std::string("staging: no thread: ") + why.what()};
  }
  return {};
}

staging::~staging() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  begin_.notify_all();
  for (std::thread& each : threads_) each.join();
  for (slot& each : slots_) {
    if (each.pending) static_cast<void>(gpu_->event_synchronize(each.done));
    if (each.done != nullptr) static_cast<void>(gpu_->event_destroy(each.done));
    memory_.deallocate(each.memory, options_.chunk_bytes, nullptr);
  }
}

staging_statistics staging::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

result<void> staging::to_device(device_address to, const void* from, std::uint64_t bytes, stream_handle stream) {
  return move({direction::to_device, to, static_cast<unsigned char*>(const_cast<void*>(from)), bytes, 0, stream});
}
result<void> staging::to_host(void* to, device_address from, std::uint64_t bytes, stream_handle stream) {
  return move({direction::to_host, from, static_cast<unsigned char*>(to), bytes, 0, stream});
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
  const bool back = what.way == direction::to_host;
  if (what.bytes < options_.least_bytes) {
    const auto host = reinterpret_cast<device_address>(what.host);
    auto answer = back ? gpu_->copy_async(host, what.device, what.bytes, what.stream)
                       : gpu_->copy_async(what.device, host, what.bytes, what.stream);
    if (answer.ok()) answer = gpu_->stream_synchronize(what.stream);
    if (!answer.ok()) return to_error(answer, "staging: a plain copy");
    const std::lock_guard lock(mutex_);
    ++statistics_.transfers;
    ++statistics_.plain_transfers;
    statistics_.bytes += what.bytes;
    return {};
  }
  std::unique_lock lock(mutex_);
  now_ = what;
  now_.chunks = divide_up(what.bytes, options_.chunk_bytes);
  next_ = 0;
  failure_ = {};
  working_ = static_cast<unsigned>(threads_.size());
  ++round_;
  begin_.notify_all();
  end_.wait(lock, [this] { return working_ == 0; });
  ++statistics_.transfers;
  statistics_.bytes += what.bytes;
  statistics_.chunks += now_.chunks;
  if (!failure_.ok()) return to_error(failure_, "staging " + format_bytes(what.bytes));
  return {};
}

void staging::work(unsigned number) {
  static_cast<void>(gpu_->bind_thread());
  std::uint64_t seen = 0;
  for (;;) {
    transfer t;
    {
      std::unique_lock lock(mutex_);
      begin_.wait(lock, [&] { return ending_ || round_ != seen; });
      if (ending_) return;
      seen = round_;
      t = now_;
    }
    const call_result answer = t.way == direction::to_device ? send(t, number) : receive(t, number);
    const std::lock_guard lock(mutex_);
    if (!answer.ok() && failure_.ok()) failure_ = answer;
    if (--working_ == 0) end_.notify_all();
  }
}

bool staging::next_chunk(const transfer& t, std::uint64_t& chunk, std::uint64_t& bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (next_ == t.chunks || !failure_.ok()) return false;
    chunk = next_++;
  }
  bytes = std::min(options_.chunk_bytes, t.bytes - chunk * options_.chunk_bytes);
  return true;
}

// Fills one chunk while the other is on the link.
call_result staging::send(const transfer& t, unsigned number) {
  std::uint64_t chunk = 0, bytes = 0;
  for (unsigned turn = 0; next_chunk(t, chunk, bytes); turn ^= 1) {
    slot& s = slots_[2 * number + turn];
    if (s.pending) {
      if (const auto waited = gpu_->event_synchronize(s.done); !waited.ok()) return waited;
    }
    const std::uint64_t at = chunk * options_.chunk_bytes;
    std::memcpy(s.memory, t.host + at, bytes);
    const auto copied = gpu_->copy_async(t.device + at, reinterpret_cast<device_address>(s.memory), bytes, t.stream);
    if (!copied.ok()) return copied;
    const auto recorded = gpu_->event_record(s.done, t.stream);
    if (!recorded.ok()) return recorded;
    s.pending = true;
  }
  return {};
}

// Empties one chunk while the other is on the link.
call_result staging::receive(const transfer& t, unsigned number) {
  struct flight {
    std::uint64_t at = 0, bytes = 0;
    bool on = false;
  } flights[2];
  const auto land = [&](unsigned which) -> call_result {
    slot& s = slots_[2 * number + which];
    if (!flights[which].on) return {};
    flights[which].on = false;
    if (const auto waited = gpu_->event_synchronize(s.done); !waited.ok()) return waited;
    s.pending = false;
    std::memcpy(t.host + flights[which].at, s.memory, flights[which].bytes);
    return {};
  };
  std::uint64_t chunk = 0, bytes = 0;
  unsigned turn = 0;
  for (; next_chunk(t, chunk, bytes); turn ^= 1) {
    slot& s = slots_[2 * number + turn];
    if (const auto landed = land(turn); !landed.ok()) return landed;
    if (s.pending) {  // of an earlier transfer to the device
      if (const auto waited = gpu_->event_synchronize(s.done); !waited.ok()) return waited;
    }
    const std::uint64_t at = chunk * options_.chunk_bytes;
    const auto copied = gpu_->copy_async(reinterpret_cast<device_address>(s.memory), t.device + at, bytes, t.stream);
    if (!copied.ok()) return copied;
    const auto recorded = gpu_->event_record(s.done, t.stream);
    if (!recorded.ok()) return recorded;
    s.pending = true;
    flights[turn] = {at, bytes, true};
  }
  for (const unsigned which : {turn, turn ^ 1}) {
    if (const auto landed = land(which); !landed.ok()) return landed;
  }
  return {};
}

}  // namespace millpond
