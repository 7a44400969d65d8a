// One driver call a request: device memory by cuMemAlloc, or managed memory. Their free waits for
// the whole device, so no stream needs to be ordered.
#include "replay/strategies/makers.hpp"

namespace millpond::replay {
namespace {

class plain : public strategy {
 public:
  result<void> prepare(const strategy_setting& setting) override {
    gpu_ = setting.gpu;
    return {};
  }
  result<device_address> allocate(std::uint64_t bytes, std::uint16_t) override {
    device_address at = 0;
    const call_result answer = take(&at, bytes);
    if (!answer) return to_error(answer, "allocating " + std::to_string(bytes) + " bytes");
    return at;
  }
  result<void> use(device_address, std::uint16_t) override { return {}; }
  result<void> free(device_address at, std::uint64_t, std::uint16_t,
                    std::span<const std::uint16_t>) override {
    const call_result answer = gpu_->memory_free(at);
    if (!answer) return to_error(answer, "freeing a block");
    return {};
  }
  result<void> finish() override { return {}; }

 protected:
  virtual call_result take(device_address* out, std::uint64_t bytes) {
    return gpu_->memory_allocate(out, bytes);
  }
  std::shared_ptr<driver> gpu_;
};

class plain_managed final : public plain {
  call_result take(device_address* out, std::uint64_t bytes) override {
    return gpu_->managed_allocate(out, bytes);
  }
};

}  // namespace

std::unique_ptr<strategy> make_plain() {
  return std::make_unique<plain>();
}
std::unique_ptr<strategy> make_managed() {
  return std::make_unique<plain_managed>();
}

}  // namespace millpond::replay
