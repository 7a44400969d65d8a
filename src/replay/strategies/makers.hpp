// How each strategy of the table in strategies.cpp is made.
#pragma once
#include <memory>

#include "replay/strategy.hpp"

namespace millpond::replay {

[[nodiscard]] std::unique_ptr<strategy> make_plain();
[[nodiscard]] std::unique_ptr<strategy> make_managed();
[[nodiscard]] std::unique_ptr<strategy> make_driver_pool();
[[nodiscard]] std::unique_ptr<strategy> make_driver_pool_kept();
[[nodiscard]] std::unique_ptr<strategy> make_fixed_arena();
[[nodiscard]] std::unique_ptr<strategy> make_millpond_pool();

}  // namespace millpond::replay
