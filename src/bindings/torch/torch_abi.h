/* What PyTorch's entry points (python/native/torch_entry.cpp) and millpond.torch ask of
 * libmillpond.so. Part of the same release as both: not a stable interface, unlike millpond.h.
 * Statuses and sentences are millpond.h's. */
#ifndef MILLPOND_TORCH_ABI_H
#define MILLPOND_TORCH_ABI_H
#include <millpond.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Before the first allocation. options may be NULL. simulate: nonzero serves from simulated GPUs,
 * for tests. */
MILLPOND_API millpond_status millpond_torch_configure(const millpond_pool_options* options,
                                                      int simulate);
/* Opens devices up to this count, each when it is first used. */
MILLPOND_API millpond_status millpond_torch_start(int device_count);

MILLPOND_API millpond_status millpond_torch_malloc(size_t bytes, int device, millpond_stream stream,
                                                   void** ptr);
/* From any thread, with any current device. Errors are printed as the pool's are, and answered. */
MILLPOND_API millpond_status millpond_torch_free(void* ptr, size_t bytes, int device,
                                                 millpond_stream stream);
MILLPOND_API millpond_status millpond_torch_record_stream(void* ptr, millpond_stream stream);
MILLPOND_API millpond_status millpond_torch_find(void* ptr, void** start, size_t* bytes);
MILLPOND_API millpond_status millpond_torch_empty_cache(void);
MILLPOND_API millpond_status millpond_torch_memory_fraction(double fraction, int device);

/* filter: whether an allocation on the stream goes to this graph pool; drop: called once when it is
 * no longer asked. */
MILLPOND_API millpond_status millpond_torch_begin_pool(
    int device, uint64_t id_high, uint64_t id_low,
    int (*filter)(millpond_stream stream, void* user), void (*drop)(void* user), void* user);
MILLPOND_API millpond_status millpond_torch_end_pool(int device, uint64_t id_high, uint64_t id_low);
MILLPOND_API millpond_status millpond_torch_release_pool(int device, uint64_t id_high,
                                                         uint64_t id_low);

typedef struct millpond_torch_numbers {
  size_t struct_bytes;
  uint64_t requested, peak_requested, allocated, freed; /* bytes */
  uint64_t allocations, deallocations, live_blocks, peak_live_blocks;
  uint64_t reserved, peak_reserved, graph_bytes, out_of_memory;
  /* The pool's own counts since it was made (pool_statistics in millpond/pool/pool.hpp), and its
   * bytes now. */
  uint64_t growths, stitches, stitch_reuses, host_waits, stream_waits, fence_queries,
      thread_cache_hits, heap_hits, given_back_bytes;
  uint64_t cached_bytes, pending_bytes, idle_bytes, peak_out_bytes;
  uint64_t peak_needed_bytes; /* device_memory::numbers::peak_needed */
  uint64_t seals, stream_cache_hits, thread_caches_flushed,
      lock_waits; /* counts of the pool's too */
} millpond_torch_numbers;
/* All zero for a device that was never used. */
MILLPOND_API millpond_status millpond_torch_statistics(int device, millpond_torch_numbers* out);
MILLPOND_API millpond_status millpond_torch_reset_peaks(int device);

/* History for snapshots. most_entries 0 stops. */
MILLPOND_API millpond_status millpond_torch_history(uint64_t most_entries);
/* JSON (src/bindings/torch/history.hpp); the text is the thread's until its next call. */
MILLPOND_API const char* millpond_torch_history_json(int device);
/* Writes the calling thread's Python frames into text and answers their bytes. NULL: no frames. */
MILLPOND_API void millpond_torch_frame_source(uint64_t (*source)(char* text, uint64_t most_bytes));

#ifdef __cplusplus
}
#endif
#endif
