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

function(millpond_find_cuda_headers)
  set(includes)
  set(cupti OFF)
  # Each place is the folders of one release.
  set(toolkit ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_LIBRARY_ROOT}/extras/CUPTI/include)
  set(home $ENV{CUDA_HOME}/include $ENV{CUDA_HOME}/extras/CUPTI/include)
  set(unpacked ${PROJECT_SOURCE_DIR}/build/tools/cuda/include)
  foreach(place toolkit home unpacked)
    set(folders)
    set(has_cuda OFF)
    set(has_cupti OFF)
    foreach(folder ${${place}})
      if(EXISTS ${folder}/cuda.h)
        set(has_cuda ON)
        list(APPEND folders ${folder})
      endif()
      if(EXISTS ${folder}/cupti.h)
        set(has_cupti ON)
        list(APPEND folders ${folder})
      endif()
    endforeach()
    if(NOT has_cuda)
      continue()
    endif()
    # One with CUPTI is better than an earlier one without.
    if(NOT includes OR has_cupti)
      list(REMOVE_DUPLICATES folders)
      set(includes ${folders})
      set(cupti ${has_cupti})
    endif()
    if(has_cupti)
      break()
    endif()
  endforeach()
  set(cccl)
  foreach(folder ${includes})
    # CUDA 12 has it beside cuda.h, CUDA 13 in a folder of its own.
    foreach(inner ${folder}/cccl ${folder})
      if(NOT cccl AND EXISTS ${inner}/cuda/memory_resource)
        set(cccl ${inner})
      endif()
    endforeach()
  endforeach()
  set(millpond_cuda_includes "${includes}" PARENT_SCOPE)
  set(millpond_has_cupti ${cupti} PARENT_SCOPE)
  set(millpond_cccl_include "${cccl}" PARENT_SCOPE)
  if(cupti)
    message(STATUS "CUDA's headers: ${includes}")
  endif()
endfunction()
millpond_find_cuda_headers()
