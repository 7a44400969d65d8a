// Named synthetic workloads: events as a recorder would have written them, from a seed, the same on
// every machine. Addresses are names that are never reused; times are plausible host times, so that
// pacing and idle gaps mean something.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "millpond/base/result.hpp"
#include "millpond/base/units.hpp"
#include "trace/source.hpp"

namespace millpond::trace {

// Where data waits on the host for its copy.
enum class staging : std::uint8_t { pinned, pageable };

// A server that batches requests dynamically. Weights, and staging for the largest batch a stream,
// are allocated once. Each request: a mark `request` (other: its batch), an input and one
// activation a layer allocated on the request's stream, input copied in, a kernel a layer, output
// copied out, the stream synchronised, everything freed. The defaults are the scenario measured on
// the H200 (2026-11-30: 242 us a request on a preallocated pool with pinned copies, 2127 us with
// cudaMalloc and cudaFree and pageable ones).
struct inference_options {
  std::uint64_t seed = 1;
  std::uint64_t requests = 500;
  std::uint64_t smallest_batch = 1;
  std::uint64_t largest_batch = 32;
  std::uint64_t layers = 8;
  std::uint64_t item_bytes = 256 * KiB;   // an item of a batch takes this in each layer
  std::uint64_t weights_bytes = 4 * MiB;  // a layer
  std::uint64_t streams = 1;              // requests go round robin; numbered from 1
  std::uint64_t gap_us = 100;             // mean idle time between requests
  staging host = staging::pinned;
};

// Random sizes, log-uniform, allocated and freed in random order while at most `live_bytes` live.
// The defaults are the random benchmark of the H200 measurements. Ends with everything freed.
struct churn_options {
  std::uint64_t seed = 1;
  std::uint64_t operations = 100'000;  // allocations and frees together, before the last frees
  std::uint64_t smallest_bytes = 256;
  std::uint64_t largest_bytes = 64 * MiB;
  std::uint64_t live_bytes = 3 * GiB;
  std::uint64_t streams = 1;  // each block on a random one; 1 is the default stream alone
};

// A transformer trained with AdamW on sequences of varying length: weights and optimiser states
// live for ever, activations from the forward pass to the backward pass, gradients to the
// optimiser's step. A mark `step` opens each step and a stream synchronise ends it, as reading the
// loss does.
struct training_options {
  std::uint64_t seed = 1;
  std::uint64_t steps = 20;
  std::uint64_t layers = 8;
  std::uint64_t width = 1024;  // hidden size
  std::uint64_t heads = 16;
  std::uint64_t vocabulary = 32'000;
  std::uint64_t batch = 8;
  std::uint64_t shortest = 64;  // tokens in a sequence
  std::uint64_t longest = 512;
  staging host = staging::pinned;
};

// invalid_argument where an option is 0 that must not be, a range is upside down, or the numbers
// are so large that sizes would not fit 2^63.
[[nodiscard]] result<trace_data> make_inference(const inference_options& options = {});
[[nodiscard]] result<trace_data> make_churn(const churn_options& options = {});
[[nodiscard]] result<trace_data> make_training(const training_options& options = {});

// By name, for the command: "inference", "churn", "training", or a shape
// (trace/synthetic/shapes.hpp).
struct workload_options {
  std::uint64_t seed = 1;
  std::uint64_t length = 0;   // requests, operations or steps; 0 the workload's own default
  std::uint64_t streams = 1;  // training knows one only
  staging host = staging::pinned;
};
[[nodiscard]] std::span<const std::string_view> workload_names() noexcept;
[[nodiscard]] result<trace_data> make_workload(std::string_view name,
                                               const workload_options& options = {});

}  // namespace millpond::trace
