// What the values of options must be, whichever subcommand has them.
#pragma once

namespace CLI {
class Validator;
}

namespace millpond::cli {

// A whole number from 0 to 2^64 - 1, decimal or 0x. CLI11 alone takes -1 for 2^64 - 1, and what is
// larger too. The frame puts it on every option of an unsigned number; one whose type has a name of
// its own asks for it.
[[nodiscard]] CLI::Validator whole_number();

// A finite number: CLI11 takes "nan", which is neither below nor above any limit, and "inf". The
// frame puts it on every option of a fractional number.
[[nodiscard]] CLI::Validator finite_number();

// Anything but an empty word: `--limit ""`, as of a variable that a script did not set, must not
// read as if the option had not been given. The frame puts it on every option that takes a value.
[[nodiscard]] CLI::Validator not_empty();

}  // namespace millpond::cli
