// The driver's calls that carry many copies or prefetches: an event for each, of which the first
// alone has the call's time.
#if __has_include(<cupti.h>) && __has_include(<cuda.h>)

#include <array>

#include "record/translate.hpp"
#include "record/translate_call.hpp"

namespace millpond::record {

#if CUDA_VERSION >= 13000
namespace {

// Which of the attributes holds for the operation: each begins at an index, and holds until the
// next one's.
template <class Attribute>
const Attribute* attribute_at(const Attribute* attributes, const std::size_t* begins,
                              std::size_t count, std::size_t operation) {
  const Attribute* made = nullptr;
  for (std::size_t n = 0;
       n < count && attributes != nullptr && begins != nullptr && begins[n] <= operation; ++n)
    made = &attributes[n];
  return made;
}

// A source that is read before the call returns is no promise that the call returns early.
bool is_asynchronous(CUmemcpySrcAccessOrder order) {
  return order != CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
}

CUdeviceptr address_of(const CUmemcpy3DOperand& operand) {
  return operand.type == CU_MEMCPY_OPERAND_TYPE_POINTER ? operand.op.ptr.ptr : 0;
}

}  // namespace

bool translator::batch(CUpti_CallbackId id, call& of) {
  const auto copies = [&](const auto& with) {
    for (std::size_t n = 0; n < with.count; ++n) {
      const auto* how = attribute_at(with.attrs, with.attrsIdxs, with.numAttrs, n);
      copied(of, with.dsts[n], with.srcs[n], with.sizes[n], trace::copy_direction::unknown,
             with.hStream, how == nullptr || is_asynchronous(how->srcAccessOrder));
      of.noted = true;
    }
  };
  const auto cuboids = [&](const auto& with) {
    for (std::size_t n = 0; n < with.numOps; ++n) {
      const CUDA_MEMCPY3D_BATCH_OP& each = with.opList[n];
      copied(of, address_of(each.dst), address_of(each.src),
             each.extent.width * each.extent.height * each.extent.depth,
             trace::copy_direction::unknown, with.hStream, is_asynchronous(each.srcAccessOrder));
      of.noted = true;
    }
  };
  const auto prefetches = [&](const auto& with) {
    for (std::size_t n = 0; n < with.count; ++n) {
      const CUmemLocation* where =
          attribute_at(with.prefetchLocs, with.prefetchLocIdxs, with.numPrefetchLocs, n);
      prefetched(of, with.dptrs[n], with.sizes[n],
                 where == nullptr ? trace::page_side::device : side_of(*where), with.hStream);
      of.noted = true;
    }
  };
  switch (id) {
    case MILLPOND_ID(cuMemcpyBatchAsync_ptsz): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuMemcpyBatchAsync): copies(of.of<cuMemcpyBatchAsync_params>()); return true;
    case MILLPOND_ID(cuMemcpyBatchAsync_v2_ptsz): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuMemcpyBatchAsync_v2):
      copies(of.of<cuMemcpyBatchAsync_v2_params>());
      return true;
    case MILLPOND_ID(cuMemcpy3DBatchAsync_ptsz): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuMemcpy3DBatchAsync):
      cuboids(of.of<cuMemcpy3DBatchAsync_params>());
      return true;
    case MILLPOND_ID(cuMemcpy3DBatchAsync_v2_ptsz): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuMemcpy3DBatchAsync_v2):
      cuboids(of.of<cuMemcpy3DBatchAsync_v2_params>());
      return true;
    case MILLPOND_ID(cuMemPrefetchBatchAsync_ptsz): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuMemPrefetchBatchAsync):
      prefetches(of.of<cuMemPrefetchBatchAsync_params>());
      return true;
    case MILLPOND_ID(cuMemDiscardAndPrefetchBatchAsync_ptsz): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuMemDiscardAndPrefetchBatchAsync):
      prefetches(of.of<cuMemDiscardAndPrefetchBatchAsync_params>());
      return true;
    default: return false;
  }
}

std::span<const CUpti_CallbackId> translator::batch_ids() noexcept {
#define MILLPOND_BOTH(name) MILLPOND_ID(name), MILLPOND_ID(name##_ptsz)
  static constexpr auto ids = std::to_array<CUpti_CallbackId>(
      {MILLPOND_BOTH(cuMemcpyBatchAsync), MILLPOND_BOTH(cuMemcpyBatchAsync_v2),
       MILLPOND_BOTH(cuMemcpy3DBatchAsync), MILLPOND_BOTH(cuMemcpy3DBatchAsync_v2),
       MILLPOND_BOTH(cuMemPrefetchBatchAsync), MILLPOND_BOTH(cuMemDiscardAndPrefetchBatchAsync)});
#undef MILLPOND_BOTH
  return ids;
}
#else
// Headers before CUDA 13 name these calls otherwise.
bool translator::batch(CUpti_CallbackId, call&) {
  return false;
}
std::span<const CUpti_CallbackId> translator::batch_ids() noexcept {
  return {};
}
#endif

}  // namespace millpond::record
#endif
