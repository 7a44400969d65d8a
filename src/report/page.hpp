// One HTML file that shows traces as charts; it asks for nothing from anywhere.
#pragma once
#include <string>
#include <vector>

#include "advise/difference.hpp"
#include "advise/finding.hpp"
#include "millpond/base/result.hpp"
#include "replay/outcome.hpp"
#include "report/picture.hpp"

namespace millpond::report {

// One trace with all that is known of it.
struct page_trace {
  picture shown;
  advise::explanation explained;
  const trace::trace_info* info =
      nullptr;  // of the picture and of the explanation; outlives the page
  std::vector<replay::outcome> outcomes;  // empty where it was not replayed
  std::string replayed_on;                // the GPU
  std::string not_replayed;               // why, where it should have been
};

struct page {
  std::vector<page_trace> traces;
  const advise::difference* change = nullptr;  // between the first two; null where there is one
  std::string made_by;                         // "millpond 0.2.0 (commit)"
};

// The whole file. not_supported in a build that found no D3.
[[nodiscard]] result<std::string> page_html(const page& of);
// Whether a file that begins so is such a page, of this or an earlier version.
[[nodiscard]] bool is_page(std::string_view beginning);
// What the file carries, as JSON: for tests and for programs.
[[nodiscard]] std::string page_json(const page& of);

// The files of src/report/page and D3, put into the build by cmake/embed_page.cmake.
struct page_files {
  std::string_view html, css, script, d3;  // d3 is empty where it was not found
};
[[nodiscard]] const page_files& embedded_page_files() noexcept;

}  // namespace millpond::report
