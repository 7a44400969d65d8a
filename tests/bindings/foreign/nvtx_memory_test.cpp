// What a tool hears of a pool's blocks through NVTX's memory extension: this program is its own
// tool.
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "millpond/base/units.hpp"
#include "millpond/bindings/nvtx_memory.hpp"
#include "millpond/memory/adaptors.hpp"
#include "millpond/pool/pool.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace {

using namespace millpond;

int failures = 0;
void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("not so: %s\n", what);
  ++failures;
}

struct {
  std::map<std::uintptr_t, std::pair<std::uint64_t, nvtxMemHeapHandle_t>> regions;
  std::map<nvtxMemHeapHandle_t, std::pair<const void*, std::uint64_t>> heaps;
  std::string heap_name;
} heard;

nvtxMemHeapHandle_t NVTX_API heap_register(nvtxDomainHandle_t, nvtxMemHeapDesc_t const* about) {
  const auto* range = static_cast<const nvtxMemVirtualRangeDesc_t*>(about->typeSpecificDesc);
  const auto made = reinterpret_cast<nvtxMemHeapHandle_t>(0x100 + heard.heaps.size());
  expect(
      about->usage == NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR && about->structSize == sizeof *about,
      "the heap is a suballocator's");
  heard.heaps[made] = {range->ptr, range->size};
  heard.heap_name = about->message.ascii;
  return made;
}
void NVTX_API heap_unregister(nvtxDomainHandle_t, nvtxMemHeapHandle_t heap) {
  expect(heard.heaps.erase(heap) == 1, "a heap goes once");
}
void NVTX_API regions_register(nvtxDomainHandle_t, nvtxMemRegionsRegisterBatch_t const* about) {
  const auto* ranges = static_cast<const nvtxMemVirtualRangeDesc_t*>(about->regionDescElements);
  for (std::size_t n = 0; n < about->regionCount; ++n) {
    heard.regions[reinterpret_cast<std::uintptr_t>(ranges[n].ptr)] = {ranges[n].size, about->heap};
  }
}
void NVTX_API regions_unregister(nvtxDomainHandle_t, nvtxMemRegionsUnregisterBatch_t const* about) {
  for (std::size_t n = 0; n < about->refCount; ++n) {
    expect(
        heard.regions.erase(reinterpret_cast<std::uintptr_t>(about->refElements[n].pointer)) == 1,
        "a region goes once");
  }
}

int NVTX_API begin_tool(nvtxExtModuleInfo_t* module) {
  if (module->moduleId != NVTX_EXT_MODULEID_MEM) return 0;
  const auto set = [&](std::size_t id, auto function) {
    for (std::size_t n = 0; n < module->segmentsCount; ++n) {
      if (id < module->segments[n].slotCount)
        module->segments[n].functionSlots[id] = reinterpret_cast<std::intptr_t>(function);
    }
  };
  set(NVTX3EXT_CBID_nvtxMemHeapRegister, heap_register);
  set(NVTX3EXT_CBID_nvtxMemHeapUnregister, heap_unregister);
  set(NVTX3EXT_CBID_nvtxMemRegionsRegister, regions_register);
  set(NVTX3EXT_CBID_nvtxMemRegionsUnregister, regions_unregister);
  return 1;
}

}  // namespace

int main() {
  InitializeInjectionNvtxExtension_fnptr =
      begin_tool;  // NVTX's own hook for a tool that is linked into the program
  auto gpu = simulated_gpu::create({}).value();
  auto memory = pool::create(gpu).value();
  {
    nvtx_memory_resource reported(*memory, "pool");
    guard_resource guarded(reported, std::make_shared<pointer_registry>());
    void* first = guarded.try_allocate(1000, 256, nullptr).value();
    expect(heard.regions.size() == 1 && heard.regions.begin()->second.first == 1000,
           "a block is a region of its requested size");
    expect(heard.regions.begin()->second.second == NVTX_MEM_HEAP_HANDLE_PROCESS_WIDE,
           "outside of heaps it is the process's");
    expect(reported.add_heap(first, 1 * MiB).has_value(), "a heap is taken");
    expect(!reported.add_heap(static_cast<char*>(first) + 4096, 4096).has_value(),
           "heaps do not overlap");
    expect(!reported.add_heap(nullptr, 0).has_value(), "a heap is not empty");
    expect(heard.heaps.size() == 1 && heard.heap_name == "pool", "the tool hears of the heap");
    expect(guarded.try_deallocate(first, 1000, nullptr).has_value(), "a free");
    expect(heard.regions.empty(), "the region goes with the block");
    expect(!guarded.try_deallocate(first, 1000, nullptr).has_value(),
           "the guard refuses a second free, of which no tool hears");
    void* again = guarded.try_allocate(2000, 256, nullptr).value();
    expect(heard.regions.size() == 1, "one region again");
    if (again == first)
      expect(heard.regions.begin()->second.second == heard.heaps.begin()->first,
             "inside the heap it is the heap's");
    expect(guarded.try_deallocate(again, 2000, nullptr).has_value(), "a free");
    reported.remove_heap(first);
    expect(heard.heaps.empty(), "the heap goes");
    expect(reported.add_heap(first, 4096).has_value(), "and comes again");
  }
  expect(heard.heaps.empty() && heard.regions.empty(), "nothing stays behind");
  return failures == 0 ? 0 : 1;
}
