# Every switch of the build, and the flags that follow from it.
option(MILLPOND_BUILD_TESTS "Build the tests" ON)
option(MILLPOND_BUILD_BENCHMARKS "Build the benchmarks" ON)
option(MILLPOND_BUILD_EXAMPLES "Build the examples" ON)
option(MILLPOND_AUDIT "Whole-structure walkers after each change (slow, for tests)" OFF)
option(MILLPOND_WERROR "Treat warnings as errors" OFF)
option(MILLPOND_PORTABLE "Link third-party libraries and the C++ runtime statically" ON)
option(MILLPOND_JOIN_SOURCES "Compile shared headers once, and several sources of a room as one" ON)
option(MILLPOND_OPTIMIZE_EXTRAS
  "Optimise benchmarks and examples; OFF compiles them as tests are, and they keep no results" ON)
option(MILLPOND_FUZZ "Build the fuzz targets for libFuzzer (Clang)" OFF)
set(MILLPOND_SANITIZE "" CACHE STRING "address, thread, undefined or empty")

add_library(millpond_flags INTERFACE)
target_compile_options(millpond_flags INTERFACE
  -Wall -Wextra -Wconversion $<$<NOT:$<BOOL:${MILLPOND_JOIN_SOURCES}>>:-Wshadow>
  -fno-omit-frame-pointer
  # GCC's -Wconversion for C++ does not hold it, Clang's does.
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-sign-conversion>
  # What a lock guards is touched under it, wherever the members say so (src/base/mutex.hpp).
  "$<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wthread-safety;-Werror=thread-safety>")
if(MILLPOND_WERROR)
  # What GCC 12 thinks of an inlined std::string at -O1 and above is often false
  # (https://gcc.gnu.org/bugzilla/show_bug.cgi?id=105651): said, and no error.
  target_compile_options(millpond_flags INTERFACE -Werror)
  foreach(opinion array-bounds stringop-overflow stringop-overread restrict maybe-uninitialized)
    target_compile_options(millpond_flags INTERFACE
      $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-error=${opinion}>)
  endforeach()
endif()
if(MILLPOND_SANITIZE)
  string(REPLACE ";" "," millpond_sanitize "${MILLPOND_SANITIZE}")
  target_compile_options(millpond_flags INTERFACE -fsanitize=${millpond_sanitize}
    -fno-sanitize-recover=all)
  target_link_options(millpond_flags INTERFACE -fsanitize=${millpond_sanitize})
endif()
if(MILLPOND_FUZZ)
  target_compile_options(millpond_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(MILLPOND_AUDIT)
  target_compile_definitions(millpond_flags INTERFACE MILLPOND_AUDIT=1)
endif()
if(MILLPOND_PORTABLE AND NOT MILLPOND_SANITIZE)
  target_link_options(millpond_flags INTERFACE -static-libstdc++ -static-libgcc)
endif()

# What a test asserts does not depend on how well it is optimised, and its own source compiles in
# half the time so. The rooms that it tests are built as they are installed.
add_library(millpond_test_flags INTERFACE)
target_compile_options(millpond_test_flags INTERFACE $<$<CONFIG:Release>:-O0>)
add_library(millpond_extra_flags INTERFACE)
if(MILLPOND_BUILD_TESTS AND NOT MILLPOND_OPTIMIZE_EXTRAS)
  target_link_libraries(millpond_extra_flags INTERFACE millpond_test_flags)
  set(millpond_extra_headers millpond_test_headers)
else()
  set(millpond_extra_headers millpond_room_headers)
endif()

find_program(MILLPOND_CCACHE ccache)
if(MILLPOND_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${MILLPOND_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${MILLPOND_CCACHE})
endif()
