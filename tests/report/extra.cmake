# The page in a real browser, where chromium and Python's selenium are found; else it is skipped and
# says why.
find_package(Python3 QUIET COMPONENTS Interpreter)
if(Python3_FOUND)
  add_test(NAME report.page_in_a_browser COMMAND ${Python3_EXECUTABLE}
    ${CMAKE_CURRENT_LIST_DIR}/browser/page_test.py
    ${PROJECT_BINARY_DIR}/millpond ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/report_pages)
  set_tests_properties(report.page_in_a_browser PROPERTIES LABELS fast SKIP_RETURN_CODE 77
    TIMEOUT 300 PROCESSORS 2)
endif()
