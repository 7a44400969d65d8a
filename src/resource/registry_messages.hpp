// What the pointer registry says: each wrong free as an error naming both calls and both places,
// and the leak report.
#pragma once
#include <vector>

#include "millpond/detail/pointer_registry.hpp"

namespace millpond {

struct freed_block {
  block_facts was;
  const block_owner* by = nullptr;
  stream_handle stream = nullptr;
  call_site freed;
};

struct free_attempt {
  const block_owner* through = nullptr;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  call_site freed;
};

[[nodiscard]] error wrong_owner(const free_attempt& attempt, const block_facts& block);
[[nodiscard]] error wrong_size(const free_attempt& attempt, const block_facts& block);
[[nodiscard]] error freed_twice(const free_attempt& attempt, const freed_block& before);
[[nodiscard]] error interior(const free_attempt& attempt, const block_facts& block);
[[nodiscard]] error foreign(const free_attempt& attempt);

[[nodiscard]] leak_report add_up(const std::vector<block_facts>& blocks);

}  // namespace millpond
