// Shapes: allocation patterns of model families, made from a seed: sizes, order and lifetimes of
// the blocks as programs of that family have them, without kernels. For judging placement on what
// it was not tuned on.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "millpond/base/result.hpp"
#include "trace/source.hpp"

namespace millpond::trace {

// llm         generation, the KV cache of each layer growing by copies, batches and prompts of any
// size recompute   training with checkpointed layers: each is computed again on the way back
// detection   feature pyramids, convolution workspaces, and as many proposals as an image happens
// to have diffusion   a U-net with skip connections at several resolutions experts     a mixture of
// experts whose loads differ from token to token streams     convolution networks on four streams
// at once, results read on the next stream
[[nodiscard]] std::span<const std::string_view> shape_names() noexcept;
[[nodiscard]] bool is_shape(std::string_view name) noexcept;
// length: requests or steps; 0: the shape's own. invalid_argument for a name that is none.
[[nodiscard]] result<trace_data> make_shape(std::string_view name, std::uint64_t seed,
                                            std::uint64_t length = 0);

}  // namespace millpond::trace
