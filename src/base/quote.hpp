// Any bytes as text on one line: in quotes, escaped, shortened. For messages about bad input.
#pragma once
#include <string>
#include <string_view>

namespace millpond {

// At most some 60 characters of `bytes`, what is not printable ASCII as \xNN. Named so that
// std::quoted is not found instead by the argument's namespace.
std::string in_quotes(std::string_view bytes);

}  // namespace millpond
