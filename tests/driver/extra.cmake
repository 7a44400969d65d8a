# Host memory that runs out, for the tests of what a driver answers then.
target_sources(test_driver PRIVATE ${PROJECT_SOURCE_DIR}/tests/support/failing_new.cpp)

# A libcuda with scripted answers, loaded by the tests in the place of the real one.
add_library(fake_libcuda MODULE ${CMAKE_CURRENT_LIST_DIR}/fake_libcuda/fake_libcuda.cpp)
target_include_directories(fake_libcuda PRIVATE
  ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/tests)
target_link_libraries(fake_libcuda PRIVATE millpond_flags)
add_dependencies(test_driver fake_libcuda)
target_compile_definitions(test_driver PRIVATE
  MILLPOND_FAKE_LIBCUDA="$<TARGET_FILE:fake_libcuda>")

# Where CUDA's headers are found, our declarations are compared with its own.
if(millpond_cuda_includes)
  target_include_directories(test_driver SYSTEM PRIVATE ${millpond_cuda_includes})
else()
  message(STATUS "cuda.h is not found: the test of our CUDA declarations against it is left out")
endif()
