#include "millpond/base/result.hpp"

namespace millpond {

const char* to_string(error_code code) noexcept {
  switch (code) {
    case error_code::invalid_argument: return "invalid argument";
    case error_code::out_of_memory: return "out of memory";
    case error_code::driver_failure: return "driver failure";
    case error_code::not_supported: return "not supported";
    case error_code::wrong_kind: return "wrong kind of memory";
    case error_code::double_free: return "double free";
    case error_code::foreign_pointer: return "foreign pointer";
    case error_code::interior_pointer: return "interior pointer";
    case error_code::bad_input: return "bad input";
    case error_code::output_failure: return "output failure";
    case error_code::not_permitted: return "not permitted";
  }
  return "unknown error";
}

}  // namespace millpond
