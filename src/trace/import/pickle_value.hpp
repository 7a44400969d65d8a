// One value of a pickle.
#pragma once
#include <cstdint>

namespace millpond::trace {

struct pickle_value {
  enum class sort : std::uint8_t {
    none,
    boolean,  // number: 0 or 1
    integer,  // number: two's complement
    natural,  // number: over 2^63 - 1
    too_big,  // an integer of more than 64 bits
    real,     // number: the bits of a double
    text,     // number: string id in pickle_reader::texts
    bytes,    // the same
    list,     // number: object
    tuple,    // number: object
    dict,     // number: object; elements are key, value, key, value
    set,      // number: object
    reduced,  // number: what the dict_reader made of it
    gone,     // was given to the dict_reader, which kept what it wanted
  };
  sort of = sort::none;
  std::uint64_t number = 0;
};

}  // namespace millpond::trace
