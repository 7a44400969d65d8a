// CUPTI's callbacks to notes. Built where CUPTI's headers are.
#pragma once
#include <cuda.h>
#include <cupti.h>

#include <atomic>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "record/recorder.hpp"
#include "trace/event_views.hpp"

namespace millpond::record {

struct thread_known_layout;

// What the translator asks of the driver, found in libcuda at run time; null where this driver has
// it not.
struct driver_entries {
  CUresult (*function_parameter)(CUfunction, size_t, size_t*,
                                 size_t*) = nullptr;  // cuFuncGetParamInfo
  CUresult (*kernel_parameter)(CUkernel, size_t, size_t*,
                               size_t*) = nullptr;              // cuKernelGetParamInfo
  CUresult (*current_pool)(CUmemoryPool*, CUdevice) = nullptr;  // cuDeviceGetMemPool
  CUresult (*context_device)(CUdevice*) = nullptr;              // cuCtxGetDevice
};

// Thread-safe: callbacks come on the program's own threads. What a launch reads of it lies in its
// first line of the cache.
class alignas(64) translator {
 public:
  translator(recorder& to, const driver_entries& driver)
      : to_(to),
        driver_(driver),
        kernels_(to.how().kernels),
        kernel_stacks_(to.how().stacks == stack_choice::all) {}

  void driver_call(CUpti_CallbackId id, const CUpti_CallbackData& data);
  // The same for launches alone; false for every other call.
  bool launch_call(CUpti_CallbackId id, const CUpti_CallbackData& data);
  // The runtime's calls only lend their names to the driver's that they make.
  void runtime_call(const CUpti_CallbackData& data, CUpti_CallbackId id);
  void range(const char* text);

  // The callbacks that driver_call and runtime_call know.
  [[nodiscard]] static std::span<const CUpti_CallbackId> driver_ids() noexcept;
  [[nodiscard]] static std::span<const CUpti_CallbackId> launch_ids() noexcept;
  [[nodiscard]] static std::span<const CUpti_CallbackId> batch_ids() noexcept;  // the driver's too
  [[nodiscard]] static std::span<const CUpti_CallbackId> runtime_ids() noexcept;

  // Arguments of kernels whose layout the driver would not tell.
  [[nodiscard]] std::uint64_t unknown_layouts() const noexcept {
    return unknown_layouts_.load(std::memory_order_relaxed);
  }
  // Set at the first managed allocation, for what is switched on only then.
  [[nodiscard]] bool saw_managed() const noexcept {
    return saw_managed_.load(std::memory_order_relaxed);
  }

 private:
  struct parameter {
    std::uint32_t number = 0, offset = 0, bytes = 0;
  };
  struct layout {
    const char* name = nullptr;
    std::vector<parameter> parameters;  // those with room for an address
    bool known = false;
    std::uint32_t unloaded = 0;  // of the count of unloaded modules when it was asked
  };
  struct call;        // one callback being translated
  struct work_calls;  // the table of calls that give memory or work

  bool entered(CUpti_CallbackId id, call& of);
  void reset(const call& of, std::uint16_t device);
  [[nodiscard]] const char* pair_name(const call& of, const char* runtime_name) const;
  bool work(CUpti_CallbackId id, call& of);
  bool batch(CUpti_CallbackId id, call& of);
  void launch(call& of, CUfunction function, CUstream stream, void** parameters, void** extra);
  void learn(thread_known_layout& slot, CUfunction function, const char* name,
             std::uint32_t unloaded);
  const layout& look_up_layout(CUfunction function, const char* name, std::uint32_t unloaded);
  void enter_context(CUcontext context) const;

  // runtime_name: of the runtime's call that makes the driver's, where its own callbacks are not
  // subscribed to.
  void allocated(call& of, std::uint64_t address, std::uint64_t bytes, trace::kind kind,
                 CUstream stream, std::uint64_t pool, const char* runtime_name = nullptr);
  [[nodiscard]] std::uint64_t current_pool() const;
  void freeing(call& of, std::uint64_t address, trace::kind kind, CUstream stream);
  void copied(call& of, std::uint64_t to, std::uint64_t from, std::uint64_t bytes,
              trace::copy_direction direction, CUstream stream, bool asynchronous);
  void set(call& of, std::uint64_t address, std::uint64_t bytes, CUstream stream);
  void stored_addresses(const call& of, const void* from, std::uint64_t bytes, CUstream stream);
  void prefetched(call& of, std::uint64_t address, std::uint64_t bytes, trace::page_side to,
                  CUstream stream);
  void advised(call& of, std::uint64_t address, std::uint64_t bytes, trace::memory_advice advice,
               trace::page_side side);
  void graph_made(call& of, const CUgraphExec* executable, CUgraph graph);
  void simple(call& of, trace::action what, CUstream stream, std::uint64_t object);
  [[nodiscard]] note begin(const call& of, trace::action what) const;
  [[nodiscard]] static std::uint64_t handle_of(const call& of, CUstream stream);
  [[nodiscard]] bool may_be_block(std::uint64_t address) const noexcept {
    return address >= lowest_.load(std::memory_order_relaxed) &&
           address < highest_.load(std::memory_order_relaxed);
  }

  recorder& to_;
  driver_entries driver_;
  std::atomic<std::uint64_t> lowest_{UINT64_MAX},
      highest_{0};  // of all blocks ever: a first sieve for arguments
  // Counts modules that were unloaded, from a begin of each translator's own: what a thread
  // remembers of an earlier one is old.
  static inline std::atomic<std::uint32_t> translators_{0};
  std::atomic<std::uint32_t> unloaded_modules_{translators_.fetch_add(1, std::memory_order_relaxed)
                                               << 20};
  bool kernels_, kernel_stacks_;  // as the settings have them
  std::atomic<std::uint64_t> unknown_layouts_{0};
  std::atomic<bool> saw_managed_{false};
  std::atomic<bool> runtime_used_{false};       // the runtime's callbacks have come
  std::atomic<std::uint32_t> pool_version_{1};  // counts changes of devices' current pools
  std::mutex layouts_mutex_;
  std::unordered_map<CUfunction, std::unique_ptr<layout>> layouts_;
};

}  // namespace millpond::record
