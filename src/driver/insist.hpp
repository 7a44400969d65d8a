// Calls that give something back.
#pragma once
#include <vector>

#include "millpond/driver/driver.hpp"

namespace millpond {

// Tried once more where it fails, since nobody can try it later. Answers what the last try did.
template <class Call>
call_result insist(Call&& call) noexcept {
  call_result answer = call();
  if (!answer.ok()) answer = call();
  return answer;
}

// The same at an end that goes on whatever the driver answers: a failure is added to the list. True
// where there was none.
template <class Call>
bool insist(std::vector<error>& failures, const char* doing, Call&& call) {
  const call_result answer = insist(call);
  if (!answer.ok()) failures.push_back(to_error(answer, doing));
  return answer.ok();
}

}  // namespace millpond
