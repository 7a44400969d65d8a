# The model of the pool is the tests' and the soak's: build/soak runs it for as long as it is asked.
set(pool_model ${PROJECT_SOURCE_DIR}/tests/support/pool_model.cpp
  ${PROJECT_SOURCE_DIR}/tests/support/pool_programs.cpp)
target_sources(test_pool PRIVATE ${pool_model}
  ${PROJECT_SOURCE_DIR}/tests/support/failing_new.cpp)
add_executable(soak ${PROJECT_SOURCE_DIR}/tests/support/soak.cpp ${pool_model})
millpond_use_rooms(soak pool)
set_target_properties(soak PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})

# What a pair costs in instructions, where the build is optimised and nothing is added to it.
add_executable(pool_pairs ${PROJECT_SOURCE_DIR}/tests/support/pool_pairs.cpp)
millpond_use_rooms(pool_pairs pool)
find_package(Python3 QUIET COMPONENTS Interpreter)
if(CMAKE_BUILD_TYPE STREQUAL "Release"
  AND NOT MILLPOND_SANITIZE AND NOT MILLPOND_AUDIT AND Python3_FOUND)
  add_test(NAME pool.instructions
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/support/count_instructions.py
    $<TARGET_FILE:pool_pairs>)
  set_tests_properties(pool.instructions PROPERTIES LABELS fast TIMEOUT 120 SKIP_RETURN_CODE 77)
endif()
