// Numbers of options that cannot be negative.
#pragma once

namespace CLI {
class Validator;
}

namespace millpond::cli {

// A whole number from 0 to 2^64 - 1, decimal or 0x. CLI11 alone takes -1 for 2^64 - 1, and what is
// larger too. The frame puts it on every option of an unsigned number; one whose type has a name of
// its own asks for it.
[[nodiscard]] CLI::Validator whole_number();

}  // namespace millpond::cli
