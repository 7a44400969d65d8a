# The recorder from end to end on a machine with no card: a program over a fake CUPTI
# (tests/record/program).
if(TARGET millpond_record AND TARGET test_record)
  add_library(fake_cupti SHARED ${CMAKE_CURRENT_SOURCE_DIR}/record/program/fake_cupti.cpp)
  set_target_properties(fake_cupti PROPERTIES OUTPUT_NAME cupti SOVERSION 13
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/fake)
  add_executable(recorded_program ${CMAKE_CURRENT_SOURCE_DIR}/record/program/recorded_program.cpp)
  target_link_libraries(recorded_program PRIVATE fake_cupti ${CMAKE_DL_LIBS})
  target_compile_options(recorded_program PRIVATE -g)
  # ENABLE_EXPORTS: its Py_Version is found as an interpreter's is.
  set_target_properties(recorded_program PROPERTIES ENABLE_EXPORTS ON
    BUILD_RPATH ${PROJECT_BINARY_DIR}/tests/fake
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/fake)
  foreach(target fake_cupti recorded_program)
    target_include_directories(${target} SYSTEM PRIVATE ${millpond_cuda_includes})
    target_link_libraries(${target} PRIVATE millpond_flags)
  endforeach()
  # The same from Python, where there is one whose frames are known.
  add_library(recorded_library
    MODULE ${CMAKE_CURRENT_SOURCE_DIR}/record/program/recorded_library.cpp)
  target_link_libraries(recorded_library PRIVATE fake_cupti millpond_flags ${CMAKE_DL_LIBS})
  target_include_directories(recorded_library SYSTEM PRIVATE ${millpond_cuda_includes})
  set_target_properties(recorded_library PROPERTIES BUILD_RPATH ${PROJECT_BINARY_DIR}/tests/fake
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/fake)
  find_package(Python3 COMPONENTS Interpreter QUIET)
  if(Python3_VERSION VERSION_GREATER_EQUAL 3.11 AND Python3_VERSION VERSION_LESS 3.14)
    target_compile_definitions(test_record PRIVATE MILLPOND_PYTHON="${Python3_EXECUTABLE}"
      MILLPOND_RECORDED_LIBRARY="$<TARGET_FILE:recorded_library>"
      MILLPOND_RECORDED_SCRIPT="${CMAKE_CURRENT_SOURCE_DIR}/record/program/recorded_script.py")
  endif()
  add_dependencies(test_record recorded_program recorded_library millpond_record)
  target_compile_definitions(test_record PRIVATE MILLPOND_HAS_RECORDER
    MILLPOND_RECORDED_PROGRAM="$<TARGET_FILE:recorded_program>"
    MILLPOND_RECORD_LIBRARY="$<TARGET_FILE:millpond_record>")
  target_include_directories(test_record SYSTEM PRIVATE ${millpond_cuda_includes})
endif()
