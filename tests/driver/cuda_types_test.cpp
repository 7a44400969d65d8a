// Our declarations of the driver API against the toolkit's, where it is found: layouts, values, and
// each function's parameters one by one.
#if __has_include(<cuda.h>) && __has_include(<cudaTypedefs.h>)
#include <cuda.h>
#include <cudaTypedefs.h>
#define MILLPOND_TOOLKIT_FOUND 1
#endif

#include <gtest/gtest.h>

#include "driver/cuda/functions.hpp"

namespace millpond::cuda {
namespace {

#if defined(MILLPOND_TOOLKIT_FOUND)

static_assert(sizeof(mem_location) == sizeof(CUmemLocation));
static_assert(sizeof(allocation_properties) == sizeof(CUmemAllocationProp));
static_assert(offsetof(allocation_properties, location) == offsetof(CUmemAllocationProp, location));
static_assert(offsetof(allocation_properties, flags) == offsetof(CUmemAllocationProp, allocFlags));
static_assert(offsetof(allocation_properties, handle_types) ==
              offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(sizeof(access_descriptor) == sizeof(CUmemAccessDesc));
static_assert(offsetof(access_descriptor, flags) == offsetof(CUmemAccessDesc, flags));
static_assert(sizeof(pool_properties) == sizeof(CUmemPoolProps));
static_assert(offsetof(pool_properties, location) == offsetof(CUmemPoolProps, location));
static_assert(offsetof(pool_properties, max_bytes) == offsetof(CUmemPoolProps, maxSize));
static_assert(offsetof(pool_properties, usage) == offsetof(CUmemPoolProps, usage));

static_assert(location_device == CU_MEM_LOCATION_TYPE_DEVICE);
static_assert(location_host == CU_MEM_LOCATION_TYPE_HOST);
static_assert(location_host_numa == CU_MEM_LOCATION_TYPE_HOST_NUMA);
static_assert(allocation_pinned == CU_MEM_ALLOCATION_TYPE_PINNED);
static_assert(handle_none == CU_MEM_HANDLE_TYPE_NONE);
static_assert(handle_posix_fd == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
static_assert(granularity_minimum == CU_MEM_ALLOC_GRANULARITY_MINIMUM);
static_assert(access_read_write == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
static_assert(pool_release_threshold == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
static_assert(pool_reserved_current == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
static_assert(pool_reserved_high == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
static_assert(pool_used_current == CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
static_assert(pool_used_high == CU_MEMPOOL_ATTR_USED_MEM_HIGH);
static_assert(attribute_multiprocessors == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(attribute_integrated == CU_DEVICE_ATTRIBUTE_INTEGRATED);
static_assert(attribute_ecc_enabled == CU_DEVICE_ATTRIBUTE_ECC_ENABLED);
static_assert(attribute_pci_bus == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
static_assert(attribute_pci_device == CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
static_assert(attribute_pci_domain == CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
static_assert(attribute_l2_bytes == CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
static_assert(attribute_unified_addressing == CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
static_assert(attribute_compute_major == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(attribute_compute_minor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(attribute_managed_memory == CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY);
static_assert(attribute_pageable_access == CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS);
static_assert(attribute_concurrent_managed == CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
static_assert(attribute_pageable_host_tables ==
              CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
static_assert(attribute_virtual_memory == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
static_assert(attribute_posix_fd ==
              CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
static_assert(attribute_memory_pools == CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
static_assert(attribute_mps == CU_DEVICE_ATTRIBUTE_MPS_ENABLED);
static_assert(attribute_host_numa_id == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
static_assert(pointer_memory_type == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(pointer_is_managed == CU_POINTER_ATTRIBUTE_IS_MANAGED);
static_assert(pointer_range_start == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
static_assert(pointer_range_bytes == CU_POINTER_ATTRIBUTE_RANGE_SIZE);
static_assert(pointer_pool == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
static_assert(type_host == CU_MEMORYTYPE_HOST && type_device == CU_MEMORYTYPE_DEVICE);
static_assert(host_alloc_portable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(host_alloc_device_map == CU_MEMHOSTALLOC_DEVICEMAP);
static_assert(host_alloc_write_combined == CU_MEMHOSTALLOC_WRITECOMBINED);
static_assert(host_register_portable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(host_register_device_map == CU_MEMHOSTREGISTER_DEVICEMAP);
static_assert(attach_global == CU_MEM_ATTACH_GLOBAL);
static_assert(stream_non_blocking == CU_STREAM_NON_BLOCKING);
static_assert(event_disable_timing == CU_EVENT_DISABLE_TIMING);
static_assert(user_object_no_destructor_sync == CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
static_assert(graph_user_object_move == CU_GRAPH_USER_OBJECT_MOVE);
static_assert(static_cast<int>(managed_advice::set_read_mostly) + 1 ==
              CU_MEM_ADVISE_SET_READ_MOSTLY);
static_assert(static_cast<int>(managed_advice::unset_read_mostly) + 1 ==
              CU_MEM_ADVISE_UNSET_READ_MOSTLY);
static_assert(static_cast<int>(managed_advice::set_preferred_location) + 1 ==
              CU_MEM_ADVISE_SET_PREFERRED_LOCATION);
static_assert(static_cast<int>(managed_advice::unset_preferred_location) + 1 ==
              CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION);
static_assert(static_cast<int>(managed_advice::set_accessed_by) + 1 ==
              CU_MEM_ADVISE_SET_ACCESSED_BY);
static_assert(static_cast<int>(managed_advice::unset_accessed_by) + 1 ==
              CU_MEM_ADVISE_UNSET_ACCESSED_BY);
static_assert(static_cast<int>(capture_mode::global) == CU_STREAM_CAPTURE_MODE_GLOBAL);
static_assert(static_cast<int>(capture_mode::thread_local_) == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
static_assert(static_cast<int>(capture_mode::relaxed) == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(static_cast<int>(capture_status::active) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
static_assert(static_cast<int>(capture_status::invalidated) ==
              CU_STREAM_CAPTURE_STATUS_INVALIDATED);

#define SAME_ERROR(ours, theirs) static_assert(static_cast<int>(ours) == CUDA_ERROR_##theirs)
SAME_ERROR(driver_status::invalid_value, INVALID_VALUE);
SAME_ERROR(driver_status::out_of_memory, OUT_OF_MEMORY);
SAME_ERROR(driver_status::not_initialized, NOT_INITIALIZED);
SAME_ERROR(driver_status::deinitialized, DEINITIALIZED);
SAME_ERROR(driver_status::no_device, NO_DEVICE);
SAME_ERROR(driver_status::invalid_device, INVALID_DEVICE);
SAME_ERROR(driver_status::invalid_context, INVALID_CONTEXT);
SAME_ERROR(driver_status::file_not_found, FILE_NOT_FOUND);
SAME_ERROR(driver_status::operating_system, OPERATING_SYSTEM);
SAME_ERROR(driver_status::invalid_handle, INVALID_HANDLE);
SAME_ERROR(driver_status::illegal_state, ILLEGAL_STATE);
SAME_ERROR(driver_status::not_found, NOT_FOUND);
SAME_ERROR(driver_status::not_ready, NOT_READY);
SAME_ERROR(driver_status::illegal_address, ILLEGAL_ADDRESS);
SAME_ERROR(driver_status::launch_failed, LAUNCH_FAILED);
SAME_ERROR(driver_status::not_permitted, NOT_PERMITTED);
SAME_ERROR(driver_status::not_supported, NOT_SUPPORTED);
SAME_ERROR(driver_status::device_unavailable, DEVICE_UNAVAILABLE);
SAME_ERROR(driver_status::capture_unsupported, STREAM_CAPTURE_UNSUPPORTED);
SAME_ERROR(driver_status::capture_invalidated, STREAM_CAPTURE_INVALIDATED);
SAME_ERROR(driver_status::capture_unjoined, STREAM_CAPTURE_UNJOINED);
SAME_ERROR(driver_status::capture_implicit, STREAM_CAPTURE_IMPLICIT);
SAME_ERROR(driver_status::captured_event, CAPTURED_EVENT);
SAME_ERROR(driver_status::capture_wrong_thread, STREAM_CAPTURE_WRONG_THREAD);
SAME_ERROR(driver_status::unknown, UNKNOWN);
SAME_ERROR(error_stub_library, STUB_LIBRARY);
SAME_ERROR(error_device_unavailable, DEVICE_UNAVAILABLE);
SAME_ERROR(error_ecc_uncorrectable, ECC_UNCORRECTABLE);
SAME_ERROR(error_nvlink_uncorrectable, NVLINK_UNCORRECTABLE);
SAME_ERROR(error_jit_compiler_not_found, JIT_COMPILER_NOT_FOUND);
SAME_ERROR(error_contained, CONTAINED);
SAME_ERROR(error_launch_timeout, LAUNCH_TIMEOUT);
SAME_ERROR(error_context_is_destroyed, CONTEXT_IS_DESTROYED);
SAME_ERROR(error_assert, ASSERT);
SAME_ERROR(error_hardware_stack, HARDWARE_STACK_ERROR);
SAME_ERROR(error_illegal_instruction, ILLEGAL_INSTRUCTION);
SAME_ERROR(error_misaligned_address, MISALIGNED_ADDRESS);
SAME_ERROR(error_invalid_address_space, INVALID_ADDRESS_SPACE);
SAME_ERROR(error_invalid_pc, INVALID_PC);
SAME_ERROR(error_tensor_memory_leak, TENSOR_MEMORY_LEAK);
SAME_ERROR(error_system_not_ready, SYSTEM_NOT_READY);
SAME_ERROR(error_system_driver_mismatch, SYSTEM_DRIVER_MISMATCH);
SAME_ERROR(error_compat_not_supported, COMPAT_NOT_SUPPORTED_ON_DEVICE);
SAME_ERROR(error_mps_client_terminated, MPS_CLIENT_TERMINATED);

// Two parameters are alike when they are passed in the same registers: pointer for pointer, number
// for number of the same width, structure for structure of the same size.
template <class Ours, class Theirs>
constexpr bool parameter_alike() {
  // NOLINTNEXTLINE(bugprone-sizeof-expression): a pointer's own size is meant
  return std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> && sizeof(Ours) == sizeof(Theirs) &&
         std::is_class_v<Ours> == std::is_class_v<Theirs>;
}
template <class Ours, class Theirs>
struct alike : std::false_type {};
template <class... Ours, class... Theirs>
  requires(sizeof...(Ours) == sizeof...(Theirs))
struct alike<int(Ours...), CUresult (*)(Theirs...)>
    : std::bool_constant<(parameter_alike<Ours, Theirs>() && ...)> {};

// NOLINTBEGIN(bugprone-macro-parentheses): in parentheses `int (...)` would be no function's type
#define SAME_FUNCTION(member, name, version, parameters)               \
  static_assert(alike<int parameters, PFN_##name##_v##version>::value, \
                #name " differs from the toolkit's");
MILLPOND_CUDA_FUNCTIONS(SAME_FUNCTION, SAME_FUNCTION)
// NOLINTEND(bugprone-macro-parentheses)

TEST(cuda_types, agree_with_the_toolkit) {
  static_assert(!alike<int(int), PFN_cuStreamGetId_v12000>::value, "the comparison can fail");
  EXPECT_GE(CUDA_VERSION, needed_version) << "the toolkit is older than what was compared";
}

#else

TEST(cuda_types, agree_with_the_toolkit) {
  GTEST_SKIP() << "cuda.h is not found";
}

#endif

}  // namespace
}  // namespace millpond::cuda
