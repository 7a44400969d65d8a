// Plain allocations: whatever is unusual about the call is found out here; usual_cache has the
// short way.
#include <new>

#include "driver/own_calls.hpp"
#include "pool/fast_path.hpp"

namespace millpond {

// Not for a stream that captures: cuStreamGetId refuses those (seen on an H200, driver 580.159), so
// whoever may have one asks for the capture first.
result<std::uint64_t> pool::core::identity(stream_handle stream) {
  std::uint64_t id = 0;
  call_result answer = gpu_->stream_id(stream, &id);
  if (__builtin_expect(answer.status == driver_status::invalid_context, 0)) {
    // The stream's fault, or the first call of a thread that has no context: a call without a
    // stream tells.
    std::uint64_t free = 0;
    std::uint64_t total = 0;
    if (gpu_->memory_info(&free, &total).status == driver_status::invalid_context &&
        gpu_->bind_thread().ok()) {
      answer = gpu_->stream_id(stream, &id);
    }
  }
  if (__builtin_expect(!answer.ok(), 0)) {
    return error{
        answer.status == driver_status::invalid_handle ||
                answer.status == driver_status::invalid_context
            ? error_code::invalid_argument
            : error_code::driver_failure,
        "the stream is not usable (destroyed, or of another context): " + to_string(answer)};
  }
  return id;
}

result<std::unique_ptr<thread_cache>> pool::core::make_cache(stream_handle stream) {
  const auto id = identity(stream);
  if (!id) return id.error();
  return caches_.make(stream, *id);
}

std::unique_ptr<thread_cache> pool::core::attach(stream_handle stream,
                                                 std::unique_ptr<thread_cache> made) noexcept {
  return thread_caches::put(shared_from_this(), stream, std::move(made));
}

// Whether the stream captures, and which capture. unidentified: a default stream that cannot be
// asked.
result<capture_info> pool::core::capture_of(stream_handle stream, bool* unidentified) {
  capture_info capture;
  const call_result answer = gpu_->stream_capture(stream, &capture);
  if (__builtin_expect(answer.ok(), 1)) return capture;
  // A destroyed stream or a thread without a context: identity() knows the words and the way.
  if (answer.status != driver_status::invalid_handle &&
      answer.status != driver_status::invalid_context) {
    *unidentified = names_many(stream);
    if (*unidentified) return capture;
    return to_error(answer, "asking whether the stream captures");
  }
  const auto id = identity(stream);
  if (!id) return id.error();
  if (!gpu_->stream_capture(stream, &capture).ok())
    return to_error(answer, "asking whether the stream captures");
  return capture;
}

result<void*> pool::core::allocate(std::uint64_t bytes, std::uint64_t alignment,
                                   stream_handle stream) try {
  if (__builtin_expect(!serving(), 0)) return not_serving();
  bool unidentified = false;
  const auto capture = capture_of(stream, &unidentified);
  if (!capture) return capture.error();
  if (unidentified) return allocate_unidentified(bytes, alignment, stream);
  if (__builtin_expect(capture->status == capture_status::active, 0))
    return captures_.allocate(*capture, bytes, alignment, stream);
  if (capture->status == capture_status::invalidated) {
    return error{error_code::not_permitted,
                 "the stream's capture has been invalidated: end it before allocating"};
  }
  const auto id = identity(stream);
  if (!id) return id.error();
  if (__builtin_expect(watch_.any(), 0)) watch_.note_end(stream);
  thread_cache* in = thread_caches::find(this, stream);
  if (in == nullptr || in->stream_id != *id) {
    auto made = caches_.make(stream, *id);
    if (!made) return made.error();
    in = made->get();
    const passing_cache passing{*this, attach(stream, std::move(*made))};
    return allocate_from(*in, bytes, alignment);
  }
  if (alignment <= heap::granule) {
    if (void* const ptr = caches_.pop(*in, bytes)) return ptr;
  }
  return allocate_from(*in, bytes, alignment);
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

// On a default stream that cannot be asked anything: a blocking stream captures, and the question
// itself would break that capture. In the pool's own context the thread's cache for the handle is
// of the same stream as ever; where there is none, memory that anyone may have is in every stream's
// order.
result<void*> pool::core::allocate_unidentified(std::uint64_t bytes, std::uint64_t alignment,
                                                stream_handle stream) {
  if (thread_cache* const in = cache_of_free(stream); in != nullptr) {
    if (alignment <= heap::granule) {
      if (void* const ptr = caches_.pop(*in, bytes)) return ptr;
    }
    return allocate_from(*in, bytes, alignment);
  }
  block_request what = block_request::of_granules(bytes, alignment);
  what.handle = stream;
  const auto found = acquire(what, nullptr);
  if (!found) return found.error();
  heap::extent* const block = *found;
  block->requested = bytes;
  block->holder_number = 0;
  caches_.forget_owner(*block);
  set_state(*block, block_state::live);
  caches_.count_allocation(bytes);
  return reinterpret_cast<void*>(block->start());
}

result<void*> pool::core::allocate_from(thread_cache& in, std::uint64_t bytes,
                                        std::uint64_t alignment) try {
  // A pressure callback may free on other streams and trim, both of which drop idle caches of this
  // thread.
  struct call_under_way {
    thread_cache& of;
    explicit call_under_way(thread_cache& cache) noexcept : of(cache) { ++of.in_call; }
    ~call_under_way() { --of.in_call; }
    call_under_way(const call_under_way&) = delete;
    call_under_way& operator=(const call_under_way&) = delete;
  } const until_it_ends(in);
  if (alignment <= heap::granule) {
    if (void* const ptr = caches_.pop_shared(in, bytes)) return ptr;
  }
  captures_.drain_released();
  block_request what(bytes, alignment);
  what.stream = in.stream;
  what.owner = in.stream->owner;
  what.handle = in.handle;
  const auto found = acquire(what, &in);
  if (!found) return found.error();
  caches_.hand_out(in, **found, bytes);
  if (__builtin_expect(caches_.fell_asleep(in, **found), 0)) return not_serving();
  caches_.seal_if_due(*in.stream);
  return reinterpret_cast<void*>((*found)->start());
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<void*> pool::core::allocate_from(captured_cache& in, std::uint64_t bytes) try {
  return captures_.allocate(in, bytes);
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

}  // namespace millpond
