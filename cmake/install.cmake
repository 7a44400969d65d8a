# The CMake package. find_package(millpond) gives millpond::millpond, the static library for C++;
# find_package(millpond COMPONENTS shared) gives millpond::shared, the C ABI as a shared library,
# with pkg-config's millpond.pc beside it. `cmake --install build --component NAME`: library,
# shared, command, preload.
include(CMakePackageConfigHelpers)
set(millpond_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/millpond)
install(TARGETS millpond EXPORT millpond-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  COMPONENT library)
install(TARGETS millpond_shared EXPORT millpond-shared-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  COMPONENT shared)
if(TARGET millpond_command)
  install(TARGETS millpond_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
    COMPONENT command)
endif()
if(TARGET millpond_record)  # `millpond record` and `top` look for it in the lib folder
  install(TARGETS millpond_record LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT command)
endif()
# The command writes its own manual and completions: they say what its --help says. Where only the
# command was built they are left out.
if(TARGET millpond_command AND NOT MILLPOND_SANITIZE)
  set(millpond_words ${PROJECT_BINARY_DIR}/words)
  file(MAKE_DIRECTORY ${millpond_words})
  foreach(word man bash zsh fish)
    add_custom_command(OUTPUT ${millpond_words}/${word}
      COMMAND $<TARGET_FILE:millpond_command> completion ${word} > ${millpond_words}/${word}
      DEPENDS millpond_command VERBATIM)
    list(APPEND millpond_word_files ${millpond_words}/${word})
  endforeach()
  add_custom_target(millpond_words ALL DEPENDS ${millpond_word_files})
  install(FILES ${millpond_words}/man DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 RENAME millpond.1
    COMPONENT command OPTIONAL)
  install(FILES ${millpond_words}/bash
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME millpond
    COMPONENT command OPTIONAL)
  install(FILES ${millpond_words}/zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions
    RENAME _millpond
    COMPONENT command OPTIONAL)
  install(FILES ${millpond_words}/fish
    DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d RENAME millpond.fish
    COMPONENT command OPTIONAL)
endif()
install(DIRECTORY include/millpond DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT library)
foreach(component library shared)
  install(FILES include/millpond.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT ${component})
endforeach()
install(EXPORT millpond-targets NAMESPACE millpond:: DESTINATION ${millpond_cmake_dir}
  COMPONENT library)
install(EXPORT millpond-shared-targets NAMESPACE millpond:: DESTINATION ${millpond_cmake_dir}
  COMPONENT shared)
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
install(FILES ${PROJECT_BINARY_DIR}/millpond.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
  COMPONENT shared)
install(TARGETS millpond_preload LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT preload)
