#include <millpond/buffer.hpp>
#include <millpond/kinds.hpp>

#include <cstdio>
#include <numeric>

int main() {
  millpond::pageable_resource memory(nullptr);
  millpond::buffer<long> numbers(1000, memory, nullptr);
  std::iota(numbers.host_span().begin(), numbers.host_span().end(), 0);
  std::printf("the sum is %ld\n", std::reduce(numbers.host_span().begin(), numbers.host_span().end()));
}
