#include "network.hpp"

#include <dlfcn.h>

namespace inference {
namespace {

namespace mp = millpond;

// The few functions of cuBLAS that are used, as its header declares them.
struct cublas_functions {
  int (*create)(void**) = nullptr;
  int (*destroy)(void*) = nullptr;
  int (*set_stream)(void*, mp::stream_handle) = nullptr;
  int (*set_math_mode)(void*, int) = nullptr;
  int (*sgemm)(void*, int, int, int, int, int, const float*, const float*, int, const float*, int,
               const float*, float*, int) = nullptr;
};
constexpr int tf32_tensor_operations = 3;  // CUBLAS_TF32_TENSOR_OP_MATH

class cublas_network final : public network {
 public:
  cublas_network(const network_shape& shape, const cublas_functions& functions,
                 std::vector<void*> handles)
      : shape_(shape), functions_(functions), handles_(std::move(handles)) {}
  ~cublas_network() override {
    for (void* each : handles_) functions_.destroy(each);
  }
  std::string name() const override { return "cuBLAS"; }
  bool layer(std::size_t s, mp::device_address weights, mp::device_address in,
             mp::device_address out, std::uint64_t items) override {
    const float one = 1, zero = 0;
    const int width = static_cast<int>(shape_.width);
    const int rows = static_cast<int>(shape_.rows * items);
    // Row-major out = in * weights is column-major out' = weights' * in'.
    return functions_.sgemm(handles_[s], 0, 0, width, rows, width, &one,
                            reinterpret_cast<const float*>(weights), width,
                            reinterpret_cast<const float*>(in), width, &zero,
                            reinterpret_cast<float*>(out), width) == 0;
  }

 private:
  network_shape shape_;
  cublas_functions functions_;
  std::vector<void*> handles_;
};

class modelled_network final : public network {
 public:
  modelled_network(const network_shape& shape, mp::driver& gpu,
                   std::vector<mp::stream_handle> streams)
      : shape_(shape),
        gpu_(gpu),
        simulated_(dynamic_cast<mp::simulated_gpu*>(&gpu)),
        streams_(std::move(streams)) {}
  std::string name() const override {
    return simulated_ != nullptr ? "modelled kernels" : "kernels that spin";
  }
  bool layer(std::size_t s, mp::device_address weights, mp::device_address in,
             mp::device_address out, std::uint64_t items) override {
    // An assumed 200 TFLOP/s of TF32 products.
    const double operations = 2.0 * static_cast<double>(shape_.rows * items) *
                              static_cast<double>(shape_.width) * static_cast<double>(shape_.width);
    const auto nanoseconds = static_cast<std::uint64_t>(operations / 200e12 * 1e9);
    if (simulated_ == nullptr) return gpu_.spin(nanoseconds + 2000, streams_[s]).ok();
    const std::uint64_t bytes = shape_.item_bytes() * items;
    return simulated_
        ->launch({"layer",
                  nanoseconds,
                  {{weights, shape_.weights_bytes(), mp::access_kind::read},
                   {in, bytes, mp::access_kind::read},
                   {out, bytes, mp::access_kind::write}}},
                 streams_[s])
        .ok();
  }

 private:
  network_shape shape_;
  mp::driver& gpu_;
  mp::simulated_gpu* simulated_;
  std::vector<mp::stream_handle> streams_;
};

}  // namespace

std::unique_ptr<network> make_cublas_network(const network_shape& shape, const std::string& library,
                                             const std::vector<mp::stream_handle>& streams,
                                             std::string& why) {
  void* loaded = nullptr;
  const std::vector<std::string> names =
      library.empty()
          ? std::vector<std::string>{"libcublas.so.13", "libcublas.so.12", "libcublas.so"}
          : std::vector<std::string>{library};
  for (const std::string& each : names) {
    if ((loaded = ::dlopen(each.c_str(), RTLD_NOW | RTLD_LOCAL)) != nullptr) break;
    if (const char* said = ::dlerror()) why = said;
  }
  if (loaded == nullptr) return nullptr;
  cublas_functions f;
  const auto find = [&](auto& into, const char* name) {
    into = reinterpret_cast<std::remove_reference_t<decltype(into)>>(::dlsym(loaded, name));
    if (into == nullptr) why = std::string("cuBLAS has no ") + name;
    return into != nullptr;
  };
  if (!find(f.create, "cublasCreate_v2") || !find(f.destroy, "cublasDestroy_v2") ||
      !find(f.set_stream, "cublasSetStream_v2") || !find(f.set_math_mode, "cublasSetMathMode") ||
      !find(f.sgemm, "cublasSgemm_v2")) {
    return nullptr;
  }
  std::vector<void*> handles;
  for (const mp::stream_handle stream : streams) {
    void* handle = nullptr;
    if (f.create(&handle) != 0 || f.set_stream(handle, stream) != 0 ||
        f.set_math_mode(handle, tf32_tensor_operations) != 0) {
      why = "cuBLAS makes no handle";
      return nullptr;
    }
    handles.push_back(handle);
  }
  return std::make_unique<cublas_network>(shape, f, std::move(handles));
}

std::unique_ptr<network> make_modelled_network(const network_shape& shape, mp::driver& gpu,
                                               const std::vector<mp::stream_handle>& streams) {
  return std::make_unique<modelled_network>(shape, gpu, streams);
}

}  // namespace inference
