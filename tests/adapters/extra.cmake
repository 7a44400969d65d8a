# The adapters as their users meet them: from C, from other languages, from foreign programs.
set(here ${CMAKE_CURRENT_LIST_DIR})
add_custom_target(adapter_tests)
add_dependencies(adapter_tests millpond_shared)
add_dependencies(room_tests adapter_tests)

function(adapter_test name)
  add_test(NAME adapters.${name} COMMAND ${ARGN})
  set_tests_properties(adapters.${name} PROPERTIES LABELS adapters TIMEOUT 300 SKIP_RETURN_CODE 77)
endfunction()

# Plain C, warnings as errors: what the header promises to a C compiler.
add_executable(c_abi_test ${here}/c_abi_test.c)
target_compile_options(c_abi_test PRIVATE -std=c11 -D_POSIX_C_SOURCE=200809L -pedantic -Werror)
target_link_libraries(c_abi_test PRIVATE millpond_shared millpond_flags)
adapter_test(c_abi c_abi_test)
add_dependencies(adapter_tests c_abi_test)

# Nothing but what the version script names is shown, each with its version.
find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND)
  adapter_test(exports ${Python3_EXECUTABLE} ${here}/check_exports.py $<TARGET_FILE:millpond_shared>
    ${PROJECT_SOURCE_DIR}/include/millpond.h)
endif()
if(NOT MILLPOND_SANITIZE)  # an outside program has no sanitizer's runtime
  adapter_test(install_shared ${here}/install_shared.sh ${CMAKE_COMMAND} ${PROJECT_BINARY_DIR}
    ${PROJECT_BINARY_DIR}/adapters-installed ${here} ${CMAKE_C_COMPILER})
endif()

# The Python package, in a clean virtual environment. A sanitizer's runtime would have to be in Python itself.
if(Python3_FOUND AND TARGET python_package AND NOT MILLPOND_SANITIZE)
  add_dependencies(adapter_tests python_package)
  adapter_test(wheel ${Python3_EXECUTABLE} ${here}/python/wheel_test.py ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}
    ${PROJECT_BINARY_DIR}/adapters-venv)
endif()
