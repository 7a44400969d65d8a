# A room is a folder of src/ built as an object library. It sees the rooms named here and no others:
# tests/architecture checks that the includes agree with this table.
set(millpond_rooms base driver machine calibrate heap order trace plan resource pool pinned managed
  growable shared planned bindings record replay advise report cli)
# The rooms of the installed library; the others make the command and the recorder.
set(millpond_library_rooms base driver machine heap order trace plan resource pool pinned managed
  growable shared planned bindings)

set(millpond_needs_base)
set(millpond_needs_driver base)
set(millpond_needs_machine base driver)
set(millpond_needs_calibrate base driver)
set(millpond_needs_heap base)
set(millpond_needs_order base driver)
set(millpond_needs_trace base)
set(millpond_needs_plan base trace)
set(millpond_needs_resource base driver machine trace)
set(millpond_needs_pool ${millpond_needs_resource} heap order resource)
set(millpond_needs_pinned ${millpond_needs_pool} pool)
set(millpond_needs_managed ${millpond_needs_resource} resource)
set(millpond_needs_growable ${millpond_needs_resource} order resource)
set(millpond_needs_shared ${millpond_needs_resource} resource)
set(millpond_needs_planned ${millpond_needs_resource} plan resource)
set(millpond_needs_bindings base driver machine heap order trace plan resource pool pinned managed
  growable shared planned)
set(millpond_needs_record base trace)
set(millpond_needs_replay ${millpond_needs_bindings})
set(millpond_needs_advise ${millpond_needs_replay} replay)
set(millpond_needs_report ${millpond_needs_advise} advise)
set(millpond_needs_cli ${millpond_needs_report} report record calibrate)

# Third-party libraries of a room, linked wherever its objects are.
set(millpond_libraries_base millpond_fmt)
set(millpond_libraries_driver ${CMAKE_DL_LIBS} Threads::Threads millpond_fmt)
set(millpond_libraries_trace ${MILLPOND_ZSTD} ${MILLPOND_ZLIB} millpond_fmt)
set(millpond_libraries_resource Threads::Threads millpond_fmt)
set(millpond_libraries_plan Threads::Threads millpond_fmt)
set(millpond_libraries_record ${CMAKE_DL_LIBS} Threads::Threads millpond_fmt)
set(millpond_libraries_replay Threads::Threads millpond_fmt)
set(millpond_libraries_advise millpond_fmt)
set(millpond_libraries_report millpond_fmt nlohmann_json::nlohmann_json ${MILLPOND_ZLIB})
set(millpond_libraries_cli millpond_fmt nlohmann_json::nlohmann_json CLI11::CLI11)

# Adds the object library room_NAME from every source below its folder.
function(millpond_add_room name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX
    "/cli/main\\.cpp$|/bindings/preload/[^/]*_api\\.cpp$|/bindings/preload/process\\.cpp$")
  if(NOT sources)
    set(millpond_room_empty_${name} TRUE CACHE INTERNAL "")
    return()
  endif()
  set(millpond_room_empty_${name} FALSE CACHE INTERNAL "")
  add_library(room_${name} OBJECT ${sources})
  set(joined 12)
  if(name STREQUAL "cli")
    set(joined 24)  # each of its sources reads the same large headers
  endif()
  millpond_join_sources(room_${name} millpond_room_headers ${joined})
  # Words, pages and options, which nobody waits for: optimised less they compile in two thirds of
  # the time.
  if(name MATCHES "^(cli|calibrate|machine|report|advise)$")
    target_compile_options(room_${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  if(name STREQUAL "pool")
    # The fast paths. Compiled beside other code they are inlined less: 26 instructions more a pair.
    foreach(fast pool cache/cache_handle)
      set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/pool/${fast}.cpp PROPERTIES
        SKIP_UNITY_BUILD_INCLUSION ON)
    endforeach()
  endif()
  target_include_directories(room_${name} PRIVATE
    ${PROJECT_SOURCE_DIR}/src ${PROJECT_BINARY_DIR}/generated)
  target_include_directories(room_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
  target_link_libraries(room_${name} PRIVATE millpond_flags)
  foreach(room ${millpond_needs_${name}} ${name})
    target_link_libraries(room_${name} PRIVATE ${millpond_libraries_${room}})
  endforeach()
  if(name STREQUAL "record")
    target_include_directories(room_${name} SYSTEM PRIVATE ${millpond_cuda_includes})
  endif()
  if(name STREQUAL "managed")
    # One file alone looks for CUPTI's headers. A folder that the compiler searches by itself is not
    # named: the standard library finds C's headers by their order.
    set(folders ${millpond_cuda_includes})
    list(REMOVE_ITEM folders ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES})
    foreach(folder ${folders})
      set_property(SOURCE ${CMAKE_CURRENT_SOURCE_DIR}/managed/managed_watch.cpp APPEND PROPERTY
        COMPILE_OPTIONS "-isystem${folder}")
    endforeach()
  endif()
  if(name STREQUAL "driver")
    target_include_directories(room_${name} SYSTEM PRIVATE
      $<TARGET_PROPERTY:tomlplusplus::tomlplusplus,INTERFACE_INCLUDE_DIRECTORIES>)
  endif()
endfunction()

# Gives a target the objects of a room, of all it needs, and their libraries.
function(millpond_use_rooms target)
  set(all)
  foreach(room ${ARGN})
    list(APPEND all ${millpond_needs_${room}} ${room})
  endforeach()
  list(REMOVE_DUPLICATES all)
  target_include_directories(${target} PRIVATE
    ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/tests
    ${PROJECT_BINARY_DIR}/generated)
  target_link_libraries(${target} PRIVATE millpond_flags)
  foreach(room ${all})
    if(NOT millpond_room_empty_${room})
      target_sources(${target} PRIVATE $<TARGET_OBJECTS:room_${room}>)
    endif()
    target_link_libraries(${target} PRIVATE ${millpond_libraries_${room}})
  endforeach()
endfunction()
