# The bindings as their users meet them: from C, from other languages, from foreign programs.
set(here ${CMAKE_CURRENT_LIST_DIR})
add_custom_target(binding_tests)
add_dependencies(binding_tests millpond_shared)
add_dependencies(room_tests binding_tests)
if(TARGET test_bindings)
  add_dependencies(test_bindings binding_tests)
endif()

function(binding_test name)
  add_test(NAME bindings.${name} COMMAND ${ARGN})
  set_tests_properties(bindings.${name} PROPERTIES LABELS bindings TIMEOUT 300 SKIP_RETURN_CODE 77)
endfunction()

# Plain C, warnings as errors: what the header promises to a C compiler.
add_executable(c_abi_test ${here}/c_abi_test.c)
target_compile_options(c_abi_test PRIVATE -std=c11 -D_POSIX_C_SOURCE=200809L -pedantic -Werror)
target_link_libraries(c_abi_test PRIVATE millpond_shared millpond_flags)
binding_test(c_abi c_abi_test)
add_dependencies(binding_tests c_abi_test)

# Nothing but what the version script names is shown, each with its version.
find_package(Python3 QUIET COMPONENTS Interpreter)
if(Python3_FOUND)
  binding_test(exports ${Python3_EXECUTABLE} ${here}/check_exports.py $<TARGET_FILE:millpond_shared>
    ${PROJECT_SOURCE_DIR}/include/millpond.h)
endif()
if(NOT MILLPOND_SANITIZE)  # an outside program has no sanitizer's runtime
  binding_test(install_shared ${here}/install_shared.sh ${CMAKE_COMMAND} ${PROJECT_BINARY_DIR}
    ${PROJECT_BINARY_DIR}/bindings-installed ${here} ${CMAKE_C_COMPILER} ${CMAKE_GENERATOR})
endif()

# The Python package, in a clean virtual environment. A sanitizer's runtime would have to be in
# Python itself.
if(Python3_FOUND AND TARGET python_package AND NOT MILLPOND_SANITIZE)
  add_dependencies(binding_tests python_package)
  binding_test(wheel ${Python3_EXECUTABLE} ${here}/python/wheel_test.py ${PROJECT_SOURCE_DIR}
    ${PROJECT_BINARY_DIR}
    ${PROJECT_BINARY_DIR}/bindings-venv)
  # Everything compiled once more, as `pip install .` does on a user's machine: minutes the first
  # time.
  binding_test(wheel_from_source ${Python3_EXECUTABLE} ${here}/python/wheel_test.py
    ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}
    ${PROJECT_BINARY_DIR}/bindings-source-venv --from-source)
  set_tests_properties(bindings.wheel_from_source PROPERTIES LABELS "bindings;slow" TIMEOUT 3000
    RUN_SERIAL ON)
endif()

# What needs foreign headers is built where they are: CUDA's and its CCCL
# (cmake/cuda_headers.cmake), another CCCL (MILLPOND_CCCL_DIR, a folder that holds cuda/, thrust/
# and cub/), RMM (MILLPOND_RMM_DIR, as for the benchmarks), NCCL. Not in sanitizer builds: their
# templates are heavy, and what they call is tested there by itself.
set(MILLPOND_CCCL_DIR ""
  CACHE PATH "The include folder of a newer CCCL, for the tests of the cuda::mr binding")
# The binding's source compiled and run with these include folders, in this order.
function(foreign_test name source)
  add_executable(binding_${name} ${here}/foreign/${source})
  target_link_libraries(binding_${name} PRIVATE millpond millpond_flags)
  target_compile_options(binding_${name} PRIVATE -O0)
  target_include_directories(binding_${name} SYSTEM PRIVATE ${ARGN})
  binding_test(${name} binding_${name})
  add_dependencies(binding_tests binding_${name})
endfunction()
if(millpond_cuda_includes AND NOT MILLPOND_SANITIZE)
  set(toolkit ${millpond_cuda_includes})
  list(GET toolkit 0 toolkit)
  if(EXISTS ${toolkit}/nvtx3/nvToolsExtMem.h)
    foreign_test(nvtx_memory nvtx_memory_test.cpp ${toolkit})
  endif()
  if(millpond_cccl_include)
    foreign_test(cuda_mr cuda_mr_test.cpp ${millpond_cccl_include} ${toolkit})
    if(Python3_FOUND)
      binding_test(cuda_mr_newest ${Python3_EXECUTABLE} ${here}/foreign/newest_cccl.py
        ${PROJECT_SOURCE_DIR}
        ${PROJECT_BINARY_DIR}/bindings-cccl ${CMAKE_CXX_COMPILER} ${toolkit}
        $<TARGET_FILE:millpond>)
    endif()
    foreign_test(thrust thrust_test.cpp ${millpond_cccl_include} ${toolkit})
    target_compile_definitions(binding_thrust PRIVATE THRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP)
  endif()
  if(MILLPOND_CCCL_DIR)
    foreign_test(cuda_mr_newer cuda_mr_test.cpp ${MILLPOND_CCCL_DIR} ${toolkit})
  endif()
  if(MILLPOND_RMM_DIR AND CUDAToolkit_FOUND)  # RMM is linked with CUDA's runtime
    set(rmm ${MILLPOND_RMM_DIR}/librmm)
    foreign_test(rmm rmm_test.cpp ${rmm}/include ${rmm}/include/rapids
      ${MILLPOND_RMM_DIR}/rapids_logger/include ${toolkit})
    target_link_libraries(binding_rmm PRIVATE ${rmm}/lib64/librmm.so
      ${MILLPOND_RMM_DIR}/rapids_logger/lib64/librapids_logger.so
      CUDA::cudart)
  endif()
else()
  message(STATUS
    "bindings: no CUDA headers, or a sanitizer: cuda::mr and Thrust are not compiled here")
endif()

# Metrics over HTTP, where prometheus-cpp is (Debian: prometheus-cpp-dev).
find_package(prometheus-cpp QUIET COMPONENTS pull)
if(prometheus-cpp_FOUND AND NOT MILLPOND_SANITIZE)  # its threads know no sanitizer
  add_executable(binding_prometheus ${here}/foreign/prometheus_test.cpp)
  target_link_libraries(binding_prometheus PRIVATE millpond millpond_flags prometheus-cpp::pull)
  binding_test(prometheus binding_prometheus)
  add_dependencies(binding_tests binding_prometheus)
endif()

# `millpond run`: programs of a runtime and a driver that are test doubles, served by a simulated
# GPU. Not under a sanitizer, whose runtime would have to come before ours.
if(Python3_FOUND AND TARGET millpond_command AND NOT MILLPOND_SANITIZE)
  set(preload ${here}/preload)
  set(preload_out ${PROJECT_BINARY_DIR}/tests/preload)
  function(fake_library name source soname)
    add_library(${name} SHARED ${preload}/${source})
    set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${preload_out} PREFIX ""
      SUFFIX "" OUTPUT_NAME ${soname}
      NO_SONAME ON)
    target_link_options(${name} PRIVATE -Wl,-soname,${soname})
  endfunction()
  fake_library(fake_cudart fake_cudart.c libcudart.so.13)
  target_link_options(fake_cudart PRIVATE -Wl,--version-script=${preload}/fake_cudart.map)
  fake_library(fake_cuda_for_run fake_cuda.c libcuda.so.1)
  foreach(program program driver_program)
    add_executable(preload_${program} ${preload}/${program}.c)
    set_target_properties(preload_${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${preload_out})
  endforeach()
  target_compile_definitions(preload_program PRIVATE _POSIX_C_SOURCE=200809L)
  target_link_libraries(preload_program PRIVATE fake_cudart Threads::Threads)
  target_link_libraries(preload_driver_program PRIVATE fake_cuda_for_run)
  # Stands for a program with libcudart_static.a in it: what tells them is a sentence of that
  # library.
  add_executable(preload_static_program ${preload}/static_program.c)
  set_target_properties(preload_static_program PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${preload_out})
  add_dependencies(binding_tests millpond_command millpond_preload preload_program
    preload_driver_program preload_static_program)
  binding_test(preload ${Python3_EXECUTABLE} ${preload}/preload_test.py
    $<TARGET_FILE:millpond_command>
    $<TARGET_FILE:preload_program> $<TARGET_FILE:preload_driver_program>
    $<TARGET_FILE:preload_static_program>)
endif()
# TensorRT's and ONNX Runtime's headers by test doubles.
target_include_directories(test_bindings SYSTEM PRIVATE ${here}/doubles)

if(Python3_FOUND)
  binding_test(tables ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/bench/pytorch/tables.py --check)
endif()
