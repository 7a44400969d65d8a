/* The C ABI from plain C, on the simulated GPU. Ends with 0 when all is as it should be. */
#include <millpond.h>

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures = 0;
static void expect_at(int holds, const char* what, int line) {
  if (holds) return;
  ++failures;
  fprintf(stderr, "line %d: not so: %s\n  last error: %s\n", line, what, millpond_last_error());
}
#define EXPECT(what) expect_at((what) != 0, #what, __LINE__)
#define SAYS(word) EXPECT(strstr(millpond_last_error(), word) != NULL)

static void the_library(void) {
  EXPECT(strlen(millpond_version()) > 0);
  EXPECT(millpond_compatible(MILLPOND_ABI) == MILLPOND_OK);
  EXPECT(millpond_compatible(MILLPOND_ABI + 1) == MILLPOND_NOT_SUPPORTED);
  SAYS("load a newer");
  EXPECT(strcmp(millpond_status_name(MILLPOND_OUT_OF_MEMORY), "out of memory") == 0);
  EXPECT(strcmp(millpond_status_name((millpond_status)99), "no such status") == 0);
  EXPECT(strcmp(millpond_kind_name(MILLPOND_MANAGED), "managed") == 0);
  EXPECT(millpond_check_single_copy() == MILLPOND_OK);
}

static void every_kind(millpond_gpu* gpu) {
  for (int kind = MILLPOND_DEVICE; kind <= MILLPOND_PAGEABLE; ++kind) {
    millpond_memory* memory = NULL;
    void* ptr = NULL;
    EXPECT(millpond_memory_create(gpu, (millpond_kind)kind, &memory) == MILLPOND_OK);
    EXPECT((int)millpond_memory_kind(memory) == kind);
    EXPECT(millpond_allocate(memory, 1000, 0, NULL, &ptr) == MILLPOND_OK);
    EXPECT(ptr != NULL && ((uintptr_t)ptr & 511) == 0);
    if (millpond_memory_host_accessible(memory)) memset(ptr, 1, 1000);
    EXPECT(millpond_trim(memory, 0, NULL) == MILLPOND_NOT_SUPPORTED);
    SAYS("only a pool");
    EXPECT(millpond_deallocate(memory, ptr, 1000, NULL) == MILLPOND_OK);
    millpond_memory_destroy(memory);
  }
}

static void wrong_frees(millpond_gpu* gpu) {
  millpond_memory *device = NULL, *pinned = NULL;
  void* ptr = NULL;
  int mine = 0;
  EXPECT(millpond_memory_create(gpu, MILLPOND_DEVICE, &device) == MILLPOND_OK);
  EXPECT(millpond_memory_create(gpu, MILLPOND_PINNED, &pinned) == MILLPOND_OK);
  EXPECT(millpond_allocate(pinned, 64, 0, NULL, &ptr) == MILLPOND_OK);
  EXPECT(millpond_deallocate(device, ptr, 64, NULL) == MILLPOND_WRONG_KIND);
  SAYS("cuMemFreeHost");
  EXPECT(millpond_deallocate(pinned, ptr, 64, NULL) == MILLPOND_OK);
  EXPECT(millpond_deallocate(pinned, ptr, 64, NULL) == MILLPOND_DOUBLE_FREE);
  EXPECT(millpond_deallocate(pinned, &mine, 4, NULL) == MILLPOND_FOREIGN_POINTER);
  EXPECT(millpond_deallocate(pinned, NULL, 0, NULL) == MILLPOND_OK);
  EXPECT(millpond_memory_create(NULL, MILLPOND_DEVICE, &device) == MILLPOND_INVALID_ARGUMENT);
  /* A kind is one byte inside: 256 is not MILLPOND_DEVICE, nor 258 MILLPOND_PINNED. */
  for (int number = 256; number < 261; ++number) {
    EXPECT(millpond_memory_create(gpu, (millpond_kind)number, &device) ==
           MILLPOND_INVALID_ARGUMENT);
  }
  EXPECT(device == NULL);
  millpond_memory_destroy(pinned);
}

static int pressure_calls = 0;
static int under_pressure(uint64_t bytes, void* user) {
  ++pressure_calls;
  return bytes == 0 && user != NULL;
}

static void a_pool(millpond_gpu* gpu) {
  millpond_memory* pool = NULL;
  millpond_stream stream = NULL, other = NULL;
  millpond_statistics now;
  void *ptr = NULL, *again = NULL, *start = NULL;
  uint64_t bytes = 0, given = 0;
  millpond_pool_options options;
  millpond_pool_options_init(&options);
  options.limit_bytes = (uint64_t)64 << 20;
  options.on_pressure = under_pressure;
  EXPECT(millpond_pool_create(gpu, &options, &pool) == MILLPOND_OK);
  EXPECT(millpond_stream_create(gpu, &stream) == MILLPOND_OK);
  EXPECT(millpond_stream_create(gpu, &other) == MILLPOND_OK);

  EXPECT(millpond_allocate(pool, 0, 0, stream, &ptr) == MILLPOND_OK && ptr == NULL);
  EXPECT(millpond_allocate(pool, 100, 3, stream, &ptr) == MILLPOND_INVALID_ARGUMENT);
  EXPECT(millpond_allocate(pool, 100000, 0, stream, &ptr) == MILLPOND_OK);
  EXPECT(millpond_find(pool, (char*)ptr + 50000, &start, &bytes) == MILLPOND_OK);
  EXPECT(start == ptr && bytes >= 100000);
  EXPECT(millpond_record_use(pool, ptr, other) == MILLPOND_OK);
  EXPECT(millpond_deallocate(pool, ptr, 99999, stream) == MILLPOND_INVALID_ARGUMENT);
  EXPECT(millpond_deallocate(pool, ptr, 100000, stream) == MILLPOND_OK);
  EXPECT(millpond_deallocate(pool, ptr, 100000, stream) == MILLPOND_DOUBLE_FREE);

  EXPECT(millpond_allocate(pool, (uint64_t)65 << 20, 0, stream, &ptr) == MILLPOND_OUT_OF_MEMORY);
  SAYS("limit 64.0 MiB");
  EXPECT(ptr == NULL && pressure_calls > 0);
  EXPECT(millpond_set_limit(pool, 0) == MILLPOND_OK);
  EXPECT(millpond_allocate(pool, (uint64_t)65 << 20, 0, stream, &ptr) == MILLPOND_OK);

  memset(&now, 0, sizeof now);
  now.struct_bytes = sizeof now;
  EXPECT(millpond_get_statistics(pool, &now) == MILLPOND_OK);
  EXPECT(now.live_bytes == (uint64_t)65 << 20 && now.live_blocks == 1 && now.out_of_memory == 1);
  EXPECT(now.reserved_bytes >= now.live_bytes && now.deallocation_errors == 0);
  /* A caller of an older header, whose structure ended early. */
  memset(&now, 0xee, sizeof now);
  now.struct_bytes = offsetof(millpond_statistics, live_blocks);
  EXPECT(millpond_get_statistics(pool, &now) == MILLPOND_OK);
  EXPECT(now.live_bytes == (uint64_t)65 << 20 && now.live_blocks == 0xeeeeeeeeeeeeeeeeu);
  EXPECT(millpond_deallocate(pool, ptr, 0, stream) == MILLPOND_OK);

  {
    millpond_cache* cache = NULL;
    EXPECT(millpond_cache_create(pool, stream, &cache) == MILLPOND_OK);
    EXPECT(millpond_cache_allocate(cache, 4096, &ptr) == MILLPOND_OK && ptr != NULL);
    EXPECT(millpond_cache_deallocate(cache, ptr, 4096) == MILLPOND_OK);
    EXPECT(millpond_cache_allocate(cache, 4096, &again) == MILLPOND_OK && again == ptr);
    EXPECT(millpond_cache_deallocate(cache, again, 4096) == MILLPOND_OK);
    millpond_cache_destroy(cache);
  }
  {
    /* A cache's answer is the reason itself. */
    millpond_cache* cache = NULL;
    EXPECT(millpond_cache_create(pool, stream, &cache) == MILLPOND_OK);
    EXPECT(millpond_cache_allocate(cache, 4096, &ptr) == MILLPOND_OK);
    EXPECT(millpond_cache_deallocate(cache, ptr, 4095) == MILLPOND_INVALID_ARGUMENT);
    SAYS("the block stays allocated");
    EXPECT(millpond_cache_deallocate(cache, ptr, 4096) == MILLPOND_OK);
    EXPECT(millpond_cache_deallocate(cache, ptr, 4096) == MILLPOND_DOUBLE_FREE);
    EXPECT(millpond_cache_deallocate(cache, &given, 8) == MILLPOND_FOREIGN_POINTER);
    EXPECT(millpond_cache_deallocate(cache, NULL, 8) == MILLPOND_OK);
    millpond_cache_destroy(cache);
  }
  EXPECT(millpond_stream_synchronize(gpu, stream) == MILLPOND_OK);
  EXPECT(millpond_trim(pool, 0, &given) == MILLPOND_OK && given > 0);
  EXPECT(millpond_stream_destroy(gpu, other) == MILLPOND_OK);
  millpond_memory_destroy(pool);
  EXPECT(millpond_stream_destroy(gpu, stream) == MILLPOND_OK);

  options.struct_bytes = 4;
  EXPECT(millpond_pool_create(gpu, &options, &pool) == MILLPOND_INVALID_ARGUMENT);
  SAYS("millpond_pool_options_init");
  millpond_pool_options_init(&options);
  options.kind = MILLPOND_PAGEABLE;
  EXPECT(millpond_pool_create(gpu, &options, &pool) == MILLPOND_INVALID_ARGUMENT);
}

/* Two graphs that share an arena: what the first freed within its capture, and a cache of it, the
 * second has. */
static void graphs(millpond_gpu* gpu) {
  const uint64_t bytes = (uint64_t)8 << 20;
  millpond_memory *pool = NULL, *other = NULL, *plain = NULL;
  millpond_graph_arena* arena = NULL;
  millpond_capture_cache* cache = NULL;
  millpond_stream stream = NULL;
  millpond_graph first = NULL, second = NULL;
  millpond_statistics now;
  void *x = NULL, *y = NULL, *z = NULL;
  EXPECT(millpond_pool_create(gpu, NULL, &pool) == MILLPOND_OK);
  EXPECT(millpond_pool_create(gpu, NULL, &other) == MILLPOND_OK);
  EXPECT(millpond_memory_create(gpu, MILLPOND_DEVICE, &plain) == MILLPOND_OK);
  EXPECT(millpond_stream_create(gpu, &stream) == MILLPOND_OK);
  EXPECT(millpond_graph_arena_create(plain, &arena) == MILLPOND_NOT_SUPPORTED && arena == NULL);
  EXPECT(millpond_graph_arena_create(pool, NULL) == MILLPOND_INVALID_ARGUMENT);
  EXPECT(millpond_graph_arena_create(pool, &arena) == MILLPOND_OK && arena != NULL);

  EXPECT(millpond_capture_into(pool, arena, stream) == MILLPOND_NOT_PERMITTED);
  SAYS("no capture runs");
  EXPECT(millpond_capture_cache_create(pool, stream, &cache) == MILLPOND_NOT_PERMITTED &&
         cache == NULL);
  EXPECT(millpond_stream_begin_capture(gpu, stream, 3) == MILLPOND_INVALID_ARGUMENT);

  EXPECT(millpond_stream_begin_capture(gpu, stream, 2) == MILLPOND_OK);
  EXPECT(millpond_capture_into(other, arena, stream) == MILLPOND_INVALID_ARGUMENT);
  EXPECT(millpond_capture_into(plain, arena, stream) == MILLPOND_NOT_SUPPORTED);
  EXPECT(millpond_capture_into(pool, NULL, stream) == MILLPOND_INVALID_ARGUMENT);
  EXPECT(millpond_capture_into(pool, arena, stream) == MILLPOND_OK);
  EXPECT(millpond_capture_cache_create(pool, stream, &cache) == MILLPOND_OK && cache != NULL);
  EXPECT(millpond_capture_cache_allocate(cache, bytes, &x) == MILLPOND_OK && x != NULL);
  EXPECT(millpond_capture_cache_deallocate(cache, x, bytes - 1) == MILLPOND_INVALID_ARGUMENT);
  EXPECT(millpond_capture_cache_deallocate(cache, x, bytes) == MILLPOND_OK);
  EXPECT(millpond_capture_cache_allocate(cache, bytes, &y) == MILLPOND_OK && y == x);
  EXPECT(millpond_capture_cache_deallocate(cache, y, bytes) == MILLPOND_OK);
  millpond_capture_cache_destroy(cache);
  EXPECT(millpond_stream_end_capture(gpu, stream, &first) == MILLPOND_OK && first != NULL);

  EXPECT(millpond_stream_begin_capture(gpu, stream, 0) == MILLPOND_OK);
  EXPECT(millpond_capture_into(pool, arena, stream) == MILLPOND_OK);
  EXPECT(millpond_allocate(pool, bytes, 0, stream, &z) == MILLPOND_OK && z == x);
  EXPECT(millpond_deallocate(pool, z, bytes, stream) == MILLPOND_OK);
  EXPECT(millpond_stream_end_capture(gpu, stream, &second) == MILLPOND_OK);

  now.struct_bytes = sizeof now;
  EXPECT(millpond_get_statistics(pool, &now) == MILLPOND_OK);
  EXPECT(now.live_blocks == 0 && now.capture_bytes >= bytes);
  millpond_graph_arena_destroy(arena);
  EXPECT(millpond_graph_destroy(gpu, first) == MILLPOND_OK);
  EXPECT(millpond_graph_destroy(gpu, second) == MILLPOND_OK);
  EXPECT(millpond_stream_synchronize(gpu, stream) == MILLPOND_OK);
  EXPECT(millpond_trim(pool, 0, NULL) == MILLPOND_OK);
  EXPECT(millpond_get_statistics(pool, &now) == MILLPOND_OK);
  EXPECT(now.capture_bytes == 0 && now.reserved_bytes == 0);
  millpond_graph_arena_destroy(NULL);
  millpond_capture_cache_destroy(NULL);
  millpond_memory_destroy(pool);
  millpond_memory_destroy(other);
  millpond_memory_destroy(plain);
  EXPECT(millpond_stream_destroy(gpu, stream) == MILLPOND_OK);
}

/* A child of fork() may not touch its parent's memory, and is answered so. */
static void in_a_child(millpond_gpu* gpu) {
  millpond_memory* pool = NULL;
  void* ptr = NULL;
  int status = 0;
  EXPECT(millpond_pool_create(gpu, NULL, &pool) == MILLPOND_OK);
  EXPECT(millpond_allocate(pool, 4096, 0, NULL, &ptr) == MILLPOND_OK);
  fflush(NULL);
  const pid_t child = fork();
  if (child == 0) {
    void* none = NULL;
    const int refused = millpond_allocate(pool, 4096, 0, NULL, &none) == MILLPOND_NOT_PERMITTED &&
                        millpond_deallocate(pool, ptr, 4096, NULL) == MILLPOND_NOT_PERMITTED &&
                        strstr(millpond_last_error(), "forked") != NULL;
    _exit(refused ? 0 : 1);
  }
  EXPECT(child > 0 && waitpid(child, &status, 0) == child && status == 0);
  EXPECT(millpond_deallocate(pool, ptr, 4096, NULL) == MILLPOND_OK);
  millpond_memory_destroy(pool);
}

/* Without a driver the answer says what is missing; with one it opens. */
static void the_card(void) {
  millpond_gpu* gpu = NULL;
  int count = -1;
  if (millpond_gpu_count(&count) == MILLPOND_OK && count > 0) {
    EXPECT(millpond_gpu_open(0, &gpu) == MILLPOND_OK);
    EXPECT(!millpond_gpu_simulated(gpu));
    millpond_gpu_close(gpu);
    return;
  }
  EXPECT(millpond_gpu_open(0, &gpu) != MILLPOND_OK && gpu == NULL);
  EXPECT(strlen(millpond_last_error()) > 20);
}

int main(void) {
  millpond_gpu* gpu = NULL;
  the_library();
  EXPECT(millpond_gpu_simulate("no such profile", 0, &gpu) != MILLPOND_OK && gpu == NULL);
  EXPECT(millpond_gpu_simulate(NULL, (uint64_t)1 << 30, &gpu) == MILLPOND_OK);
  EXPECT(strstr(millpond_gpu_name(gpu), "simulated") != NULL && millpond_gpu_simulated(gpu));
  every_kind(gpu);
  wrong_frees(gpu);
  a_pool(gpu);
  graphs(gpu);
  in_a_child(gpu);
  millpond_gpu_close(gpu);
  the_card();
  printf(failures == 0 ? "the C interface is as its header says\n" : "%d expectations failed\n",
         failures);
  return failures == 0 ? 0 : 1;
}
