// The network that the server runs: layers of matrix products, by cuBLAS on a card, by modelled
// kernels elsewhere.
#pragma once
#include <millpond/driver/driver.hpp>
#include <millpond/sim/simulated_gpu.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace inference {

// An item is `rows` rows of `width` numbers of 4 bytes, in every layer: 256 KiB.
struct network_shape {
  unsigned layers = 8;
  std::uint64_t rows = 64;
  std::uint64_t width = 1024;
  [[nodiscard]] std::uint64_t item_bytes() const noexcept { return rows * width * 4; }
  [[nodiscard]] std::uint64_t weights_bytes() const noexcept {
    return width * width * 4;
  }  // of one layer
};

class network {
 public:
  virtual ~network() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  // out = in times weights, for so many items, on stream number s. False where the launch failed.
  virtual bool layer(std::size_t s, millpond::device_address weights, millpond::device_address in,
                     millpond::device_address out, std::uint64_t items) = 0;
};

// cuBLAS from its shared library, one handle a stream. Null with a reason where it is not to be
// had.
[[nodiscard]] std::unique_ptr<network> make_cublas_network(
    const network_shape& shape, const std::string& library,
    const std::vector<millpond::stream_handle>& streams, std::string& why);
// Kernels of the duration that the products would take, that touch what the products would touch:
// on the simulated GPU as described kernels; on a card as kernels that spin.
[[nodiscard]] std::unique_ptr<network> make_modelled_network(
    const network_shape& shape, millpond::driver& gpu,
    const std::vector<millpond::stream_handle>& streams);

}  // namespace inference
