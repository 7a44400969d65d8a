# Where CUDA's headers are, decided once for the whole build. millpond needs none of them: without
# them the recorder, what CUPTI counts of managed memory, and the tests against NVIDIA's own
# declarations are left out.
#
#   millpond_cuda_includes  the folders of cuda.h, of cupti.h and of nvtx3/; empty without cuda.h
#   millpond_has_cupti      ON where cupti.h is in one of them
#   millpond_cccl_include   the folder of cuda/, thrust/ and cub/; empty where there is none
#
# The CUDA toolkit's come first, then those that scripts/install-dependencies takes from NVIDIA's
# packages on PyPI. They are never mixed: CUPTI's headers go with the cuda.h of their release.
find_package(CUDAToolkit QUIET)
set(millpond_cuda_includes)
set(millpond_has_cupti OFF)
set(millpond_cccl_include)

# Takes the folders of one release, unless an earlier one has all, or this one has no more than it.
function(millpond_consider_cuda_headers)
  set(found)
  set(has_cuda OFF)
  set(has_cupti OFF)
  foreach(folder ${ARGN})
    if(EXISTS ${folder}/cuda.h)
      set(has_cuda ON)
      list(APPEND found ${folder})
    endif()
    if(EXISTS ${folder}/cupti.h)
      set(has_cupti ON)
      list(APPEND found ${folder})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES found)
  if(millpond_has_cupti OR NOT has_cuda OR (millpond_cuda_includes AND NOT has_cupti))
    return()
  endif()
  set(cccl)
  foreach(folder ${found})
    # CUDA 12 has it beside cuda.h, CUDA 13 in a folder of its own.
    foreach(inner ${folder}/cccl ${folder})
      if(NOT cccl AND EXISTS ${inner}/cuda/memory_resource)
        set(cccl ${inner})
      endif()
    endforeach()
  endforeach()
  set(millpond_cuda_includes "${found}" PARENT_SCOPE)
  set(millpond_has_cupti ${has_cupti} PARENT_SCOPE)
  set(millpond_cccl_include "${cccl}" PARENT_SCOPE)
endfunction()

millpond_consider_cuda_headers(
  ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_LIBRARY_ROOT}/extras/CUPTI/include)
foreach(root "$ENV{CUDAToolkit_ROOT}" "$ENV{CUDA_PATH}" "$ENV{CUDA_HOME}" /usr/local/cuda)
  if(root)
    millpond_consider_cuda_headers(${root}/include ${root}/extras/CUPTI/include)
  endif()
endforeach()
millpond_consider_cuda_headers(${PROJECT_SOURCE_DIR}/build/tools/cuda/include)
if(millpond_cuda_includes)
  list(JOIN millpond_cuda_includes ", " folders)
  message(STATUS "CUDA's headers: ${folders}")
endif()
