// PyTorch's memory history as CSV: `action,time_us,addr,size,stream`, in any order of columns,
// others ignored. One row is one event.
#pragma once
#include <memory>

#include "millpond/base/result.hpp"
#include "trace/input.hpp"
#include "trace/source.hpp"

namespace millpond::trace {

// Is this first line the header of such a file?
[[nodiscard]] bool is_csv_header(std::string_view line) noexcept;
result<std::unique_ptr<event_reader>> read_csv(input_buffer from, const open_options& options);

// The event of one PyTorch action, as its history and its snapshots spell it; false if there is
// none.
struct torch_action {
  std::string_view name;
  action what{};
};
[[nodiscard]] const torch_action* find_torch_action(std::string_view name) noexcept;

}  // namespace millpond::trace
