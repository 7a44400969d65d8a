# What makes a build take minutes. Three quarters of a source's compile time go into reading the
# standard headers and making the same templates again, so
# - the headers that nearly every source includes are compiled once for the rooms and once for their
#   tests, and
# - several sources of a room are compiled as one (CMake's unity build), which no name of an
#   anonymous namespace may stand twice in.
# Each source still names what it uses, and is whole by itself: the presets dev and tidy build
# without.
set(millpond_common_headers <algorithm> <array> <atomic> <bit> <charconv> <chrono> <cstddef>
  <cstdint>
  <cstring> <deque> <filesystem> <fstream> <functional> <iterator> <limits> <map> <memory> <mutex>
  <numeric> <optional> <set> <shared_mutex> <span> <sstream> <string> <string_view> <thread> <tuple>
  <unordered_map> <unordered_set> <utility> <variant> <vector> <fmt/format.h>)

# A target that holds the compiled headers of others, which are built with the same flags.
function(millpond_add_headers name)
  if(NOT MILLPOND_JOIN_SOURCES)
    return()
  endif()
  file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/generated/${name}.cpp CONTENT "")
  add_library(${name} OBJECT ${PROJECT_BINARY_DIR}/generated/${name}.cpp)
  target_link_libraries(${name} PRIVATE millpond_flags millpond_fmt)
  target_precompile_headers(${name} PRIVATE ${ARGN})
endfunction()

# The target's sources are compiled with those headers, up to SOURCES of them as one.
function(millpond_join_sources target headers sources)
  if(TARGET ${headers})
    target_precompile_headers(${target} REUSE_FROM ${headers})
    # The headers are compiled for a library; a program is compiled like one, or the compiler passes
    # over them.
    target_compile_options(${target} PRIVATE -fPIC)
    # This warning asks what lies in the same file, as -Wshadow does, and a joined source is none.
    # The presets dev and tidy give both.
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${sources})
  endif()
endfunction()

# The same for a target that is built with flags of its own, and so without those headers.
function(millpond_join_own_sources target sources)
  if(MILLPOND_JOIN_SOURCES)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${sources})
  endif()
endfunction()
