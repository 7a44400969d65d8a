// Errors of the C ABI, and which copies of the library a process has.
#include <dlfcn.h>
#include <link.h>

#include <chrono>
#include <cstring>
#include <string_view>

#include "bindings/c_abi_objects.hpp"

namespace millpond::c_abi {
namespace {

// A thread that fails twice keeps the second sentence. Its memory is the thread's own.
thread_local std::string last_sentence;

struct copies {
  std::string self;
  std::string others;  // "PATH (0.2.0), PATH (0.3.0)"
};

// The path of the object that an address lies in.
std::string object_of(const void* address) {
  Dl_info found{};
  return dladdr(address, &found) != 0 && found.dli_fname != nullptr ? found.dli_fname
                                                                    : std::string();
}

int look_at(dl_phdr_info* info, std::size_t, void* data) {
  auto& seen = *static_cast<copies*>(data);
  const std::string_view path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  const std::string_view file = path.substr(path.rfind('/') + 1);
  // libmillpond.so.0 and libmillpond_preload.so, which holds a pool of its own; not the entry
  // points of PyTorch.
  if (!file.starts_with("libmillpond.so") && !file.starts_with("libmillpond_preload.so")) return 0;
  if (path == seen.self) return 0;
  std::string version = "version not known";
  if (void* const library = ::dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD)) {
    using version_function = const char*();
    if (auto* const ask = reinterpret_cast<version_function*>(::dlsym(library, "millpond_version")))
      version = ask();
    ::dlclose(library);
  }
  seen.others += (seen.others.empty() ? "" : ", ") + std::string(path) + " (" + version + ")";
  return 0;
}

}  // namespace

millpond_status status_of(error_code code) noexcept {
  switch (code) {
    case error_code::invalid_argument: return MILLPOND_INVALID_ARGUMENT;
    case error_code::out_of_memory: return MILLPOND_OUT_OF_MEMORY;
    case error_code::driver_failure: return MILLPOND_DRIVER_FAILURE;
    case error_code::not_supported: return MILLPOND_NOT_SUPPORTED;
    case error_code::wrong_kind: return MILLPOND_WRONG_KIND;
    case error_code::double_free: return MILLPOND_DOUBLE_FREE;
    case error_code::foreign_pointer: return MILLPOND_FOREIGN_POINTER;
    case error_code::interior_pointer: return MILLPOND_INTERIOR_POINTER;
    case error_code::bad_input: return MILLPOND_BAD_INPUT;
    case error_code::output_failure: return MILLPOND_OUTPUT_FAILURE;
    case error_code::not_permitted: return MILLPOND_NOT_PERMITTED;
  }
  return MILLPOND_DRIVER_FAILURE;
}

millpond_status fail(millpond_status status, std::string sentence) noexcept {
  last_sentence = std::move(sentence);
  return status;
}
millpond_status fail(const error& failure) noexcept {
  return fail(status_of(failure.code), failure.message);
}
millpond_status null_argument(const char* which) {
  return fail(MILLPOND_INVALID_ARGUMENT, std::string(which) + " is NULL");
}
millpond_status no_pool(const millpond_memory* memory) {
  if (memory == nullptr) return null_argument("the memory");
  return fail(MILLPOND_NOT_SUPPORTED,
              std::string("only a pool can do this, and the memory given is plain ") +
                  to_string(memory->resource->kind()) + " memory");
}
const char* last_error() noexcept {
  return last_sentence.c_str();
}

std::uint64_t host_now_ns() noexcept {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

}  // namespace millpond::c_abi

using namespace millpond;

const char* millpond_version(void) {
  return MILLPOND_VERSION;
}

millpond_status millpond_compatible(int abi) {
  if (abi >= 1 && abi <= MILLPOND_ABI) return MILLPOND_OK;
  return c_abi::fail(MILLPOND_NOT_SUPPORTED,
                     "the program was built for version " + std::to_string(abi) +
                         " of millpond's C interface, and the library loaded (" MILLPOND_VERSION
                         ") has version " +
                         std::to_string(MILLPOND_ABI) + ": load a newer libmillpond.so");
}

const char* millpond_status_name(millpond_status status) {
  static constexpr error_code codes[] = {
      error_code::invalid_argument, error_code::out_of_memory,    error_code::driver_failure,
      error_code::not_supported,    error_code::wrong_kind,       error_code::double_free,
      error_code::foreign_pointer,  error_code::interior_pointer, error_code::bad_input,
      error_code::output_failure,   error_code::not_permitted};
  if (status == MILLPOND_OK) return "ok";
  const int at = static_cast<int>(status) - 1;
  return at >= 0 && at < static_cast<int>(std::size(codes)) ? to_string(codes[at])
                                                            : "no such status";
}

const char* millpond_kind_name(millpond_kind kind) {
  const int value = static_cast<int>(kind);
  return value >= 0 && value <= static_cast<int>(MILLPOND_PAGEABLE)
             ? to_string(static_cast<memory_kind>(value))
             : "no such kind";
}

const char* millpond_last_error(void) {
  return c_abi::last_error();
}

millpond_status millpond_check_single_copy(void) {
  return c_abi::guarded([] {
    c_abi::copies seen;
    seen.self = c_abi::object_of(reinterpret_cast<const void*>(&millpond_check_single_copy));
    ::dl_iterate_phdr(c_abi::look_at, &seen);
    if (seen.others.empty()) return MILLPOND_OK;
    return c_abi::fail(
        MILLPOND_NOT_PERMITTED,
        "this process has more than one millpond loaded: " + seen.self +
            " (" MILLPOND_VERSION ") and " + seen.others +
            ". Each knows its own blocks alone: a block freed through the other one is refused "
            "as foreign. Load one of them");
  });
}
