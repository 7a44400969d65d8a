# Run at build: writes the page's files and D3 into a C++ source as string literals.
# FOLDER holds report.html, report.css and the scripts, D3 is d3.min.js or *-NOTFOUND, OUTPUT the
# source.
set(made "// Made by cmake/embed_page.cmake.\n#include \"report/page.hpp\"\n")
string(APPEND made "namespace millpond::report {\nnamespace {\n")
function(embed name)
  set(text "")
  foreach(path ${ARGN})
    file(READ "${path}" one)
    string(APPEND text "${one}\n")
  endforeach()
  set(made "${made}constexpr char ${name}_text[] = R\"millpond_page(${text})millpond_page\";\n"
    PARENT_SCOPE)
endfunction()
embed(html ${FOLDER}/report.html)
embed(css ${FOLDER}/report.css)
file(GLOB scripts ${FOLDER}/*.js)
list(SORT scripts)
# app.js starts the page when all others are there.
list(REMOVE_ITEM scripts ${FOLDER}/app.js)
embed(script ${scripts} ${FOLDER}/app.js)
if(EXISTS "${D3}")
  embed(d3 ${D3})
else()
  string(APPEND made "constexpr char d3_text[] = \"\";\n")
endif()
string(APPEND made "}  // namespace\n"
  "const page_files& embedded_page_files() noexcept {\n"
  "  static constexpr page_files files{{html_text, sizeof html_text - 1},\n"
  "      {css_text, sizeof css_text - 1},\n"
  "      {script_text, sizeof script_text - 1}, {d3_text, sizeof d3_text - 1}};\n"
  "  return files;\n}\n}  // namespace millpond::report\n")
file(WRITE ${OUTPUT} "${made}")
