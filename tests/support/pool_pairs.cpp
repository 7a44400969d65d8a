// pool_pairs cache|plain|streams|capture N: N pairs of an allocation and a free in a warm pool over
// the null driver, and the driver calls that they made. Run under callgrind, the difference of two
// Ns is what a pair costs in instructions. streams: by the plain call, going round 4096 streams,
// once they have settled. capture: by a cache inside a capture.
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "driver/null/null_driver.hpp"
#include "millpond/pool/pool.hpp"
#include "support/forwarding_driver.hpp"

namespace {

// The null driver, saying of every stream that it captures from when it is asked to.
class capturing_driver final : public millpond::forwarding_driver {
 public:
  using forwarding_driver::forwarding_driver;
  ~capturing_driver() override {
    if (destroy_ != nullptr) destroy_(data_);
  }
  millpond::call_result stream_capture(millpond::stream_handle s,
                                       millpond::capture_info* out) noexcept override {
    const millpond::call_result answer = forwarding_driver::stream_capture(s, out);
    if (captures) *out = {millpond::capture_status::active, 1, nullptr};
    return answer;
  }
  millpond::call_result graph_retain(millpond::graph_handle, void (*destroy)(void*),
                                     void* data) noexcept override {
    destroy_ = destroy;
    data_ = data;
    return {};
  }
  bool captures = false;

 private:
  void (*destroy_)(void*) = nullptr;
  void* data_ = nullptr;
};

}  // namespace

int main(int count, char** words) {
  if (count != 3) return 2;
  const bool by_cache = std::string(words[1]) == "cache";
  const std::size_t streams = std::string(words[1]) == "streams" ? 4096 : 1;
  const std::size_t pairs = std::strtoull(words[2], nullptr, 10);
  auto gpu = std::make_shared<millpond::null_driver>();
  const auto front = std::make_shared<capturing_driver>(gpu);
  const bool captured = std::string(words[1]) == "capture";
  auto pool = captured ? *millpond::pool::create(front) : *millpond::pool::create(gpu);
  std::vector<millpond::stream_handle> all(streams);
  for (auto& s : all) static_cast<void>(gpu->stream_create(&s));
  auto cache = pool->cache(all[0]);
  front->captures = captured;
  std::optional<millpond::pool::capture_cache_handle> inside;
  if (captured) inside.emplace(pool->capture_cache(all[0]));
  const std::uint64_t sizes[] = {4 << 10, 64 << 10, 1 << 20, 3 << 20};
  const auto pair = [&](std::size_t i) {
    const std::uint64_t bytes = streams == 1 ? sizes[i % 4] : sizes[1];
    if (captured) return inside->deallocate(inside->allocate(bytes), bytes);
    const millpond::stream_handle stream = all[i % streams];
    void* const x = by_cache ? cache.allocate(bytes) : pool->allocate(bytes, stream);
    by_cache ? cache.deallocate(x, bytes) : pool->deallocate(x, bytes, stream);
  };
  for (std::size_t warm = 0; warm < 8 * streams + 8; ++warm) pair(warm);
  gpu->reset_counters();
  for (std::size_t i = 0; i < pairs; ++i) pair(i);
  std::cout << "driver_calls " << gpu->total_calls() << " identity " << gpu->calls("cuStreamGetId")
            << " capture " << gpu->calls("cuStreamGetCaptureInfo") << "\n";
  front->captures = false;
}
