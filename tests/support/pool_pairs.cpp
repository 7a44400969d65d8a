// pool_pairs lane|plain N: N pairs of an allocation and a free in a warm pool over the null driver, and the driver calls
// that they made. Run under callgrind, the difference of two Ns is what a pair costs in instructions.
#include <cstdlib>
#include <iostream>
#include <string>

#include "driver/null/null_driver.hpp"
#include "millpond/pool.hpp"

int main(int count, char** words) {
  if (count != 3) return 2;
  const bool by_lane = std::string(words[1]) == "lane";
  const long pairs = std::atol(words[2]);
  auto gpu = std::make_shared<millpond::null_driver>();
  auto pool = *millpond::pool::create(gpu);
  millpond::stream_handle stream = nullptr;
  static_cast<void>(gpu->stream_create(&stream));
  auto lane = pool->lane(stream);
  const std::uint64_t sizes[] = {4 << 10, 64 << 10, 1 << 20, 3 << 20};
  const auto pair = [&](std::uint64_t bytes) {
    void* const x = by_lane ? lane.allocate(bytes) : pool->allocate(bytes, stream);
    by_lane ? lane.deallocate(x, bytes) : pool->deallocate(x, bytes, stream);
  };
  for (int warm = 0; warm < 8; ++warm) pair(sizes[warm % 4]);
  gpu->reset_counters();
  for (long i = 0; i < pairs; ++i) pair(sizes[i % 4]);
  std::cout << "driver_calls " << gpu->total_calls() << " identity " << gpu->calls("cuStreamGetId") << " capture "
            << gpu->calls("cuStreamGetCaptureInfo") << "\n";
}
