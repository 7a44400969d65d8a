// The functions that PyTorch's CUDAPluggableAllocator calls, by the C++ signatures that it wants.
//
// Built twice from this one file: with the wheel, knowing nothing of PyTorch, and then an error is
// a std::runtime_error; and, where the user has a compiler, once for their PyTorch
// (MILLPOND_WITH_TORCH), and then running out of memory is a real torch.OutOfMemoryError. PyTorch
// takes a null pointer for an answer, not for an error, so that errors are thrown.
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "torch_abi.h"

#if defined(MILLPOND_WITH_TORCH)
#include <c10/util/Exception.h>
#endif

namespace {

using mempool_id = std::pair<unsigned long long, unsigned long long>;

void raise_if(millpond_status status) {
  if (status == MILLPOND_OK) return;
  const std::string text =
      std::string("CUDA out of memory, or refused, by millpond: ") + millpond_last_error();
#if defined(MILLPOND_WITH_TORCH)
  if (status == MILLPOND_OUT_OF_MEMORY) TORCH_CHECK_WITH(OutOfMemoryError, false, text);
#endif
  throw std::runtime_error(text);
}

using stream_filter = std::function<bool(millpond_stream)>;
int ask(millpond_stream stream, void* user) {
  return (*static_cast<stream_filter*>(user))(stream) ? 1 : 0;
}
void drop(void* user) {
  delete static_cast<stream_filter*>(user);
}

}  // namespace

extern "C" {

#define ENTRY __attribute__((visibility("default")))

ENTRY void* millpond_entry_malloc(std::size_t bytes, int device, millpond_stream stream) {
  void* ptr = nullptr;
  raise_if(millpond_torch_malloc(bytes, device, stream, &ptr));
  return ptr;
}
// Called by destructors: it cannot throw. The library prints the error and counts it.
ENTRY void millpond_entry_free(void* ptr, std::size_t bytes, int device, millpond_stream stream) {
  static_cast<void>(millpond_torch_free(ptr, bytes, device, stream));
}
ENTRY void millpond_entry_init(int device_count) {
  raise_if(millpond_torch_start(device_count));
}
ENTRY void millpond_entry_reset() {
  raise_if(millpond_torch_empty_cache());
}
ENTRY void millpond_entry_memory_fraction(double fraction, int device) {
  raise_if(millpond_torch_memory_fraction(fraction, device));
}
ENTRY void* millpond_entry_base(void* ptr, std::size_t* bytes) {
  void* start = nullptr;
  std::size_t found = 0;
  raise_if(millpond_torch_find(ptr, &start, &found));
  if (bytes != nullptr) *bytes = found;
  return start;
}
ENTRY void millpond_entry_record_stream(void* ptr, millpond_stream stream) {
  raise_if(millpond_torch_record_stream(ptr, stream));
}
ENTRY void millpond_entry_begin_pool(int device, mempool_id id, stream_filter filter) {
  auto held = std::make_unique<stream_filter>(std::move(filter));
  raise_if(millpond_torch_begin_pool(device, id.first, id.second, ask, drop, held.release()));
}
ENTRY void millpond_entry_end_pool(int device, mempool_id id) {
  raise_if(millpond_torch_end_pool(device, id.first, id.second));
}
ENTRY void millpond_entry_release_pool(int device, mempool_id id) {
  raise_if(millpond_torch_release_pool(device, id.first, id.second));
}
// Which of the two builds this is.
ENTRY int millpond_entry_knows_torch() {
#if defined(MILLPOND_WITH_TORCH)
  return 1;
#else
  return 0;
#endif
}
}  // extern "C"
