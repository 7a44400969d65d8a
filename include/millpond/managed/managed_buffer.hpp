// Managed memory that cannot be touched at the wrong time: the CPU and the GPU each reach it
// through a view, and taking a view does the waiting, the prefetching and, in debug mode, the
// guarding that the other side makes necessary.
#pragma once
#include "millpond/detail/language.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "millpond/managed/managed_watch.hpp"
#include "millpond/memory/kinds.hpp"

namespace millpond {

// none: views alone. trap: while the device may use the memory, a CPU access through a stray
// pointer ends the program with a message that names the buffer, where it would read old data or
// move pages under a kernel. One mapping of the process per buffer is needed (a buffer of whole 2
// MiB has it on the simulated GPU); where there is none the buffer answers not_supported. The
// simulated GPU runs kernels' bodies on the CPU: with traps its kernels on such a buffer must have
// none.
enum class managed_debug : std::uint8_t { none, trap };

// How often each side has had the memory, and what the stated use did not say.
struct managed_history {
  std::uint64_t host_views = 0, device_views = 0;
  std::uint64_t host_writes = 0, device_writes = 0;
  std::uint64_t side_changes = 0;  // from the CPU's hands to the GPU's and back
  std::uint64_t prefetches = 0;
  std::uint64_t host_waits = 0;  // the CPU waited for the device
  std::vector<std::string>
      contradictions;  // each once: what happened, and which use to state instead
};

namespace detail {
class managed_core {
 public:
  static result<std::unique_ptr<managed_core>> create(managed_resource& from, std::uint64_t bytes,
                                                      stream_handle stream, managed_debug debug);
  ~managed_core();
  managed_core(const managed_core&) = delete;
  managed_core& operator=(const managed_core&) = delete;

  enum class access : std::uint8_t { read, write };
  template <class Element>
  [[nodiscard]] static constexpr access of() noexcept {
    return std::is_const_v<Element> ? access::read : access::write;
  }
  result<void> begin_host(access how);
  void end_host(access how) noexcept;
  // The stream's identity, by which the view ends.
  result<std::uint64_t> begin_device(access how, stream_handle stream);
  void end_device(access how, stream_handle stream, std::uint64_t id) noexcept;
  result<void> watch(std::shared_ptr<managed_watch> by);
  result<void> look();

  [[nodiscard]] void* data() const noexcept { return data_; }
  [[nodiscard]] const managed_history& history() const noexcept { return history_; }
  [[nodiscard]] const managed_plan& plan() const noexcept { return plan_; }

 private:
  struct user {  // a stream that has had a device view
    std::uint64_t id = 0;
    event_handle done = nullptr;
    bool wrote = false;
    bool unfenced = false;  // its work is behind no event: only a wait for the device covers it
    unsigned views = 0, writers = 0;  // alive
  };
  managed_core(managed_resource& from, managed_plan plan, std::uint64_t bytes, stream_handle own);
  result<user*> user_of(std::uint64_t id);
  result<void> note_first_prefetch(stream_handle stream);
  result<void> order_behind_others(access how, stream_handle stream, std::uint64_t id);
  void fence(user& of, stream_handle stream) noexcept;
  result<void> wait_for_views();
  result<void> wait_for_unfenced();
  enum class applied : std::uint8_t { nothing, read_mostly };
  result<void> tell(applied what);
  result<void> guard(managed_debug debug);
  enum class guarding : std::uint8_t { off, on };
  void protect(guarding now) noexcept;
  void guard_again() noexcept;
  void contradict(std::string what);

  managed_resource& from_;
  driver& gpu_;
  managed_plan plan_;
  std::uint64_t bytes_;
  std::uint64_t whole_;  // with what the resource rounds it up to: what traps guard
  const std::uint32_t born_in_fork_;
  const stream_handle own_;  // the resource's: the one of the allocation may be gone, or capture
  void* data_ = nullptr;
  unsigned host_views_ = 0, device_views_ = 0;      // alive
  unsigned host_writers_ = 0, device_writers_ = 0;  // of them
  memory_side last_ = memory_side::nobody;
  applied applied_ = applied::nothing;  // to the driver
  bool on_host_ = true;                 // the host has had it since the last prefetch to the device
  std::vector<user> users_;
  int guard_ = -1;  // its place in the table of traps
  managed_history history_;
  std::shared_ptr<managed_watch> watch_;
  std::uint64_t created_ = managed_watch::next_beginning();
  managed_page_counts watched_from_;  // what had been counted when it began
};
}  // namespace detail

// Not thread-safe, as a std::vector; two buffers are independent. Views are taken and ended by one
// thread at a time.
//
//     managed_buffer<float> samples = managed_buffer<float>::create(n, managed, stream).value();
//     { auto cpu = samples.host_view().value(); fill(cpu.span()); }               // waited for the
//     GPU, if it had it { auto gpu = samples.device_view(stream).value(); launch(gpu.data(), ...);
//     }   // prefetched on the stream { auto cpu = samples.host_view_to_read().value();
//     use(cpu.span()); }        // waits for the kernel
//
// Rules that views keep: no host view beside a device view, unless both only read; a host view
// waits for all work that was put on a stream under a device view; a device view orders its stream
// after every other stream that wrote; no device view beside one on another stream, unless both
// only read, since what either puts on its stream later would be in no order. The stream of a
// device view lives until the view ends; the stream that the buffer was made on need not. A device
// view ends before its stream captures; where one does not, the next host view waits for the whole
// device.
template <class T>
class managed_buffer {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>,
                "the GPU reads managed memory as bytes");

 public:
  // stream: the memory is allocated for it, and gpu-resident memory prefetched on it. Errors: those
  // of plan_managed and of the resource; out_of_memory for more elements than any memory holds.
  [[nodiscard]] static result<managed_buffer> create(std::size_t count, managed_resource& from,
                                                     stream_handle stream,
                                                     managed_debug debug = managed_debug::none) {
    if (count > max_bytes / sizeof(T)) {
      return error{error_code::out_of_memory, "managed_buffer::create: " + std::to_string(count) +
                                                  " elements of " + std::to_string(sizeof(T)) +
                                                  " bytes are more than any memory holds"};
    }
    auto made = detail::managed_core::create(from, count * sizeof(T), stream, debug);
    if (!made) return made.error();
    return managed_buffer(std::move(*made), count);
  }

  template <class Element>
  class host_view_of {
   public:
    host_view_of(host_view_of&& other) noexcept
        : core_(std::exchange(other.core_, nullptr)), count_(other.count_) {}
    host_view_of& operator=(host_view_of&&) = delete;
    ~host_view_of() {
      if (core_ != nullptr) core_->end_host(detail::managed_core::of<Element>());
    }
    [[nodiscard]] Element* data() const noexcept { return static_cast<Element*>(core_->data()); }
    [[nodiscard]] std::span<Element> span() const noexcept { return {data(), count_}; }

   private:
    friend class managed_buffer;
    host_view_of(detail::managed_core* core, std::size_t count) noexcept
        : core_(core), count_(count) {}
    detail::managed_core* core_;
    std::size_t count_;
  };
  template <class Element>
  class device_view_of {
   public:
    device_view_of(device_view_of&& other) noexcept
        : core_(std::exchange(other.core_, nullptr)), stream_(other.stream_), id_(other.id_) {}
    device_view_of& operator=(device_view_of&&) = delete;
    // All that is on the stream now is what the view was for.
    ~device_view_of() {
      if (core_ != nullptr) core_->end_device(detail::managed_core::of<Element>(), stream_, id_);
    }
    // For kernels' parameters; the CPU may not follow it.
    [[nodiscard]] Element* data() const noexcept { return static_cast<Element*>(core_->data()); }
    [[nodiscard]] device_address address() const noexcept {
      return reinterpret_cast<device_address>(core_->data());
    }
    [[nodiscard]] stream_handle stream() const noexcept { return stream_; }

   private:
    friend class managed_buffer;
    device_view_of(detail::managed_core* core, stream_handle stream, std::uint64_t id) noexcept
        : core_(core), stream_(stream), id_(id) {}
    detail::managed_core* core_;
    stream_handle stream_;
    std::uint64_t id_;
  };
  using host_view_type = host_view_of<T>;
  using device_view_type = device_view_of<T>;

  // not_permitted while a view of the other side is alive that excludes this one.
  [[nodiscard]] result<host_view_type> host_view() {
    return host<T>(detail::managed_core::access::write);
  }
  [[nodiscard]] result<host_view_of<const T>> host_view_to_read() {
    return host<const T>(detail::managed_core::access::read);
  }
  // not_permitted also while a view on another stream is alive and one of both writes, and for a
  // stream that captures: a replay would find the pages elsewhere.
  [[nodiscard]] result<device_view_type> device_view(stream_handle stream) {
    return device<T>(detail::managed_core::access::write, stream);
  }
  [[nodiscard]] result<device_view_of<const T>> device_view_to_read(stream_handle stream) {
    return device<const T>(detail::managed_core::access::read, stream);
  }

  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return count_ * sizeof(T); }
  [[nodiscard]] const managed_history& history() const noexcept { return core_->history(); }
  // From now on the driver's counts are held against the stated use too, which sees what no view
  // tells: stray pointers, kernels that touch more than they say. look() adds what it finds to
  // history().contradictions, each once a kind of count; the work that is to be counted must have
  // been waited for. Errors: the watch's; not_permitted for a watch that began after the buffer;
  // invalid_argument where look() has nothing to look by.
  result<void> watch(std::shared_ptr<managed_watch> by) { return core_->watch(std::move(by)); }
  result<void> look() { return core_->look(); }
  [[nodiscard]] const managed_plan& plan() const noexcept { return core_->plan(); }

 private:
  managed_buffer(std::unique_ptr<detail::managed_core> core, std::size_t count)
      : core_(std::move(core)), count_(count) {}
  template <class Element>
  result<host_view_of<Element>> host(detail::managed_core::access how) {
    if (auto begun = core_->begin_host(how); !begun) return begun.error();
    return host_view_of<Element>(core_.get(), count_);
  }
  template <class Element>
  result<device_view_of<Element>> device(detail::managed_core::access how, stream_handle stream) {
    const auto begun = core_->begin_device(how, stream);
    if (!begun) return begun.error();
    return device_view_of<Element>(core_.get(), stream, *begun);
  }

  std::unique_ptr<detail::managed_core> core_;
  std::size_t count_;
};

}  // namespace millpond
