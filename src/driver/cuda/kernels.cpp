#include "driver/cuda/kernels.hpp"

#include <algorithm>

#include "base/bits.hpp"

namespace millpond::cuda {
namespace {

constexpr const char* ptx_text =
#include "driver/cuda/identity_ptx.inc"
    ;

// A thread block's least work: four 16-byte accesses a thread.
constexpr std::uint64_t least_bytes_a_cta = std::uint64_t{kernel_threads} * 4 * 16;
// Eight blocks of 256 threads fill a multiprocessor; twice that evens out the ends.
constexpr std::uint64_t ctas_a_multiprocessor = 16;

}  // namespace

unsigned share_out(std::span<const identity_block> blocks, int multiprocessors,
                   launch_table& table) noexcept {
  std::uint64_t total = 0;
  for (const identity_block& block : blocks) total += block.bytes;
  const std::uint64_t most =
      ctas_a_multiprocessor * static_cast<std::uint64_t>(std::max(multiprocessors, 1));
  const std::uint64_t share = std::max(least_bytes_a_cta, divide_up(total, most));
  std::uint32_t ctas = 0;
  std::uint32_t count = 0;
  for (const identity_block& block : blocks) {
    if (block.bytes == 0) continue;
    const auto own = static_cast<std::uint32_t>(divide_up(block.bytes, share));
    table.pieces[count++] = {block.address, block.bytes, block.identity, ctas, own};
    ctas += own;
  }
  table.count = count;
  table.unused = 0;
  return ctas;
}

kernel_set load_kernels(const function_table& functions) noexcept {
  kernel_set kernels;
  const auto failed = [&](status_value status, const char* call) {
    kernels.failure = {static_cast<driver_status>(status), call};
    if (kernels.module != nullptr) functions.module_unload.function(kernels.module);
    kernels.module = nullptr;
    kernels.write = kernels.check = kernels.spin = nullptr;
    return kernels;
  };
  if (const status_value status = functions.module_load_data.function(&kernels.module, ptx_text);
      status != 0) {
    kernels.module = nullptr;
    return failed(status, "cuModuleLoadData (identity kernels)");
  }
  struct wanted {
    function_handle* into;
    const char* name;
  };
  for (const wanted& each : {wanted{&kernels.write, "millpond_identity_write"},
                             wanted{&kernels.check, "millpond_identity_check"},
                             wanted{&kernels.spin, "millpond_spin"}}) {
    if (const status_value status =
            functions.module_get_function.function(each.into, kernels.module, each.name);
        status != 0) {
      return failed(status, "cuModuleGetFunction (identity kernels)");
    }
    if (functions.function_load.function == nullptr) continue;
    if (const status_value status = functions.function_load.function(*each.into); status != 0) {
      return failed(status, "cuFuncLoad (identity kernels)");
    }
  }
  kernels.failure = {};
  return kernels;
}

const char* identity_ptx() noexcept {
  return ptx_text;
}

}  // namespace millpond::cuda
