/* millpond for C, and for every language that calls C.
 *
 * The contract is that of the C++ headers (millpond/memory/memory_resource.hpp,
 * millpond/pool/pool.hpp); this page says what is different. Handles are opaque and counted by
 * nobody: what a *_create or *_open function gave is given back once by the function named beside
 * it. Functions may be called from any thread at once unless they say otherwise.
 *
 * Errors: every function that can fail answers a millpond_status; millpond_last_error() then has
 * the whole sentence, for the calling thread, until its next failing call. Nothing here throws or
 * ends the program.
 *
 * Stability: functions are only added. Their symbols carry the version node of the release that
 * added them (MILLPOND_1), structures begin with their own size, so that a program built against an
 * older header goes on working, and enumerators keep their values. A program may ask
 * millpond_compatible(MILLPOND_ABI) first.
 */
#ifndef MILLPOND_H
#define MILLPOND_H
#include <stddef.h>
#include <stdint.h>

#define MILLPOND_ABI 1

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MILLPOND_API __attribute__((visibility("default")))
#else
#define MILLPOND_API
#endif

typedef struct millpond_gpu millpond_gpu;
/* A source of memory of one kind: a plain one, or a pool. */
typedef struct millpond_memory millpond_memory;
typedef struct millpond_cache millpond_cache;
typedef struct millpond_graph_arena millpond_graph_arena;
typedef struct millpond_capture_cache millpond_capture_cache;
typedef struct CUstream_st* millpond_stream; /* a cudaStream_t or CUstream */
typedef struct CUgraph_st* millpond_graph;   /* a cudaGraph_t or CUgraph */

typedef enum millpond_status {
  MILLPOND_OK = 0,
  MILLPOND_INVALID_ARGUMENT = 1,
  MILLPOND_OUT_OF_MEMORY = 2,
  MILLPOND_DRIVER_FAILURE = 3,
  MILLPOND_NOT_SUPPORTED = 4,
  MILLPOND_WRONG_KIND = 5,
  MILLPOND_DOUBLE_FREE = 6,
  MILLPOND_FOREIGN_POINTER = 7,
  MILLPOND_INTERIOR_POINTER = 8,
  MILLPOND_BAD_INPUT = 9,
  MILLPOND_OUTPUT_FAILURE = 10,
  MILLPOND_NOT_PERMITTED = 11, /* in a forked child, after shutdown, in an invalidated capture */
} millpond_status;

typedef enum millpond_kind {
  MILLPOND_DEVICE = 0,
  MILLPOND_DRIVER_POOL = 1,
  MILLPOND_PINNED = 2,
  MILLPOND_MANAGED = 3,
  MILLPOND_PAGEABLE = 4,
} millpond_kind;

/* ---- The library ---- */

/* "0.2.0". Static. */
MILLPOND_API const char* millpond_version(void);
/* MILLPOND_OK where a program built with this MILLPOND_ABI can use the library that was loaded. */
MILLPOND_API millpond_status millpond_compatible(int abi);
/* "out of memory"; static. */
MILLPOND_API const char* millpond_status_name(millpond_status status);
/* "device"; static. */
MILLPOND_API const char* millpond_kind_name(millpond_kind kind);
/* The calling thread's last error, "" before the first. Valid until the thread's next failing call.
 */
MILLPOND_API const char* millpond_last_error(void);
/* MILLPOND_OK where this is the only libmillpond in the process; MILLPOND_NOT_PERMITTED, with the
 * paths and versions in millpond_last_error(), where another is loaded too: each knows its own
 * blocks alone. */
MILLPOND_API millpond_status millpond_check_single_copy(void);

/* ---- GPUs ---- */

/* How many CUDA devices this process sees. MILLPOND_NOT_SUPPORTED without libcuda. */
MILLPOND_API millpond_status millpond_gpu_count(int* count);
/* Opens a CUDA device and its primary context. */
MILLPOND_API millpond_status millpond_gpu_open(int ordinal, millpond_gpu** gpu);
/* A simulated GPU: no device behind it. profile: "h200", a profile file, or NULL. memory_bytes: 0
 * for the profile's. Its device memory is really there, so that a program may dereference it. */
MILLPOND_API millpond_status millpond_gpu_simulate(const char* profile, uint64_t memory_bytes,
                                                   millpond_gpu** gpu);
/* Its memories and caches must be gone. NULL is legal. */
MILLPOND_API void millpond_gpu_close(millpond_gpu* gpu);
/* "NVIDIA H200"; lives as long as the GPU. */
MILLPOND_API const char* millpond_gpu_name(const millpond_gpu* gpu);
MILLPOND_API int millpond_gpu_simulated(const millpond_gpu* gpu);
/* A non-blocking stream, for programs that have no CUDA of their own. */
MILLPOND_API millpond_status millpond_stream_create(millpond_gpu* gpu, millpond_stream* stream);
MILLPOND_API millpond_status millpond_stream_synchronize(millpond_gpu* gpu, millpond_stream stream);
MILLPOND_API millpond_status millpond_stream_destroy(millpond_gpu* gpu, millpond_stream stream);
/* Captures what is put on the stream from here on into a graph. mode as CUDA's: 0 global, 1 thread
 * local, 2 relaxed. The three below are for programs that have no CUDA of their own, as the three
 * above: cudaStreamBeginCapture, cudaStreamEndCapture, cudaGraphDestroy are the same. */
MILLPOND_API millpond_status millpond_stream_begin_capture(millpond_gpu* gpu,
                                                           millpond_stream stream, int mode);
MILLPOND_API millpond_status millpond_stream_end_capture(millpond_gpu* gpu, millpond_stream stream,
                                                         millpond_graph* graph);
MILLPOND_API millpond_status millpond_graph_destroy(millpond_gpu* gpu, millpond_graph graph);

/* ---- Memory ---- */

/* A plain source: each block is a call of the driver. All plain sources of one GPU know each
 * other's blocks, so that a pointer freed through the wrong one is reported. gpu may be NULL
 * for MILLPOND_PAGEABLE. */
MILLPOND_API millpond_status millpond_memory_create(millpond_gpu* gpu, millpond_kind kind,
                                                    millpond_memory** memory);

/* Zero means the default of each, as in millpond::pool_options. */
typedef struct millpond_pool_options {
  size_t struct_bytes; /* sizeof(millpond_pool_options), set by millpond_pool_options_init */
  int kind;            /* MILLPOND_DEVICE, MILLPOND_PINNED or MILLPOND_MANAGED */
  int reuse;           /* 0: idle; 1: same stream; 2: may wait */
  int context_fences;  /* 0: when no capture is known; 1: never */
  int reserved;
  uint64_t limit_bytes; /* on reserved bytes; 0: the device's */
  uint64_t initial_bytes;
  double slack; /* < 0: the default */
  uint64_t cache_small_bytes;
  uint64_t cache_large_bytes;
  uint64_t max_wait_ns;
  /* Called with no lock held when nothing else helps; nonzero where a retry makes sense. */
  int (*on_pressure)(uint64_t bytes, void* user);
  void* user;
} millpond_pool_options;
MILLPOND_API void millpond_pool_options_init(millpond_pool_options* options);
/* options may be NULL. */
MILLPOND_API millpond_status millpond_pool_create(millpond_gpu* gpu,
                                                  const millpond_pool_options* options,
                                                  millpond_memory** pool);
/* Live blocks die with a pool; those of a plain source are given back and reported. NULL is legal.
 */
MILLPOND_API void millpond_memory_destroy(millpond_memory* memory);

MILLPOND_API millpond_kind millpond_memory_kind(const millpond_memory* memory);
/* Nonzero where the CPU (kernels) may use the blocks. */
MILLPOND_API int millpond_memory_host_accessible(const millpond_memory* memory);
MILLPOND_API int millpond_memory_device_accessible(const millpond_memory* memory);

/* Memory for work put on `stream` from now on. 0 bytes gives NULL. alignment: 0 for the default
 * (512), or a power of two up to 2 MiB. */
MILLPOND_API millpond_status millpond_allocate(millpond_memory* memory, uint64_t bytes,
                                               uint64_t alignment, millpond_stream stream,
                                               void** ptr);
/* bytes: what was asked for, or 0. NULL is legal. On an error the block stays as it is. */
MILLPOND_API millpond_status millpond_deallocate(millpond_memory* memory, void* ptr, uint64_t bytes,
                                                 millpond_stream stream);

/* ---- Pools alone: MILLPOND_NOT_SUPPORTED for a plain source ---- */

/* Work on `stream` uses the block too: its free waits, in the GPU's order, for that stream as well.
 */
MILLPOND_API millpond_status millpond_record_use(millpond_memory* pool, void* ptr,
                                                 millpond_stream stream);
/* The block that an address lies in. */
MILLPOND_API millpond_status millpond_find(millpond_memory* pool, const void* ptr, void** start,
                                           uint64_t* bytes);
/* Gives unused memory back until at most keep_bytes are reserved. given_back may be NULL. */
MILLPOND_API millpond_status millpond_trim(millpond_memory* pool, uint64_t keep_bytes,
                                           uint64_t* given_back);
/* A new hard limit on reserved bytes; 0: the device's. What is reserved beyond it stays. */
MILLPOND_API millpond_status millpond_set_limit(millpond_memory* pool, uint64_t limit_bytes);

/* As millpond::pool_statistics. For a plain source, live, reserved and the counts of calls. */
typedef struct millpond_statistics {
  size_t struct_bytes; /* sizeof(millpond_statistics), set by the caller: no more is written */
  uint64_t live_bytes, live_blocks, peak_live_bytes;
  uint64_t reserved_bytes, peak_reserved_bytes, mapped_bytes;
  uint64_t cached_bytes, pending_bytes, idle_bytes, capture_bytes, metadata_bytes;
  uint64_t allocations, deallocations, out_of_memory, deallocation_errors;
  uint64_t growths, stitches, seals, host_waits;
} millpond_statistics;
/* peak_live_bytes of a pool counts what caches keep too: its peak_out_bytes. */
MILLPOND_API millpond_status millpond_get_statistics(const millpond_memory* memory,
                                                     millpond_statistics* out);

/* A cache of its own on a stream, for a caller who promises that the stream lives and does not
 * capture: its calls ask the driver nothing. One thread at a time. */
MILLPOND_API millpond_status millpond_cache_create(millpond_memory* pool, millpond_stream stream,
                                                   millpond_cache** cache);
MILLPOND_API millpond_status millpond_cache_allocate(millpond_cache* cache, uint64_t bytes,
                                                     void** ptr);
MILLPOND_API millpond_status millpond_cache_deallocate(millpond_cache* cache, void* ptr,
                                                       uint64_t bytes);
/* Before its pool. NULL is legal. */
MILLPOND_API void millpond_cache_destroy(millpond_cache* cache);

/* ---- Captured graphs: of pools alone ---- */

/* millpond_allocate in a capture gives memory of the capture's graph, until that and all that was
 * made from it are gone. Graphs that never run at the same time may share an arena
 * (millpond/pool/graph_arena.hpp has the rules): it grows to about what the largest needs. */
MILLPOND_API millpond_status millpond_graph_arena_create(millpond_memory* pool,
                                                         millpond_graph_arena** arena);
/* The arena ends when its last graph is gone too; its pool may be gone already. NULL is legal. */
MILLPOND_API void millpond_graph_arena_destroy(millpond_graph_arena* arena);
/* The capture that runs on the stream allocates from the arena, on all its streams, from here to
 * its end. Before its first allocation: afterwards MILLPOND_NOT_PERMITTED, and where no capture
 * runs there. MILLPOND_INVALID_ARGUMENT for another pool's arena. */
MILLPOND_API millpond_status millpond_capture_into(millpond_memory* pool,
                                                   const millpond_graph_arena* arena,
                                                   millpond_stream stream);
/* A cache as millpond_cache_create's, for the inside of the capture that runs on the stream now:
 * the caller promises that its calls are made while that capture runs. One thread at a time.
 * MILLPOND_NOT_PERMITTED where none runs there. */
MILLPOND_API millpond_status millpond_capture_cache_create(millpond_memory* pool,
                                                           millpond_stream stream,
                                                           millpond_capture_cache** cache);
MILLPOND_API millpond_status millpond_capture_cache_allocate(millpond_capture_cache* cache,
                                                             uint64_t bytes, void** ptr);
MILLPOND_API millpond_status millpond_capture_cache_deallocate(millpond_capture_cache* cache,
                                                               void* ptr, uint64_t bytes);
/* When the capture ends: what the cache keeps serves later captures of the arena only then. Before
 * its pool. NULL is legal. */
MILLPOND_API void millpond_capture_cache_destroy(millpond_capture_cache* cache);

#ifdef __cplusplus
}
#endif
#endif
