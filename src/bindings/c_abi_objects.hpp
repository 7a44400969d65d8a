// What the opaque handles of millpond.h are, and how an error becomes a status and a sentence.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "millpond.h"
#include "millpond/detail/pointer_registry.hpp"
#include "millpond/pool/pool.hpp"

struct millpond_gpu {
  std::shared_ptr<millpond::driver> driver;
  std::shared_ptr<millpond::pointer_registry> registry;  // of all plain sources
};

struct millpond_memory {
  std::shared_ptr<millpond::memory_resource> resource;
  std::shared_ptr<millpond::pool> pool;  // the same where it is one
};

struct millpond_cache {
  millpond::pool::cache_handle cache;
};

struct millpond_graph_arena {
  millpond::graph_arena arena;
};

struct millpond_capture_cache {
  millpond::pool::capture_cache_handle cache;
};

namespace millpond::c_abi {

[[nodiscard]] millpond_status status_of(error_code code) noexcept;
// Remembers the sentence for the calling thread.
millpond_status fail(millpond_status status, std::string sentence) noexcept;
millpond_status fail(const error& failure) noexcept;
millpond_status null_argument(const char* which);
// The refusal of what only a pool can do.
millpond_status no_pool(const millpond_memory* memory);
[[nodiscard]] const char* last_error() noexcept;

// Runs body, which answers a status, and turns whatever it throws into one: no exception crosses a
// C frame.
template <class Body>
millpond_status guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (const memory_error& failure) {
    return fail(status_of(failure.code()), failure.what());
  } catch (const std::bad_alloc& failure) {
    return fail(MILLPOND_OUT_OF_MEMORY, failure.what());
  } catch (const std::exception& failure) {
    return fail(MILLPOND_DRIVER_FAILURE, failure.what());
  }
}

// A caller's structure as the pool's own options; nullptr gives the defaults.
result<pool_options> read_pool_options(const millpond_pool_options* given);

// The host's clock for bounded waits, in nanoseconds.
[[nodiscard]] std::uint64_t host_now_ns() noexcept;

}  // namespace millpond::c_abi
