// Calls that give something back.
#pragma once
#include "millpond/driver/driver.hpp"

namespace millpond {

// Tried once more where it fails, since nobody can try it later. Answers what the last try did.
template <class Call>
call_result insist(Call&& call) noexcept {
  call_result answer = call();
  if (!answer.ok()) answer = call();
  return answer;
}

}  // namespace millpond
