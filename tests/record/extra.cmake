# The recorder from end to end on a machine with no card: a program over a fake CUPTI (tests/record/program).
if(TARGET millpond_record AND TARGET test_record)
  add_library(fake_cupti SHARED ${CMAKE_CURRENT_SOURCE_DIR}/record/program/fake_cupti.cpp)
  set_target_properties(fake_cupti PROPERTIES OUTPUT_NAME cupti SOVERSION 13
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/fake)
  add_executable(recorded_program ${CMAKE_CURRENT_SOURCE_DIR}/record/program/recorded_program.cpp)
  target_link_libraries(recorded_program PRIVATE fake_cupti ${CMAKE_DL_LIBS})
  target_compile_options(recorded_program PRIVATE -g)
  set_target_properties(recorded_program PROPERTIES BUILD_RPATH ${PROJECT_BINARY_DIR}/tests/fake
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/fake)
  foreach(target fake_cupti recorded_program)
    target_include_directories(${target} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    target_link_libraries(${target} PRIVATE millpond_flags)
  endforeach()
  add_dependencies(test_record recorded_program millpond_record)
  target_compile_definitions(test_record PRIVATE MILLPOND_HAS_RECORDER
    MILLPOND_RECORDED_PROGRAM="$<TARGET_FILE:recorded_program>" MILLPOND_RECORD_LIBRARY="$<TARGET_FILE:millpond_record>")
  target_include_directories(test_record SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
endif()
