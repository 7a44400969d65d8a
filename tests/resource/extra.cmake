# The model of the pool is the tests' and the soak's: build/soak runs it for as long as it is told.
target_sources(test_resource PRIVATE ${PROJECT_SOURCE_DIR}/tests/support/pool_model.cpp)
add_executable(soak ${PROJECT_SOURCE_DIR}/tests/support/soak.cpp ${PROJECT_SOURCE_DIR}/tests/support/pool_model.cpp)
millpond_use_rooms(soak resource)
set_target_properties(soak PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
