// The few types and values of the CUDA driver API that millpond uses, declared here so that the
// build needs no toolkit. Each is CUDA's own by layout and value (cuda.h of 12.5 to 13.0); where
// the toolkit is found, tests/driver/cuda_types_test.cpp compares every one of them with cuda.h.
#pragma once
#include <cstddef>
#include <cstdint>

#include "millpond/driver/driver.hpp"

struct CUctx_st;
struct CUmod_st;
struct CUfunc_st;
struct CUuserObject_st;
struct CUgraphNode_st;
struct CUgraphEdgeData_st;

namespace millpond::cuda {

using status_value = int;  // CUresult
using device_ordinal = int;
using context_handle = CUctx_st*;
using module_handle = CUmod_st*;
using function_handle = CUfunc_st*;
using user_object_handle = CUuserObject_st*;

// CUmemLocation.
struct mem_location {
  int type = 0;
  int id = 0;
};
inline constexpr int location_device = 1;
inline constexpr int location_host = 2;
inline constexpr int location_host_numa = 3;

// CUmemAllocationProp.
struct allocation_properties {
  int type = 0;
  int handle_types = 0;
  mem_location location;
  void* win32_metadata = nullptr;
  struct {
    unsigned char compression = 0;
    unsigned char gpu_direct_rdma = 0;
    unsigned short usage = 0;
    unsigned char reserved[4] = {};
  } flags;
};
inline constexpr int allocation_pinned = 1;
inline constexpr int handle_none = 0;
inline constexpr int handle_posix_fd = 1;
inline constexpr int granularity_minimum = 0;

// CUmemAccessDesc.
struct access_descriptor {
  mem_location location;
  int flags = 0;
};
inline constexpr int access_read_write = 3;

// CUmemPoolProps.
struct pool_properties {
  int type = 0;
  int handle_types = 0;
  mem_location location;
  void* win32_attributes = nullptr;
  std::size_t max_bytes = 0;
  unsigned short usage = 0;
  unsigned char reserved[54] = {};
};
inline constexpr int pool_release_threshold = 4;
inline constexpr int pool_reserved_current = 5;
inline constexpr int pool_reserved_high = 6;
inline constexpr int pool_used_current = 7;
inline constexpr int pool_used_high = 8;

// CU_DEVICE_ATTRIBUTE_*.
inline constexpr int attribute_multiprocessors = 16;
inline constexpr int attribute_integrated = 18;
inline constexpr int attribute_ecc_enabled = 32;
inline constexpr int attribute_pci_bus = 33;
inline constexpr int attribute_pci_device = 34;
inline constexpr int attribute_l2_bytes = 38;
inline constexpr int attribute_unified_addressing = 41;
inline constexpr int attribute_pci_domain = 50;
inline constexpr int attribute_compute_major = 75;
inline constexpr int attribute_compute_minor = 76;
inline constexpr int attribute_managed_memory = 83;
inline constexpr int attribute_pageable_access = 88;
inline constexpr int attribute_concurrent_managed = 89;
inline constexpr int attribute_pageable_host_tables = 100;
inline constexpr int attribute_virtual_memory = 102;
inline constexpr int attribute_posix_fd = 103;
inline constexpr int attribute_memory_pools = 115;
inline constexpr int attribute_mps = 133;
inline constexpr int attribute_host_numa_id = 134;

// CU_POINTER_ATTRIBUTE_* and CUmemorytype.
inline constexpr int pointer_memory_type = 2;
inline constexpr int pointer_is_managed = 8;
inline constexpr int pointer_range_start = 11;
inline constexpr int pointer_range_bytes = 12;
inline constexpr int pointer_pool = 17;
inline constexpr unsigned type_host = 1;
inline constexpr unsigned type_device = 2;

inline constexpr unsigned host_alloc_portable = 1;
inline constexpr unsigned host_alloc_device_map = 2;
inline constexpr unsigned host_alloc_write_combined = 4;
inline constexpr unsigned host_register_portable = 1;
inline constexpr unsigned host_register_device_map = 2;
inline constexpr unsigned attach_global = 1;
inline constexpr unsigned stream_non_blocking = 1;
inline constexpr unsigned event_disable_timing = 2;
inline constexpr unsigned user_object_no_destructor_sync = 1;
inline constexpr unsigned graph_user_object_move = 1;

// CUresult values that driver_status does not name, distinguished in messages and by alive().
inline constexpr int error_stub_library = 34;
inline constexpr int error_device_unavailable = 46;
inline constexpr int error_ecc_uncorrectable = 214;
inline constexpr int error_nvlink_uncorrectable = 220;
inline constexpr int error_jit_compiler_not_found = 221;
inline constexpr int error_contained = 226;
inline constexpr int error_launch_timeout = 702;
inline constexpr int error_context_is_destroyed = 709;
inline constexpr int error_assert = 710;
inline constexpr int error_hardware_stack = 714;
inline constexpr int error_illegal_instruction = 715;
inline constexpr int error_misaligned_address = 716;
inline constexpr int error_invalid_address_space = 717;
inline constexpr int error_invalid_pc = 718;
inline constexpr int error_tensor_memory_leak = 721;
inline constexpr int error_system_not_ready = 802;
inline constexpr int error_system_driver_mismatch = 803;
inline constexpr int error_compat_not_supported = 804;
inline constexpr int error_mps_client_terminated = 810;

// What millpond needs: cuCtxRecordEvent came with CUDA 12.5 (driver 555).
inline constexpr int needed_version = 12050;

}  // namespace millpond::cuda
