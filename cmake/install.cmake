# The CMake package: find_package(millpond) gives millpond::millpond.
include(CMakePackageConfigHelpers)
install(TARGETS millpond EXPORT millpond-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  COMPONENT library)
if(TARGET millpond_command)
  install(TARGETS millpond_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
    COMPONENT command)
endif()
install(DIRECTORY include/millpond DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT library)
install(EXPORT millpond-targets NAMESPACE millpond::
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/millpond COMPONENT library)
configure_package_config_file(cmake/millpond-config.cmake.in
  ${PROJECT_BINARY_DIR}/millpond-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/millpond)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/millpond-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/millpond-config.cmake
  ${PROJECT_BINARY_DIR}/millpond-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/millpond COMPONENT library)
