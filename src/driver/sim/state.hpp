// Everything that one simulated GPU is made of, behind one mutex, and the frame that every call
// runs in.
#pragma once
#include <array>
#include <atomic>
#include <condition_variable>
#include <initializer_list>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "base/random.hpp"
#include "driver/sim/agenda.hpp"
#include "driver/sim/calls.hpp"
#include "driver/sim/capture.hpp"
#include "driver/sim/checker.hpp"
#include "driver/sim/contents.hpp"
#include "driver/sim/faults.hpp"
#include "driver/sim/managed.hpp"
#include "driver/sim/memory.hpp"
#include "driver/sim/pools.hpp"
#include "driver/sim/slots.hpp"
#include "driver/sim/streams.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace millpond {
namespace sim {

// A copy of so many pageable bytes leaves the CPU's caches cold for so many calls on driver pools:
// a request's frees and the next one's allocations.
inline constexpr std::uint64_t cold_bytes = 1 * MiB;
inline constexpr unsigned cold_calls_after_copy = 20;

}  // namespace sim

class simulated_gpu::state {
 public:
  static result<std::unique_ptr<state>> create(simulated_gpu_options options);
  ~state();

  // --- Time and completion (time.cpp) ---
  [[nodiscard]] std::uint64_t settled_ns() const noexcept {
    return callback_running_ ? callback_end_ns_ - 1 : now_ns;
  }
  void settle();  // applies what is done by now
  void wait_until(std::unique_lock<std::mutex>& lock, std::uint64_t time_ns);
  void wait_for_device(std::unique_lock<std::mutex>& lock);
  void wait_for_context(std::unique_lock<std::mutex>& lock, const sim::context_record& which);
  void finish_callbacks(std::unique_lock<std::mutex>& lock);
  void charge(sim::call which, std::uint64_t bytes);
  // By the first of these tables that the profile has ("cuMemFree.managed"), or the call's own.
  void charge_named(std::initializer_list<std::string_view> tables, sim::call otherwise,
                    std::uint64_t bytes);
  void charge_table(const cost_table& table, std::uint64_t bytes);
  // A call on a driver pool: dearer just after the CPU has copied pageable memory, and once in a
  // process.
  void charge_pool(std::string_view table, sim::call which, std::uint64_t bytes);
  void charge_pool_table(const cost_table& table, std::uint64_t bytes);
  void pools_after_synchronize();

  // --- Work (queue.cpp, effects.cpp) ---
  sim::stream_record* find_stream(stream_handle stream);
  struct queued {
    driver_status status = driver_status::success;
    std::uint64_t end_ns = 0;
  };
  queued queue(sim::stream_record& stream, sim::work what, const std::string& name);
  driver_status queue_graph(sim::stream_record& stream, sim::graph_exec_record& exec);
  void join_legacy(sim::stream_record& stream);  // before anything is put on a blocking stream
  void apply(sim::work& what, std::uint64_t number);
  void lose_device(driver_status status) noexcept {
    if (lost == driver_status::success) lost = status;
  }

  void drop_stream(stream_handle stream);  // calls_streams.cpp
  // Puts the end of the work on a stream at `end_ns`.
  void ends(sim::stream_record& stream, std::uint64_t end_ns) noexcept;

  // --- Contexts (contexts.cpp) ---
  [[nodiscard]] sim::context_record& primary() const noexcept { return *contexts.front(); }
  [[nodiscard]] sim::context_record* current_context() const noexcept;  // null where there is none
  std::vector<sim::context_record*>& own_contexts();  // the calling thread's, the last is current
  [[nodiscard]] driver_status refusal_of_context() const noexcept;  // of what needs a current one
  sim::context_record& add_context(sim::context_record* primary_of_green);
  [[nodiscard]] static context handle_of(const sim::context_record& which) noexcept;
  [[nodiscard]] sim::context_record* find_context(context which) const noexcept;
  [[nodiscard]] std::uint64_t end_of(const sim::context_record& which) const noexcept;
  // Breaks the captures that hold a stream of the context: true where there are any.
  bool break_captures_of(const sim::context_record& which, const char* call);

  // --- Captures (captures.cpp) ---
  [[nodiscard]] bool capture_forbids(std::uint64_t thread, const char* call);
  void invalidate(sim::capture_record& capture);
  // The call is one that breaks the capture of that number, where it still runs.
  void break_capture(std::uint64_t id, const char* call);
  driver_status add_node(sim::stream_record& stream, sim::graph_node node);
  void join_capture(sim::stream_record& stream, sim::capture_record& capture);
  void end_capture(sim::capture_record& capture);  // streams leave it
  sim::capture_record* find_capture(std::uint64_t id);
  // The legacy stream depends on every blocking stream, so it cannot be used while one of them
  // captures: CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, and the capture is broken.
  enum class on_conflict : std::uint8_t { breaks, tells };
  driver_status implicit_capture(const sim::stream_record& stream,
                                 on_conflict what = on_conflict::breaks);
  // A call of the library's is about to be recorded in a capture.
  void check_pollution(const sim::stream_record& stream, sim::call which);

  simulated_gpu_options options;
  device_info info;
  mutable std::mutex mutex;
  std::uint64_t now_ns = 0;
  std::uint64_t device_end_ns = 0;  // of all work ever queued
  std::uint64_t link_to_device_ns = 0, link_to_host_ns = 0;
  driver_status lost = driver_status::success;  // sticky, once not success
  // The thread that runs a kernel's body now, under the lock. Read without it to tell that thread
  // alone, which sees its own store.
  std::atomic<std::thread::id> body_thread{};
  static thread_local bool callback_thread;  // this thread runs a host or destroy function now

  sim::order_book order;
  std::unique_ptr<sim::memory> memory;
  std::unique_ptr<sim::checker> check;  // null when off
  sim::contents contents;
  sim::managed_memory managed;
  bool pools_used = false;          // the first allocation from a driver pool has been paid for
  unsigned cold_calls = 0;          // calls on pools that still find the CPU's caches cold
  std::uint64_t small_managed = 0;  // live managed blocks that share pages
  sim::agenda agenda;
  sim::faults faults;
  random numbers;

  sim::slots<sim::stream_record, stream_handle> streams{0x510000000000};
  sim::slots<sim::event_record, event_handle> events{0x520000000000};
  sim::slots<sim::graph_record, graph_handle> graphs{0x530000000000};
  sim::slots<sim::graph_exec_record, graph_exec_handle> execs{0x540000000000};
  sim::slots<sim::pool, pool_handle> pools{0x550000000000};
  std::vector<std::unique_ptr<sim::context_record>> contexts;  // the primary first; none is freed
  // By thread; the last is current. Of threads that changed theirs.
  std::unordered_map<std::uint64_t, std::vector<sim::context_record*>> stacks;
  std::map<std::uint64_t, std::unique_ptr<sim::capture_record>> captures;
  std::uint64_t next_capture = 1;
  std::unordered_map<std::uint64_t, capture_mode> thread_modes;

  struct counter {
    std::uint64_t count = 0, ns = 0;
  };
  std::array<counter, sim::call_count> counters{};
  std::uint64_t waits = 0;
  std::vector<sim::user_object> retired;  // destroy functions to call without the lock

 private:
  explicit state(simulated_gpu_options given);
  [[nodiscard]] bool locate(const sim::work& what);
  // Who does a piece of work, for the checker: a node that is captured has no `launched` yet.
  struct worker {
    const sim::timeline& line;
    sim::point work;
    sim::stream_name stream;
    std::string_view name;
    sim::node_memory* node = nullptr;
    std::uint64_t launched = 0;
  };
  void check_accesses(const sim::work& what, const worker& by);
  void touch_regions(sim::point work);
  [[nodiscard]] double duration_of(const sim::work& what,
                                   const std::vector<std::vector<sim::piece>>& ranges);
  [[nodiscard]] std::uint64_t sample(const cost_table& table, std::uint64_t bytes);

  std::array<const cost_table*, sim::call_count> costs_{};
  cost_table default_cost_;
  std::condition_variable callback_done_;
  bool callback_running_ = false;
  bool callback_taken_ = false;
  sim::host_work callback_;
  std::uint64_t callback_end_ns_ = 0;
  std::vector<std::vector<sim::piece>> ranges_;    // scratch of queue()
  std::vector<sim::piece> pieces_, other_pieces_;  // scratch of apply()
};

namespace sim {

// One call: locks, counts, asks the fault plan, takes its time, lets the device get on, and refuses
// where the device is lost or a capture forbids it. Callbacks that became due run when it ends,
// unlocked.
class call_scope {
 public:
  // How the call's own time is charged: by size at once, or by the call itself.
  static constexpr std::uint64_t later = ~std::uint64_t{0};
  call_scope(simulated_gpu::state& gpu, call which, std::uint64_t bytes = 0);
  ~call_scope();
  call_scope(const call_scope&) = delete;
  call_scope& operator=(const call_scope&) = delete;

  [[nodiscard]] bool refused() const noexcept { return status_ != driver_status::success; }
  [[nodiscard]] call_result refusal() const noexcept { return {status_, name_of(which_)}; }
  [[nodiscard]] call_result answer(driver_status status) const noexcept {
    return {status, name_of(which_)};
  }
  [[nodiscard]] call_result done() const noexcept { return answer(driver_status::success); }
  std::unique_lock<std::mutex>& lock() noexcept { return lock_; }

 private:
  simulated_gpu::state& gpu_;
  call which_;
  std::unique_lock<std::mutex> lock_;
  std::uint64_t entered_ns_ = 0;
  driver_status status_ = driver_status::success;
};

[[nodiscard]] std::uint64_t thread_number() noexcept;
[[nodiscard]] bool in_library() noexcept;

}  // namespace sim
}  // namespace millpond
