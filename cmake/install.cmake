# The CMake package. find_package(millpond) gives millpond::millpond, the static library for C++;
# find_package(millpond COMPONENTS shared) gives millpond::shared, the C ABI as a shared library, with pkg-config's
# millpond.pc beside it. `cmake --install build --component NAME`: library, shared, command, preload.
include(CMakePackageConfigHelpers)
set(millpond_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/millpond)
install(TARGETS millpond EXPORT millpond-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  COMPONENT library)
install(TARGETS millpond_shared EXPORT millpond-shared-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  COMPONENT shared)
if(TARGET millpond_command)
  install(TARGETS millpond_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
    COMPONENT command)
endif()
install(DIRECTORY include/millpond DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT library)
foreach(component library shared)
  install(FILES include/millpond.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT ${component})
endforeach()
install(EXPORT millpond-targets NAMESPACE millpond:: DESTINATION ${millpond_cmake_dir} COMPONENT library)
install(EXPORT millpond-shared-targets NAMESPACE millpond:: DESTINATION ${millpond_cmake_dir} COMPONENT shared)
configure_package_config_file(cmake/millpond-config.cmake.in
  ${PROJECT_BINARY_DIR}/millpond-config.cmake
  INSTALL_DESTINATION ${millpond_cmake_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/millpond-config-version.cmake
  COMPATIBILITY SameMinorVersion)
foreach(component library shared)
  install(FILES ${PROJECT_BINARY_DIR}/millpond-config.cmake
    ${PROJECT_BINARY_DIR}/millpond-config-version.cmake
    DESTINATION ${millpond_cmake_dir} COMPONENT ${component})
endforeach()
configure_file(cmake/millpond.pc.in ${PROJECT_BINARY_DIR}/millpond.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/millpond.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT shared)
install(TARGETS millpond_preload LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT preload)
