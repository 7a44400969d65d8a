// A block of the pool registered with NCCL, for collectives that use it in place. Built where
// NCCL's header is; without a card it shows what a refusal looks like.
#include <millpond/bindings/nccl.hpp>
#include <millpond/millpond.hpp>

#include <cstdio>
#include <vector>

int main() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return 4;
  const auto card = millpond::open_cuda_driver(0);
  if (!card) {
    // No communicator: NCCL refuses, nothing is thrown, and there is nothing to take back.
    millpond::nccl_registration refused(nullptr, nullptr, 0);
    millpond::nccl_registration moved(std::move(refused));
    std::printf("NCCL %d: needs a card (%s); without a communicator: %s\n", version,
                card.error().message.c_str(), ncclGetErrorString(moved.answer()));
    return !moved.registered() && moved.answer() == ncclInvalidArgument ? 0 : 1;
  }
  const auto pool = millpond::pool::create(*card).value();
  millpond::stream_handle stream = nullptr;
  const int device = 0;
  ncclComm_t communicator = nullptr;
  if (!(*card)->bind_thread().ok() || !(*card)->stream_create(&stream).ok() ||
      ncclCommInitAll(&communicator, 1, &device) != ncclSuccess) {
    return 4;
  }
  constexpr std::size_t count = 1 << 20;
  auto* const block = static_cast<float*>(pool->allocate(count * sizeof(float), stream));
  bool right = false;
  {
    const millpond::nccl_registration whole(communicator, block, count * sizeof(float));
    std::vector<float> host(count, 3.0F);
    const auto at = reinterpret_cast<millpond::device_address>(block);
    bool all = (*card)
                   ->copy_async(at, reinterpret_cast<millpond::device_address>(host.data()),
                                count * sizeof(float), stream)
                   .ok();
    all = all && ncclAllReduce(block, block, count, ncclFloat, ncclSum, communicator,
                               reinterpret_cast<cudaStream_t>(stream)) == ncclSuccess;
    host.assign(count, 0.0F);
    all = all && (*card)
                     ->copy_async(reinterpret_cast<millpond::device_address>(host.data()), at,
                                  count * sizeof(float), stream)
                     .ok();
    all = all && (*card)->stream_synchronize(stream).ok();
    right = all && host[0] == 3.0F && host[count - 1] == 3.0F;
    std::printf("NCCL %d: %s; the sum in place is %s\n", version,
                whole.registered() ? "registered" : ncclGetErrorString(whole.answer()),
                right ? "right" : "WRONG");
  }
  pool->deallocate(block, count * sizeof(float), stream);
  right = ncclCommDestroy(communicator) == ncclSuccess && right;
  return (*card)->stream_destroy(stream).ok() && right ? 0 : 1;
}
