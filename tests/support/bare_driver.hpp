// A driver of host memory whose calls can be watched: each is logged, any can fail at an index,
// frees of what is not there are refused, and blocks are aligned to as little as 256 bytes, which
// is what CUDA promises and half of what it does. For tests of what the resources do when a driver
// is at its least; streams and virtual memory are the simulated GPU's.
#pragma once
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "millpond/driver/driver.hpp"

namespace millpond::testing {

class bare_driver final : public driver {
 public:
  bare_driver() { info_.name = "bare"; }
  ~bare_driver() override {
    for (const auto& [address, block] : blocks_) std::free(block.raw);
  }

  // The call with this number from now, counting from 1, fails; 0 for none.
  void fail_call(std::uint64_t number, driver_status status = driver_status::out_of_memory) {
    const std::lock_guard lock(mutex_);
    calls_ = 0;
    failing_ = number;
    failing_status_ = status;
  }
  std::uint64_t calls() const { return calls_; }
  std::string failed_call() const { return failed_call_; }
  std::size_t live() const { return blocks_.size(); }
  std::size_t pools() const { return pools_; }
  void die() { alive_ = false; }
  std::vector<std::string> log;  // names of the calls, where they matter to order

  bool simulated() const noexcept override { return true; }
  const device_info& info() const noexcept override { return info_; }
  bool alive() const noexcept override { return alive_; }
  call_result bind_thread() noexcept override { return answer("cuCtxSetCurrent"); }
  call_result memory_info(std::uint64_t*, std::uint64_t*) noexcept override {
    return unused("memory_info");
  }
  call_result context_synchronize() noexcept override { return answer("cuCtxSynchronize"); }

  call_result memory_allocate(device_address* out, std::uint64_t bytes) noexcept override {
    return take("cuMemAlloc", memory_kind::device, out, bytes);
  }
  call_result memory_free(device_address at) noexcept override {
    return give("cuMemFree", at, [](memory_kind kind) { return kind != memory_kind::pinned; });
  }
  call_result host_allocate(void** out, std::uint64_t bytes, host_flags flags) noexcept override {
    last_flags = flags;
    device_address at = 0;
    const call_result made = take("cuMemHostAlloc", memory_kind::pinned, &at, bytes);
    *out = reinterpret_cast<void*>(at);
    return made;
  }
  call_result host_free(void* at) noexcept override {
    return give("cuMemFreeHost", reinterpret_cast<device_address>(at),
                [](memory_kind kind) { return kind == memory_kind::pinned; });
  }
  call_result managed_allocate(device_address* out, std::uint64_t bytes) noexcept override {
    return take("cuMemAllocManaged", memory_kind::managed, out, bytes);
  }
  call_result pointer_info(device_address at, pointer_facts* out) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.upper_bound(at);
    if (found == blocks_.begin()) return {};
    const auto& [start, block] = *std::prev(found);
    if (at - start < block.bytes) *out = {block.kind, start, block.bytes};
    return {};
  }
  call_result pool_create(pool_handle* out, memory_location, std::uint64_t) noexcept override {
    const call_result made = answer("cuMemPoolCreate");
    if (made.ok()) *out = reinterpret_cast<pool_handle>(++pools_);
    return made;
  }
  call_result pool_destroy(pool_handle) noexcept override {
    --pools_;
    return answer("cuMemPoolDestroy");
  }
  call_result pool_set_release_threshold(pool_handle, std::uint64_t) noexcept override {
    return answer("cuMemPoolSetAttribute");
  }
  call_result pool_get_usage(pool_handle, pool_usage*) noexcept override {
    return answer("cuMemPoolGetAttribute");
  }
  call_result pool_trim(pool_handle, std::uint64_t) noexcept override {
    return answer("cuMemPoolTrimTo");
  }
  call_result pool_allocate(device_address* out, std::uint64_t bytes, pool_handle,
                            stream_handle) noexcept override {
    return take("cuMemAllocFromPoolAsync", memory_kind::driver_pool, out, bytes);
  }
  call_result pool_free(device_address at, stream_handle) noexcept override {
    return give("cuMemFreeAsync", at,
                [](memory_kind kind) { return kind == memory_kind::driver_pool; });
  }
  call_result stream_capture(stream_handle, capture_info* out) noexcept override {
    out->status = capturing ? capture_status::active : capture_status::none;
    return answer("cuStreamGetCaptureInfo");
  }
  call_result exchange_capture_mode(capture_mode*) noexcept override {
    return answer("cuThreadExchangeStreamCaptureMode");
  }
  call_result stream_synchronize(stream_handle) noexcept override {
    return answer("cuStreamSynchronize");
  }
  call_result copy_async(device_address to, device_address from, std::uint64_t bytes,
                         stream_handle) noexcept override {
    const call_result done = answer("cuMemcpyAsync");
    if (done.ok())
      std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    return done;
  }

  call_result host_register(void*, std::uint64_t) noexcept override {
    return unused("host_register");
  }
  call_result host_unregister(void*) noexcept override { return unused("host_unregister"); }
  call_result address_reserve(device_address*, std::uint64_t, std::uint64_t) noexcept override {
    return unused("address_reserve");
  }
  call_result address_free(device_address, std::uint64_t) noexcept override {
    return unused("address_free");
  }
  call_result physical_create(physical_handle*, std::uint64_t, memory_location,
                              shareable) noexcept override {
    return unused("physical_create");
  }
  call_result physical_release(physical_handle) noexcept override {
    return unused("physical_release");
  }
  call_result map(device_address, std::uint64_t, physical_handle) noexcept override {
    return unused("map");
  }
  call_result unmap(device_address, std::uint64_t) noexcept override { return unused("unmap"); }
  call_result set_access(device_address, std::uint64_t, memory_location) noexcept override {
    return unused("set_access");
  }
  call_result export_handle(int*, physical_handle) noexcept override {
    return unused("export_handle");
  }
  call_result import_handle(physical_handle*, int) noexcept override {
    return unused("import_handle");
  }
  call_result stream_create(stream_handle*) noexcept override { return unused("stream_create"); }
  call_result stream_destroy(stream_handle) noexcept override { return unused("stream_destroy"); }
  call_result stream_id(stream_handle, std::uint64_t*) noexcept override {
    return unused("stream_id");
  }
  call_result stream_device(stream_handle, int*) noexcept override {
    return unused("stream_device");
  }
  call_result stream_query(stream_handle) noexcept override { return unused("stream_query"); }
  call_result stream_wait_event(stream_handle, event_handle) noexcept override {
    return unused("stream_wait_event");
  }
  call_result event_create(event_handle*) noexcept override { return unused("event_create"); }
  call_result event_destroy(event_handle) noexcept override { return unused("event_destroy"); }
  call_result event_record(event_handle, stream_handle) noexcept override {
    return unused("event_record");
  }
  call_result event_query(event_handle) noexcept override { return unused("event_query"); }
  call_result event_synchronize(event_handle) noexcept override {
    return unused("event_synchronize");
  }
  call_result context_record_event(event_handle) noexcept override {
    return unused("context_record_event");
  }
  call_result capture_begin(stream_handle, capture_mode) noexcept override {
    return unused("capture_begin");
  }
  call_result capture_end(stream_handle, graph_handle*) noexcept override {
    return unused("capture_end");
  }
  call_result graph_retain(graph_handle, void (*)(void*), void*) noexcept override {
    return unused("graph_retain");
  }
  call_result graph_instantiate(graph_exec_handle*, graph_handle) noexcept override {
    return unused("graph_instantiate");
  }
  call_result graph_launch(graph_exec_handle, stream_handle) noexcept override {
    return unused("graph_launch");
  }
  call_result graph_destroy(graph_handle) noexcept override { return unused("graph_destroy"); }
  call_result graph_exec_destroy(graph_exec_handle) noexcept override {
    return unused("graph_exec_destroy");
  }
  call_result set_async(device_address, unsigned char, std::uint64_t,
                        stream_handle) noexcept override {
    return unused("set_async");
  }
  call_result prefetch_async(device_address, std::uint64_t, memory_location,
                             stream_handle) noexcept override {
    return unused("prefetch_async");
  }
  call_result advise(device_address, std::uint64_t, managed_advice,
                     memory_location) noexcept override {
    return unused("advise");
  }
  call_result host_function(stream_handle, void (*)(void*), void*) noexcept override {
    return unused("host_function");
  }
  call_result identity_write(std::span<const identity_block>, stream_handle) noexcept override {
    return unused("identity_write");
  }
  call_result identity_check(std::span<const identity_block>, identity_report*,
                             stream_handle) noexcept override {
    return unused("identity_check");
  }
  call_result spin(std::uint64_t, stream_handle) noexcept override { return unused("spin"); }

  host_flags last_flags = host_flags::none;
  bool capturing = false;
  std::uint64_t misaligned_by = 0;  // at most 512; addresses are a multiple of 512 and this

 private:
  struct kept {
    void* raw = nullptr;
    std::uint64_t bytes = 0;
    memory_kind kind{};
  };
  call_result unused(const char* call) noexcept { return {driver_status::not_supported, call}; }
  call_result answer_locked(const char* call) noexcept {
    log.emplace_back(call);
    if (++calls_ != failing_) return {driver_status::success, call};
    failed_call_ = call;
    return {failing_status_, call};
  }
  call_result answer(const char* call) noexcept {
    const std::lock_guard lock(mutex_);
    return answer_locked(call);
  }
  call_result take(const char* call, memory_kind kind, device_address* out,
                   std::uint64_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    const call_result made = answer_locked(call);
    if (!made.ok()) return made;
    kept added{std::aligned_alloc(512, ((bytes + 511) / 512 + 1) * 512), bytes, kind};
    if (added.raw == nullptr) return {driver_status::out_of_memory, call};
    *out = reinterpret_cast<device_address>(added.raw) + misaligned_by;
    blocks_[*out] = added;
    return made;
  }
  template <class Accepts>
  call_result give(const char* call, device_address at, Accepts accepts) noexcept {
    const std::lock_guard lock(mutex_);
    const call_result made = answer_locked(call);
    if (!made.ok()) return made;
    const auto found = blocks_.find(at);
    if (found == blocks_.end() || !accepts(found->second.kind))
      return {driver_status::invalid_value, call};
    std::free(found->second.raw);
    blocks_.erase(found);
    return made;
  }

  device_info info_;
  std::mutex mutex_;
  std::map<device_address, kept> blocks_;
  std::size_t pools_ = 0;
  std::uint64_t calls_ = 0, failing_ = 0;
  driver_status failing_status_ = driver_status::out_of_memory;
  std::string failed_call_;
  bool alive_ = true;
};

}  // namespace millpond::testing
