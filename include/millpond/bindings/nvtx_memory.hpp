// Suballocations reported to tools: compute-sanitizer and profilers see a pool's memory as one big
// block each; NVTX's memory extension (nvtx3/nvToolsExtMem.h of the CUDA toolkit, 3.1 or later)
// tells them of the blocks inside. Header-only; without a tool in the process each call costs a
// check of a null pointer.
#pragma once
#include "millpond/detail/language.hpp"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include <nvtx3/nvToolsExtMem.h>

#include "millpond/detail/resource_adaptor.hpp"

namespace millpond {

// A region of NVTX for each block that is live. Thread-safe. Put it right over the resource that
// cuts the blocks and under a guard_resource or trace_resource, so that a free that the guard
// refuses never comes here:
//   nvtx_memory_resource reported(pool, "weights");
//   guard_resource guarded(reported, registry);
class nvtx_memory_resource final : public resource_adaptor {
 public:
  // The upstream must outlive it. `name` is the heaps' and the domain's in the tools.
  explicit nvtx_memory_resource(memory_resource& upstream, std::string name = "millpond")
      : resource_adaptor(upstream),
        name_(std::move(name)),
        domain_(nvtxDomainCreateA(name_.c_str())) {}
  nvtx_memory_resource(const nvtx_memory_resource&) = delete;
  nvtx_memory_resource& operator=(const nvtx_memory_resource&) = delete;
  // Blocks that are live still are the upstream's; their regions stay.
  ~nvtx_memory_resource() override {
    for (const heap& each : heaps_) nvtxMemHeapUnregister(domain_, each.handle);
    nvtxDomainDestroy(domain_);
  }

  // Memory that the upstream cuts its blocks from, such as an arena made of one cudaMalloc. From
  // then on what lies in it and in no block is nobody's, and compute-sanitizer tells of kernels
  // that touch it. Blocks outside of all heaps are regions of the process. Ranges of one adaptor
  // must not overlap: then, and for an empty one, invalid_argument.
  result<void> add_heap(const void* begin, std::uint64_t bytes) {
    const auto first = reinterpret_cast<std::uintptr_t>(begin);
    const std::unique_lock lock(mutex_);
    const bool meets = std::any_of(heaps_.begin(), heaps_.end(), [&](const heap& each) {
      return first < each.begin + each.bytes && each.begin < first + bytes;
    });
    if (bytes == 0 || meets)
      return error{
          error_code::invalid_argument,
          "nvtx_memory_resource::add_heap: an empty range, or one that meets another heap"};
    nvtxMemVirtualRangeDesc_t range{};
    range.size = bytes;
    range.ptr = begin;
    nvtxMemHeapDesc_t about{};
    about.extCompatID = NVTX_EXT_COMPATID_MEM;
    about.structSize = sizeof about;
    about.usage = NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR;
    about.type = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
    about.typeSpecificDescSize = sizeof range;
    about.typeSpecificDesc = &range;
    about.messageType = NVTX_MESSAGE_TYPE_ASCII;
    about.message.ascii = name_.c_str();
    heaps_.push_back({first, bytes, nvtxMemHeapRegister(domain_, &about)});
    return {};
  }
  // The memory goes back to where it came from. No block may be live in it. Nothing happens where
  // there is no such heap.
  void remove_heap(const void* begin) noexcept {
    const std::unique_lock lock(mutex_);
    const auto found = std::find_if(heaps_.begin(), heaps_.end(), [&](const heap& each) {
      return each.begin == reinterpret_cast<std::uintptr_t>(begin);
    });
    if (found == heaps_.end()) return;
    nvtxMemHeapUnregister(domain_, found->handle);
    heaps_.erase(found);
  }

 private:
  struct heap {
    std::uintptr_t begin = 0;
    std::uint64_t bytes = 0;
    nvtxMemHeapHandle_t handle{};
  };

  result<void*> do_allocate(std::uint64_t bytes, std::uint64_t alignment,
                            stream_handle stream) override {
    auto made = upstream().try_allocate(bytes, alignment, stream);
    if (made && *made != nullptr) tell(*made, bytes);
    return made;
  }
  result<void> do_deallocate(void* ptr, std::uint64_t bytes,
                             stream_handle stream) noexcept override {
    // Before the block goes back: then another thread may have it at once.
    nvtxMemRegionRef_t region{};
    region.pointer = ptr;
    nvtxMemRegionsUnregisterBatch_t about{};
    about.extCompatID = NVTX_EXT_COMPATID_MEM;
    about.structSize = sizeof about;
    about.refType = NVTX_MEM_REGION_REF_TYPE_POINTER;
    about.refCount = 1;
    about.refElementSize = sizeof region;
    about.refElements = &region;
    if (ptr != nullptr) nvtxMemRegionsUnregister(domain_, &about);
    auto answer = upstream().try_deallocate(ptr, bytes, stream);
    if (!answer && ptr != nullptr && bytes != 0) tell(ptr, bytes);  // it stays allocated
    return answer;
  }

  void tell(void* ptr, std::uint64_t bytes) noexcept {
    nvtxMemVirtualRangeDesc_t range{};
    range.size = bytes;
    range.ptr = ptr;
    nvtxMemRegionsRegisterBatch_t about{};
    about.extCompatID = NVTX_EXT_COMPATID_MEM;
    about.structSize = sizeof about;
    about.regionType = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
    about.heap = heap_of(ptr);
    about.regionCount = 1;
    about.regionDescElementSize = sizeof range;
    about.regionDescElements = &range;
    nvtxMemRegionsRegister(domain_, &about);
  }
  nvtxMemHeapHandle_t heap_of(const void* ptr) const noexcept {
    const auto at = reinterpret_cast<std::uintptr_t>(ptr);
    const std::shared_lock lock(mutex_);
    for (const heap& each : heaps_) {
      if (at >= each.begin && at - each.begin < each.bytes) return each.handle;
    }
    return NVTX_MEM_HEAP_HANDLE_PROCESS_WIDE;
  }

  std::string name_;
  nvtxDomainHandle_t domain_;
  mutable std::shared_mutex mutex_;  // of the heaps; a leaf
  std::vector<heap> heaps_;
};

}  // namespace millpond
