// The process that runs under `millpond run`: its devices, made when first used, and what it is
// reported.
#pragma once
#include <atomic>
#include <cstdint>

#include "bindings/context_guard.hpp"
#include "bindings/preload/real.hpp"
#include "bindings/preload/served_device.hpp"

// A function that stands in the place of CUDA's.
#define SHOWN extern "C" __attribute__((visibility("default")))

namespace millpond::preload {

// The device of the calling thread as the runtime says; nullptr where millpond does not serve
// (reported once, with the reason), in a forked child, and while our own calls are on the stack.
[[nodiscard]] served_device* device_by_runtime() noexcept;
// The same by the current context; nullptr where that is not a primary one.
[[nodiscard]] served_device* device_by_context() noexcept;
[[nodiscard]] int devices_of_process() noexcept;

// The device that has a block with this address in it, and who of it.
struct found_block {
  served_device* device = nullptr;
  served_device::owner who = served_device::owner::nobody;
  pool::block_range range;
};
[[nodiscard]] found_block find_block(const void* ptr) noexcept;

// cudaDeviceReset: the device's memory goes before its context does.
void forget_device_by_runtime() noexcept;

// Says a sentence to stderr the first time only.
void say_once(std::atomic<bool>& said, const char* sentence) noexcept;

// What the two interfaces have in common. Each answers nothing (false) where the program's own call
// must be made.
bool serve(served_device* device, memory_kind kind, std::uint64_t bytes, void** out) noexcept;
bool serve_async(served_device* device, std::uint64_t bytes, stream_handle stream,
                 void** out) noexcept;
// The stream that a call names which is compiled for default streams of each thread.
[[nodiscard]] inline stream_handle of_thread(stream_handle stream) noexcept {
  return stream == nullptr ? per_thread_stream : stream;
}
// Frees, by cudaFree or cudaFreeHost: CUDA refuses the other kind's memory, and so do we.
enum class freed_as : std::uint8_t { device_memory, host_memory };
enum class taken : std::uint8_t {
  yes,
  no,      // not ours to take: the program's own call says why
  before,  // freed before, and still an allocation of CUDA's that we keep: CUDA must not see the
           // address
};
[[nodiscard]] taken take_back(void* ptr, freed_as how) noexcept;
[[nodiscard]] taken take_back_async(void* ptr, stream_handle stream) noexcept;
// An address that CUDA never gave: what a call with it is answered is what `taken::before`
// deserves.
[[nodiscard]] void* nobodys_memory() noexcept;
// For cudaIpcGetMemHandle: true where the address is ours and cannot be opened by others; says what
// to do.
bool refuses_ipc(const void* ptr) noexcept;

// Counts for the report at the end: calls that were served, and that were left to CUDA.
void count(bool served) noexcept;

}  // namespace millpond::preload
