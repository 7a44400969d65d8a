#if __has_include(<cupti.h>) && __has_include(<cuda.h>)
#include "record/translate.hpp"

#include "base/thread_number.hpp"
#include "record/thread_blocks.hpp"
#include "record/translate_call.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace millpond::record {
namespace {

using trace::action;
using trace::copy_direction;
using trace::kind;

// The most notes for the words of one kernel's arguments, of which libraries pass up to 4 KiB by
// value: 99 words.
constexpr std::size_t most_argument_notes = 11;
// Small copies to the device may carry tables of pointers.
constexpr std::uint64_t largest_table_bytes = 4096;

}  // namespace

constinit thread_local thread_state here;

namespace {
// Where there is no memory for more of them.
constinit thread_local thread_known_layout last_layout __attribute__((tls_model("initial-exec")));
thread_state::known_layouts*& layouts_slot() noexcept {
  return here.layouts;
}
}  // namespace

std::uint64_t translator::handle_of(const call& of, CUstream stream) {
  return stream == nullptr && of.per_thread ? per_thread_stream : bits(stream);
}

// Which device the calls are for from now on.
__attribute__((cold, noinline)) void translator::enter_context(CUcontext context) const {
  if (context == nullptr || driver_.context_device == nullptr) return;
  CUdevice device = 0;
  if (driver_.context_device(&device) != CUDA_SUCCESS) return;
  here.device = static_cast<std::uint16_t>(device);
  here.context = context;
  here.pool_version = 0;
}

note translator::begin(const call& of, action what) const {
  if (of.data.context != here.context) enter_context(of.data.context);
  note made;
  made.at.what = what;
  made.at.thread = thread_number();
  made.at.device = here.device;
  const std::uint64_t now = to_.ticks();
  if (of.at_exit()) {
    made.at.time_ns = here.entered;
    made.took = of.noted || now < here.entered ? 0 : now - here.entered;
    made.at.status = of.status();
  } else {
    made.at.time_ns = now;
  }
  return made;
}

// The runtime's callbacks for its stream-ordered pair would cost as much as the driver's call: a
// program that uses the runtime is taken to make them through it.
const char* translator::pair_name(const call& of, const char* runtime_name) const {
  return runtime_used_.load(std::memory_order_relaxed) ? runtime_name : of.name();
}

void translator::allocated(call& of, std::uint64_t address, std::uint64_t bytes, kind what,
                           CUstream stream, std::uint64_t pool, const char* runtime_name) {
  note made = begin(of, action::allocate);
  made.at.address = made.at.status == 0 ? address : 0;
  made.at.bytes = bytes;
  made.at.of = what;
  made.at.stream = handle_of(of, stream);
  made.at.object = text_bits(runtime_name == nullptr ? of.name() : pair_name(of, runtime_name));
  made.at.other = pool;
  made.at.stack = to_.stack(recorder::call_sort::memory);
  if (made.at.status == 0 && what != kind::pageable) {
    for (std::uint64_t low = lowest_.load();
         address < low && !lowest_.compare_exchange_weak(low, address);) {
    }
    for (std::uint64_t high = highest_.load();
         address + bytes > high && !highest_.compare_exchange_weak(high, address + bytes);) {
    }
  }
  if (what == kind::managed && !saw_managed_.load(std::memory_order_relaxed))
    saw_managed_.store(true, std::memory_order_relaxed);
  to_.put(made);
}

void translator::freeing(call& of, std::uint64_t address, kind what, CUstream stream) {
  if (of.at_exit()) {
    if (!here.free_noted) return;
    here.free_noted = false;
    note made = begin(of, action::free);
    made.form = note_form::amend;
    made.link = here.free_position;
    to_.put(made);
    return;
  }
  note made = begin(of, action::free);
  made.at.address = address;
  made.at.of = what;
  made.at.stream = handle_of(of, stream);
  made.at.object =
      text_bits(what == kind::driver_pool ? pair_name(of, "cudaFreeAsync") : of.name());
  made.at.stack = to_.stack(recorder::call_sort::memory);
  made.awaits_amend = true;
  const auto position = to_.put(made);
  here.free_noted = position.has_value();
  here.free_position = position.value_or(0);
}

void translator::stored_addresses(const call& of, const void* from, std::uint64_t bytes,
                                  CUstream stream) {
  if (bytes > largest_table_bytes || bits(from) % sizeof(std::uint64_t) != 0) return;
  constexpr std::size_t most_stored = 64;
  std::size_t count = 0;
  for (std::uint64_t at = 0; at + sizeof(std::uint64_t) <= bytes && count < most_stored;
       at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, static_cast<const char*>(from) + at, sizeof word);
    if (!may_be_block(word)) continue;
    note made = begin(of, action::use);
    made.at.address = word;
    made.at.stream = handle_of(of, stream);
    set_operands(made.at, trace::use_operands{trace::use_form::stored});
    made.took = 0;
    to_.put(made);
    ++count;
  }
}

void translator::copied(call& of, std::uint64_t to, std::uint64_t from, std::uint64_t bytes,
                        copy_direction direction, CUstream stream, bool asynchronous) {
  note made = begin(of, action::copy);
  set_operands(made.at, trace::copy_operands{to, from, direction, asynchronous});
  made.at.bytes = bytes;
  made.at.stream = handle_of(of, stream);
  made.at.stack = to_.stack(recorder::call_sort::memory);
  to_.put(made);
  // Only the direct form says that the source is the host's memory, to be read without a thought.
  if (direction == copy_direction::host_to_device && made.at.status == 0) {
    stored_addresses(of, reinterpret_cast<const void*>(from), bytes, stream);
  }
}

void translator::set(call& of, std::uint64_t address, std::uint64_t bytes, CUstream stream) {
  note made = begin(of, action::memset);
  made.at.address = address;
  made.at.bytes = bytes;
  made.at.stream = handle_of(of, stream);
  made.at.stack = to_.stack(recorder::call_sort::memory);
  to_.put(made);
}

void translator::simple(call& of, action what, CUstream stream, std::uint64_t object) {
  note made = begin(of, what);
  made.at.stream = handle_of(of, stream);
  made.at.object = object;
  to_.put(made);
}

__attribute__((cold, noinline)) const translator::layout& translator::look_up_layout(
    CUfunction function, const char* name, std::uint32_t unloaded) {
  const std::lock_guard lock(layouts_mutex_);
  auto& known = layouts_[function];
  if (known && known->unloaded == unloaded) return *known;
  (void)known.release();  // another thread may still read it
  known = std::make_unique<layout>();
  known->unloaded = unloaded;
  known->name = to_.keep(name == nullptr ? "kernel" : name);
  bool of_library = false;
  for (std::size_t index = 0;; ++index) {
    size_t offset = 0, bytes = 0;
    CUresult answer = CUDA_ERROR_NOT_SUPPORTED;
    if (!of_library && driver_.function_parameter != nullptr)
      answer = driver_.function_parameter(function, index, &offset, &bytes);
    // A launch takes a function of a module or a kernel of a library, in one argument; the
    // runtime's are the latter.
    if (answer != CUDA_SUCCESS && (index == 0 || of_library) &&
        driver_.kernel_parameter != nullptr) {
      of_library = true;
      answer =
          driver_.kernel_parameter(reinterpret_cast<CUkernel>(function), index, &offset, &bytes);
    }
    if (answer == CUDA_SUCCESS) {
      known->known = true;
      if (bytes >= sizeof(std::uint64_t)) {
        known->parameters.push_back({static_cast<std::uint32_t>(index),
                                     static_cast<std::uint32_t>(offset),
                                     static_cast<std::uint32_t>(bytes)});
      }
    } else {
      // Past the last parameter the answer is "invalid value"; a kernel with none is known too.
      if (index == 0) known->known = answer == CUDA_ERROR_INVALID_VALUE;
      break;
    }
  }
  if (!known->known) unknown_layouts_.fetch_add(1, std::memory_order_relaxed);
  return *known;
}

__attribute__((cold, noinline)) void translator::learn(thread_known_layout& slot,
                                                       CUfunction function, const char* name,
                                                       std::uint32_t unloaded) {
  const layout& shape = look_up_layout(function, name, unloaded);
  slot = {};
  slot.function = function;
  slot.shape = &shape;
  slot.name = shape.name;
  slot.unloaded = unloaded;
  const bool fits = shape.parameters.size() <= slot.parameters.size() &&
                    std::ranges::all_of(shape.parameters, [](const parameter& each) {
                      return each.number <= UINT16_MAX && each.bytes <= UINT16_MAX;
                    });
  if (!fits) return;
  slot.count = static_cast<std::uint8_t>(shape.parameters.size());
  for (std::size_t n = 0; n < shape.parameters.size(); ++n) {
    slot.parameters[n] = {static_cast<std::uint16_t>(shape.parameters[n].number),
                          static_cast<std::uint16_t>(shape.parameters[n].bytes)};
  }
}

namespace {

// Words among a kernel's arguments that lie where blocks do, by one comparison a word: structures
// of libraries are hundreds of words long.
struct found_words {
  static constexpr std::size_t most =
      kernel_launch::most + most_argument_notes * argument_words::most;
  std::uint64_t lowest, range;
  std::size_t count = 0;
  std::array<std::uint64_t, most> address;
  std::array<bool, most> structure;

  // The arguments of a launch, each where it lies.
  template <class Parameter>
  [[gnu::always_inline]] void look_through(void** arguments,
                                           std::span<const Parameter> parameters) noexcept {
    for (const Parameter& each : parameters) {
      if (arguments[each.number] != nullptr)
        look(static_cast<const char*>(arguments[each.number]), each.bytes);
    }
  }
  // The same in one buffer, which the pairs of `extra` name.
  template <class Parameter>
  [[gnu::always_inline]] void look_through_buffer(void** extra,
                                                  std::span<const Parameter> parameters) noexcept {
    const char* buffer = nullptr;
    std::size_t bytes = 0;
    for (std::size_t n = 0; n < 8 && extra[n] != CU_LAUNCH_PARAM_END; n += 2) {
      if (extra[n] == CU_LAUNCH_PARAM_BUFFER_POINTER)
        buffer = static_cast<const char*>(extra[n + 1]);
      if (extra[n] == CU_LAUNCH_PARAM_BUFFER_SIZE)
        bytes = *static_cast<const std::size_t*>(extra[n + 1]);
    }
    for (const Parameter& each : parameters) {
      if (buffer != nullptr && each.offset + each.bytes <= bytes)
        look(buffer + each.offset, each.bytes);
    }
  }
  // The first `words` into the launch's own note.
  [[gnu::always_inline]] void write_first(kernel_launch& to, std::size_t words) const noexcept {
    to.count = static_cast<std::uint8_t>(words);
    for (std::size_t word = 0; word < words; ++word) {
      to.address[word] = address[word];
      if (structure[word]) to.structures = static_cast<std::uint8_t>(to.structures | 1u << word);
    }
  }
  // Those from `begin` on, as many as a note of arguments holds.
  [[gnu::always_inline]] void write_more(note& to, std::size_t begin) const noexcept {
    argument_words& words = *std::construct_at(&to.words);
    to.form = note_form::arguments;
    for (; words.count < argument_words::most && begin + words.count < count; ++words.count) {
      words.address[words.count] = address[begin + words.count];
      if (structure[begin + words.count])
        words.structures = static_cast<std::uint16_t>(words.structures | 1u << words.count);
    }
  }

  void look(const char* from, std::uint32_t bytes) noexcept {
    if (bytes == sizeof(std::uint64_t)) {
      look_at(from, false);
      return;
    }
    std::uint32_t at = 0;
#if defined(__x86_64__)
    static const bool wide = __builtin_cpu_supports("avx2") != 0;
    if (wide && bytes >= 4 * four_words) at = look_wide(from, bytes);
#endif
    for (; at + sizeof(std::uint64_t) <= bytes; at += sizeof(std::uint64_t))
      look_at(from + at, true);
  }
  void look_at(const char* from, bool in_structure) noexcept {
    std::uint64_t word = 0;
    std::memcpy(&word, from, sizeof word);
    if (word - lowest >= range || count == most) [[likely]]
      return;
    address[count] = word;
    structure[count++] = in_structure;
  }

#if defined(__x86_64__)
  static constexpr std::uint32_t four_words = 32;
  // Four words by one comparison, which knows signed numbers alone: both sides are moved by half of
  // all numbers. Gives how many bytes it has seen.
  __attribute__((target("avx2"))) std::uint32_t look_wide(const char* from,
                                                          std::uint32_t bytes) noexcept {
    constexpr auto half = std::numeric_limits<long long>::min();
    const __m256i begin = _mm256_set1_epi64x(static_cast<long long>(lowest) ^ half);
    const __m256i end = _mm256_set1_epi64x(static_cast<long long>(range) ^ half);
    std::uint32_t at = 0;
    for (; at + four_words <= bytes; at += four_words) {
      const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at));
      // (word - lowest) moved by half: lowest moved by half is taken away, which is the same
      // number.
      const __m256i inside = _mm256_cmpgt_epi64(end, _mm256_sub_epi64(words, begin));
      if (_mm256_testz_si256(inside, inside) != 0) [[likely]]
        continue;
      for (std::uint32_t each = 0; each < four_words; each += sizeof(std::uint64_t))
        look_at(from + at + each, true);
    }
    return at;
  }
#endif
};

}  // namespace

void translator::launch(call& of, CUfunction function, CUstream stream, void** parameters,
                        void** extra) {
  if (!kernels_) return;  // where every call is counted, launches come here all the same
  if (of.data.context != here.context) enter_context(of.data.context);
  // A module that is unloaded leaves its functions' handles to others.
  const std::uint32_t unloaded = unloaded_modules_.load(std::memory_order_acquire);
  auto* const known_here = thread_blocks<thread_state::known_layouts, layouts_slot>::mine();
  auto& known =
      known_here == nullptr
          ? last_layout
          : (*known_here)[(bits(function) >> 4 ^ bits(function) >> 12) % known_here->size()];
  if (known.function != function || known.unloaded != unloaded)
    learn(known, function, of.data.symbolName, unloaded);
  const std::uint64_t lowest = lowest_.load(std::memory_order_relaxed),
                      highest = highest_.load(std::memory_order_relaxed);
  found_words found;  // the words are not made ready beforehand
  found.lowest = lowest;
  found.range = highest > lowest ? highest - lowest : 0;
  const auto all_of_it = [&]() -> const std::vector<parameter>& {
    return static_cast<const layout*>(known.shape)->parameters;
  };
  if (parameters != nullptr && known.count != thread_known_layout::elsewhere) {
    found.look_through(parameters, std::span(std::as_const(known.parameters)).first(known.count));
  } else if (parameters != nullptr) {
    found.look_through(parameters, std::span(all_of_it()));
  } else if (extra != nullptr) {
    found.look_through_buffer(extra, std::span(all_of_it()));
  }
  const std::size_t first = std::min(found.count, kernel_launch::most), rest = found.count - first;
  const std::size_t more = (rest + argument_words::most - 1) / argument_words::most;
  const std::uint32_t stack = kernel_stacks_ ? to_.stack(recorder::call_sort::kernel) : 0;
  const std::uint64_t now = to_.ticks();
  to_.put(1 + more, [&](note& to, std::size_t n) {
    to.awaits_amend = to.in_ns = false;
    if (n > 0) {
      found.write_more(to, first + (n - 1) * argument_words::most);
      return;
    }
    to.form = note_form::launch;
    to.link = more;
    to.took = now < here.entered ? 0 : now - here.entered;
    kernel_launch& made = *std::construct_at(&to.kernel);
    made.time = here.entered;
    made.stream = handle_of(of, stream);
    made.name = known.name;
    made.thread = thread_number();
    made.stack = stack;
    made.status = of.status();
    made.device = here.device;
    found.write_first(made, first);
  });
}

void translator::range(const char* text) {
  if (!to_.recording() || text == nullptr) return;
  note made;
  made.at.what = action::mark;
  made.at.thread = thread_number();
  made.at.time_ns = to_.ticks();
  made.at.object = text_bits(to_.keep(text));
  to_.put(made);
}

void translator::runtime_call(const CUpti_CallbackData& data, CUpti_CallbackId id) {
  // Stored once: launches of all threads read the same line.
  if (!runtime_used_.load(std::memory_order_relaxed))
    runtime_used_.store(true, std::memory_order_relaxed);
  // Where every call is counted, calls come here that lend no name.
  const auto known = runtime_ids();
  if (to_.how().count_calls && std::ranges::find(known, id) == known.end()) return;
  // The reset itself is made through no driver call that CUPTI shows.
  if (id == CUPTI_RUNTIME_TRACE_CBID_cudaDeviceReset_v3020 &&
      data.callbackSite == CUPTI_API_ENTER && to_.recording()) {
    here.runtime_name = data.functionName;
    reset(call{data}, here.device);
  }
  here.runtime_name = data.callbackSite == CUPTI_API_ENTER ? data.functionName : nullptr;
}

// The way of launches, which are most of what a program calls, lies in few lines of code: between
// two of them the program runs through more code than the nearest caches hold.
__attribute__((hot)) bool translator::launch_call(CUpti_CallbackId id,
                                                  const CUpti_CallbackData& data) {
  if (id != MILLPOND_ID(cuLaunchKernel) && id != MILLPOND_ID(cuLaunchKernelEx)) return false;
  if (!to_.recording()) return true;
  if (data.callbackSite != CUPTI_API_EXIT) {
    here.entered = to_.ticks();
    return true;
  }
  call of{data};
  if (id == MILLPOND_ID(cuLaunchKernel)) {
    const auto& with = of.of<cuLaunchKernel_params>();
    launch(of, with.f, with.hStream, with.kernelParams, with.extra);
  } else {
    const auto& with = of.of<cuLaunchKernelEx_params>();
    launch(of, with.f, with.config->hStream, with.kernelParams, with.extra);
  }
  return true;
}

void translator::driver_call(CUpti_CallbackId id, const CUpti_CallbackData& data) {
  if (launch_call(id, data)) return;
  if (!to_.recording()) return;
  call of{data};
  if (of.at_exit()) {
    if (!work(id, of)) batch(id, of);
  } else {
    // What the noting itself takes is not the call's time.
    if (entered(id, of)) here.entered = to_.ticks();
  }
}

// What must be noted before the driver acts: once memory or a handle is given back, another thread
// may get it.
bool translator::entered(CUpti_CallbackId id, call& of) {
  switch (id) {
    case MILLPOND_ID(cuMemFree_v2):
    case MILLPOND_ID(cuMemFreeHost):
    case MILLPOND_ID(cuMemHostUnregister):
    case MILLPOND_ID(cuMemFreeAsync):
    case MILLPOND_ID(cuMemFreeAsync_ptsz):
    case MILLPOND_ID(cuMemUnmap): work(id, of); break;
    case MILLPOND_ID(cuStreamDestroy_v2):
      simple(of, action::stream_destroy, of.of<cuStreamDestroy_v2_params>().hStream, 0);
      break;
    case MILLPOND_ID(cuGraphDestroy):
      simple(of, action::graph_destroy, nullptr, bits(of.of<cuGraphDestroy_params>().hGraph));
      break;
    case MILLPOND_ID(cuDevicePrimaryCtxReset):
    case MILLPOND_ID(cuDevicePrimaryCtxReset_v2):
      reset(of, static_cast<std::uint16_t>(of.of<cuDevicePrimaryCtxReset_v2_params>().dev));
      break;
    case MILLPOND_ID(cuCtxDestroy_v2): reset(of, here.device); break;
    case MILLPOND_ID(cuModuleUnload):
    case MILLPOND_ID(cuLibraryUnload):
      unloaded_modules_.fetch_add(1, std::memory_order_acq_rel);
      break;
    default: break;
  }
  return true;
}

void translator::reset(const call& of, std::uint16_t device) {
  note made = begin(of, action::free);
  made.form = note_form::reset;
  made.at.object = text_bits(of.name());
  made.at.device = device;
  to_.put(made);
}

// The device's pool that a stream-ordered allocation without one comes from; 0 where the driver
// does not say.
std::uint64_t translator::current_pool() const {
  const std::uint32_t version = pool_version_.load(std::memory_order_relaxed);
  if (here.pool_version != version) {
    CUmemoryPool pool = nullptr;
    if (driver_.current_pool == nullptr || driver_.current_pool(&pool, here.device) != CUDA_SUCCESS)
      return 0;
    here.pool = bits(pool);
    here.pool_version = version;
  }
  return here.pool;
}

}  // namespace millpond::record
#endif
