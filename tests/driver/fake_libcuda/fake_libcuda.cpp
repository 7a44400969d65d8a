// A libcuda with scripted answers: every function that millpond asks for is here, notes its name
// and arguments, and answers what the script says. It stands for the driver's manners (what is
// found, what fails, what is called in which order), not for a GPU.
#include "driver/fake_libcuda/fake_libcuda.hpp"

#include <cstring>
#include <string_view>
#include <type_traits>

#include "driver/cuda/functions.hpp"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

using namespace millpond;  // the types of the functions' list
using namespace millpond::cuda;

namespace {

fake_libcuda_script script;

template <class Argument>
std::uint64_t bits_of(Argument argument) {
  std::uint64_t bits = 0;
  // NOLINTBEGIN(bugprone-sizeof-expression): a pointer's own size is meant
  static_assert(sizeof argument <= sizeof bits);
  std::memcpy(&bits, &argument, sizeof argument);
  // NOLINTEND(bugprone-sizeof-expression)
  return bits;
}

// Notes a call; gives what it answers.
template <class... Arguments>
int note(const char* name, Arguments... arguments) {
  ++script.calls;
  std::strncpy(script.last, name, sizeof script.last - 1);
  if (std::strlen(script.log) + std::strlen(name) + 2 < sizeof script.log) {
    std::strcat(std::strcat(script.log, name), " ");
  }
  std::memset(script.arguments, 0, sizeof script.arguments);
  [[maybe_unused]] int at = 0;
  ((script.arguments[at++] = bits_of(arguments)), ...);
  return std::string_view(script.failing) == name ? script.failing_status : 0;
}

template <class Pointer>
Pointer handle(std::uintptr_t value) {
  return reinterpret_cast<Pointer>(value);
}

// What a function does when it succeeds, beyond being noted.
struct user_object {
  void* data = nullptr;
  host_callback destroy = nullptr;
};
user_object the_object;

struct effect {
  static void device_get(int* device, int ordinal) { *device = ordinal; }
  static void device_get_count(int* count) { *count = script.devices; }
  static void device_get_name(char* name, int length, int) {
    std::strncpy(name, "Scripted GPU", static_cast<std::size_t>(length));
  }
  static void device_total_memory(std::size_t* bytes, int) { *bytes = std::size_t{1} << 30; }
  static void device_get_attribute(int* value, int which, int) {
    *value = which == attribute_host_numa_id ? 0 : which == attribute_multiprocessors ? 4 : 1;
  }
  static void primary_context_retain(context_handle* context, int) {
    ++script.retained;
    *context = handle<context_handle>(0xc0);
  }
  static void primary_context_release(int) { ++script.released; }
  static void context_set_current(context_handle context) {
    script.current_context = bits_of(context);
  }
  static void context_get_current(context_handle* context) {
    *context = handle<context_handle>(script.current_context);
  }
  static void context_get_device(int* device) { *device = 7; }
  static void granularity(std::size_t* bytes, const allocation_properties*, int) {
    *bytes = std::size_t{2} << 20;
  }
  static void stream_get_context(stream_handle, context_handle* context) {
    *context = handle<context_handle>(0xc7);
  }
  static void stream_get_device(stream_handle, int* device) { *device = 3; }
  static void stream_is_capturing(stream_handle, int* status) { *status = script.capturing; }
  static void stream_get_capture(stream_handle, int* status, std::uint64_t* id, graph_handle* graph,
                                 CUgraphNode_st* const**, const CUgraphEdgeData_st**,
                                 std::size_t*) {
    *status = script.capturing;
    *id = 42;
    *graph = handle<graph_handle>(0x9a);
  }
  static void exchange_capture_mode(int* mode) {
    const int before = script.capture_mode;
    script.capture_mode = *mode;
    *mode = before;
  }
  static void module_load_data(module_handle* module, const void*) {
    ++script.modules;
    *module = handle<module_handle>(0x30);
  }
  static void module_unload(module_handle) { --script.modules; }
  static void module_get_function(function_handle* function, module_handle, const char*) {
    *function = handle<function_handle>(0x31);
  }
  static void pool_create(pool_handle* pool, const pool_properties*) {
    *pool = handle<pool_handle>(0x50);
  }
  static void pool_get_attribute(pool_handle, int attribute, void* value) {
    const auto answer = static_cast<std::uint64_t>(attribute);
    std::memcpy(value, &answer, sizeof answer);
  }
  static void pointer_get_attributes(unsigned count, int* attributes, void** data,
                                     device_address at) {
    for (unsigned i = 0; i < count; ++i) {
      switch (attributes[i]) {
        case pointer_memory_type: std::memcpy(data[i], &script.memory_type, 4); break;
        case pointer_is_managed: std::memcpy(data[i], &script.managed, 1); break;
        case pointer_range_start: std::memcpy(data[i], &at, 8); break;
        case pointer_pool: std::memcpy(data[i], &script.pool, 8); break;
        default: {
          const std::uint64_t bytes = 4096;
          std::memcpy(data[i], &bytes, 8);
        }
      }
    }
  }
  // User objects are real, one at a time. A graph that takes one is taken to be gone at once.
  static void user_object_create(user_object_handle* object, void* data, host_callback destroy,
                                 unsigned, unsigned) {
    the_object = {data, destroy};
    *object = handle<user_object_handle>(0x60);
  }
  static void user_object_release(user_object_handle, unsigned) {
    the_object.destroy(the_object.data);
  }
  static void graph_retain_user_object(graph_handle, user_object_handle, unsigned, unsigned) {
    the_object.destroy(the_object.data);
  }
};

// The function of one line of the list: notes itself, then has its effect if there is one. The
// effects are a template argument so that asking for one that is not there is a question, not an
// error.
// NOLINTBEGIN(bugprone-macro-parentheses): in parentheses `int (...)` would be no function's type
#define FAKE_CLASS(member, name, version, parameters)                                             \
  struct fake_##member {                                                                          \
    template <class Effects, class Signature>                                                     \
    struct of;                                                                                    \
    template <class Effects, class... Parameters>                                                 \
    struct of<Effects, int(Parameters...)> {                                                      \
      static int call(Parameters... arguments) {                                                  \
        const int status = note(#name, arguments...);                                             \
        if constexpr (requires { Effects::member(arguments...); }) {                              \
          if (status == 0) Effects::member(arguments...);                                         \
        }                                                                                         \
        return status;                                                                            \
      }                                                                                           \
    };                                                                                            \
    static void* address() { return reinterpret_cast<void*>(&of<effect, int parameters>::call); } \
  };

MILLPOND_CUDA_FUNCTIONS(FAKE_CLASS, FAKE_CLASS)
// NOLINTEND(bugprone-macro-parentheses)

struct line {
  const char* name;
  int version;
  void* address;
};

const line* find(std::string_view name) {
#define FAKE_LINE(member, name, version, parameters) {#name, version, fake_##member::address()},
  static const line lines[] = {MILLPOND_CUDA_FUNCTIONS(FAKE_LINE, FAKE_LINE)};
  for (const line& each : lines) {
    if (name == each.name) return &each;
  }
  return nullptr;
}

}  // namespace

FAKE_EXPORT fake_libcuda_script* fake_libcuda() {
  return &script;
}

FAKE_EXPORT int cuInit(unsigned) {
  return script.init_status;
}

FAKE_EXPORT int cuDriverGetVersion(int* version) {
  *version = script.version;
  return 0;
}

FAKE_EXPORT int cuGetProcAddress_v2(const char* name, void** address, int version, std::uint64_t,
                                    int* why) {
  const line* found = std::string_view(script.missing) == name ? nullptr : find(name);
  // As the driver does: a name that the asked version does not have yet is not found.
  const bool there = found != nullptr && found->version <= version && version <= script.version;
  *address = there ? found->address : nullptr;
  *why = there ? 0 : 1;
  return there ? 0 : static_cast<int>(driver_status::not_found);
}
