#include <millpond/millpond.hpp>

#include <cstdio>

int main() {
  const auto gpu = millpond::simulated_gpu::create().value();
  const auto pool = millpond::pool::create(gpu).value();
  const millpond::buffer<float> numbers(1000, *pool, nullptr);
  std::printf("%zu numbers in %s memory of the %s\n", numbers.size(),
              millpond::to_string(pool->kind()), gpu->info().name.c_str());
}
