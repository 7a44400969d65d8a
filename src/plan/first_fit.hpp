// First fit and best fit in a given order, and the orders worth trying.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "plan/occupancy.hpp"
#include "plan/problem.hpp"
#include "plan/sections.hpp"

namespace millpond::plan {

enum class order_key {
  size,                 // largest first
  area,                 // size x sections, largest first
  length,               // longest lifetime first
  start,                // earliest first
  load,                 // those in the most loaded section first, then by size
  size_by_root_length,  // size x sqrt(sections), largest first
  // Largest class first, in it earliest first: like sizes pack as intervals on a line. Classes a
  // doubling: 2, 1, 6.
  size_class,
  size_class_coarse,
  size_class_fine,
};
inline constexpr std::array all_order_keys = {order_key::size,   order_key::area,
                                              order_key::length, order_key::start,
                                              order_key::load,   order_key::size_by_root_length};
// Where there are many buffers of each size, this beats the others; where there are few it only
// takes turns from them.
inline constexpr std::array large_order_keys = {order_key::size_class, order_key::size_class_fine,
                                                order_key::size_class_coarse};
[[nodiscard]] const char* to_string(order_key key) noexcept;

// Every buffer once; fixed ones first. Ties by the other measures and the index: no order depends
// on a sort.
[[nodiscard]] std::vector<index> make_order(const problem& of, const sections& in, order_key by);

enum class fit { first, best };

struct placement {
  offsets at;
  std::uint64_t peak = 0;
};

struct place_limits {
  std::uint64_t peak = UINT64_MAX;  // give up once a buffer ends past this
  std::function<bool()> stop;       // asked now and then; may be empty
};

// Places the buffers of `order` (fixed ones must lead it) one by one. `taken` is cleared first.
// Where a limit ends it, the peak is UINT64_MAX and the offsets are no plan.
[[nodiscard]] placement place_in_order(const problem& of, const sections& in,
                                       const std::vector<index>& order, fit how, occupancy& taken,
                                       const place_limits& limits = {});

}  // namespace millpond::plan
