# Installs the build tree `build` below `scratch`, then configures, builds and runs the project
# `source` against it. Any step that fails stops with its output.
function(step what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${what} failed (${status}):\n${output}")
  endif()
  message(STATUS "${what}: done")
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${scratch})
step("install" ${CMAKE_COMMAND} --install ${build} --prefix ${scratch}/prefix)
step("configure" ${CMAKE_COMMAND} -S ${source} -B ${scratch}/build -G Ninja
  -D CMAKE_PREFIX_PATH=${scratch}/prefix -D CMAKE_CXX_COMPILER=${compiler}
  -D expected_version=${version} -D CMAKE_BUILD_TYPE=Release)
step("build" ${CMAKE_COMMAND} --build ${scratch}/build)
step("run" ${scratch}/build/consumer)
if(NOT output MATCHES "a pool of one pond")
  message(FATAL_ERROR "the program printed: ${output}")
endif()
