#include "trace/synthetic/workload.hpp"

#include <fmt/format.h>

#include <array>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "base/bits.hpp"
#include "base/random.hpp"
#include "trace/event_views.hpp"
#include "trace/synthetic/shapes.hpp"

namespace millpond::trace {
namespace {

struct memory {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t stream = 0;
  kind of = kind::device;
};

// Host times of the calls: what the driver's own take on an H200 (empty kernel launch 3.7 us; the
// others 0.3 to 1 us), so that a trace's pace is a program's.
constexpr std::uint64_t launch_ns = 3700;
constexpr std::uint64_t workload_call_ns = 500;

// Writes events one after another, as a recorder in the program would.
class trace_builder {
 public:
  trace_builder(std::string name, std::uint64_t seed) {
    made_.info.from = format::workload;
    made_.info.status = read_status::complete;
    made_.info.meta.program = name;
    made_.info.meta.recorded_by = fmt::format("millpond workload {}, seed {}", name, seed);
    made_.info.name = std::move(name);
  }

  memory allocate(std::uint64_t bytes, std::uint64_t stream, kind of) {
    const memory made{next_address_, bytes, stream, of};
    next_address_ += align_up(bytes, 512) + 512;
    add({.stream = stream,
         .address = made.address,
         .bytes = bytes,
         .what = action::allocate,
         .of = of});
    return made;
  }
  memory allocate(std::uint64_t bytes, std::uint64_t stream = 0) {
    return allocate(bytes, stream, kind::device);
  }
  void free(const memory& dead, std::uint64_t stream) {
    add({.stream = stream,
         .address = dead.address,
         .bytes = dead.bytes,
         .what = action::free,
         .of = dead.of});
  }
  void free(const memory& dead) { free(dead, dead.stream); }
  void copy(const memory& to, const memory& from, std::uint64_t bytes, std::uint64_t stream) {
    const bool up = to.of == kind::device;
    event made{.stream = stream, .bytes = bytes, .what = action::copy, .of = up ? from.of : to.of};
    set_operands(made, copy_operands{.to = to.address,
                                     .from = from.address,
                                     .direction = up ? copy_direction::host_to_device
                                                     : copy_direction::device_to_host});
    add(made);
  }
  void kernel(std::string_view name, std::uint64_t stream, std::initializer_list<memory> blocks) {
    std::uint64_t bytes = 0;
    for (const memory& each : blocks) bytes += each.bytes;
    time_ns_ += launch_ns;
    event made{.stream = stream, .bytes = bytes, .what = action::kernel};
    set_operands(made, kernel_operands{made_.info.strings.intern(name), blocks.size()});
    add(made);
    for (const memory& each : blocks) {
      add({.stream = stream,
           .address = each.address,
           .bytes = each.bytes,
           .what = action::use,
           .of = each.of},
          0);
    }
  }
  void synchronize(std::uint64_t stream) {
    add({.stream = stream, .what = action::stream_synchronize});
  }
  void mark(std::string_view text, std::uint64_t amount) {
    event made{.what = action::mark};
    set_operands(made, mark_operands{made_.info.strings.intern(text), amount});
    add(made);
  }
  void wait_ns(std::uint64_t ns) { time_ns_ += ns; }

  trace_data finish() { return std::move(made_); }

 private:
  void add(event next, std::uint64_t takes_ns = workload_call_ns) {
    next.sequence = made_.events.size();
    next.time_ns = time_ns_;
    time_ns_ += takes_ns;
    made_.events.push_back(next);
  }

  trace_data made_;
  std::uint64_t next_address_ = 0x7000'0000'0000;
  std::uint64_t time_ns_ = 0;
};

kind host_kind(staging host) {
  return host == staging::pinned ? kind::pinned : kind::pageable;
}

error bad(std::string_view workload, std::string_view why) {
  return {error_code::invalid_argument, fmt::format("workload {}: {}", workload, why)};
}

// Each bounded so that every product below stays under 2^63.
constexpr std::uint64_t most_events = std::uint64_t{1} << 32;
constexpr std::uint64_t most_count = std::uint64_t{1} << 16;
constexpr std::uint64_t most_bytes = std::uint64_t{1} << 40;
bool within(std::uint64_t value, std::uint64_t most) {
  return value >= 1 && value <= most;
}

}  // namespace

result<trace_data> make_inference(const inference_options& options) {
  const auto& o = options;
  if (!within(o.requests, most_events) || !within(o.layers, most_count) ||
      !within(o.streams, most_count) || !within(o.item_bytes, most_bytes) ||
      !within(o.weights_bytes, most_bytes) || !within(o.largest_batch, most_count)) {
    return bad("inference",
               "requests (to 2^32), layers, streams, batch (to 65536), item and weights "
               "bytes (to 1 TiB) must be at least 1 and no more than that");
  }
  if (o.smallest_batch == 0 || o.smallest_batch > o.largest_batch) {
    return bad("inference", "the smallest batch must be from 1 to the largest batch");
  }
  random numbers(o.seed);
  trace_builder to("inference", o.seed);
  std::vector<memory> weights;
  for (std::uint64_t layer = 0; layer < o.layers; ++layer)
    weights.push_back(to.allocate(o.weights_bytes));
  std::vector<memory> in, out;
  for (std::uint64_t stream = 1; stream <= o.streams; ++stream) {
    in.push_back(to.allocate(o.largest_batch * o.item_bytes, 0, host_kind(o.host)));
    out.push_back(to.allocate(o.largest_batch * o.item_bytes, 0, host_kind(o.host)));
  }
  std::vector<memory> blocks;
  for (std::uint64_t request = 0; request < o.requests; ++request) {
    const std::uint64_t slot = request % o.streams;
    const std::uint64_t stream = slot + 1;
    const std::uint64_t batch = numbers.between(o.smallest_batch, o.largest_batch);
    const std::uint64_t bytes = batch * o.item_bytes;
    to.mark("request", batch);
    blocks.clear();
    blocks.push_back(to.allocate(bytes, stream));
    to.copy(blocks.back(), in[slot], bytes, stream);
    for (std::uint64_t layer = 0; layer < o.layers; ++layer) {
      blocks.push_back(to.allocate(bytes, stream));
      to.kernel("layer", stream, {weights[layer], blocks[layer], blocks[layer + 1]});
    }
    to.copy(out[slot], blocks.back(), bytes, stream);
    to.synchronize(stream);
    for (const memory& each : blocks) to.free(each);
    if (o.gap_us > 0) to.wait_ns(numbers.below(2 * o.gap_us) * 1000);
  }
  for (const memory& each : out) to.free(each);
  for (const memory& each : in) to.free(each);
  for (const memory& each : weights) to.free(each);
  return to.finish();
}

result<trace_data> make_churn(const churn_options& options) {
  const auto& o = options;
  if (!within(o.operations, most_events) || !within(o.streams, most_count)) {
    return bad("churn", "operations must be from 1 to 2^32, streams from 1 to 65536");
  }
  if (o.smallest_bytes == 0 || o.smallest_bytes > o.largest_bytes ||
      o.largest_bytes > o.live_bytes || o.live_bytes > most_bytes) {
    return bad("churn", "sizes must be 1 <= smallest <= largest <= live bytes <= 1 TiB");
  }
  random numbers(o.seed);
  trace_builder to("churn", o.seed);
  std::vector<memory> live;
  std::uint64_t live_bytes = 0;
  const auto free_any = [&] {
    const std::uint64_t at = numbers.below(live.size());
    live_bytes -= live[at].bytes;
    to.free(live[at]);
    live[at] = live.back();
    live.pop_back();
  };
  std::uint64_t wanted = numbers.log_uniform(o.smallest_bytes, o.largest_bytes);
  for (std::uint64_t done = 0; done < o.operations; ++done) {
    // An allocation that would pass the limit frees instead, and is tried again.
    const bool fits = live_bytes + wanted <= o.live_bytes;
    if (!live.empty() && (!fits || numbers.chance(0.5))) {
      free_any();
      continue;
    }
    const std::uint64_t stream = o.streams == 1 ? 0 : 1 + numbers.below(o.streams);
    live.push_back(to.allocate(wanted, stream));
    live_bytes += wanted;
    wanted = numbers.log_uniform(o.smallest_bytes, o.largest_bytes);
  }
  while (!live.empty()) free_any();
  return to.finish();
}

namespace {

// One layer's tensors of a step: made in the forward pass, needed again in the backward pass.
struct saved_layer {
  memory input, normed, qkv, attention, projected, hidden, activated;
};

class training_run {
 public:
  explicit training_run(const training_options& options)
      : o_(options), numbers_(options.seed), to_("training", options.seed) {}

  trace_data run() {
    set_up();
    for (std::uint64_t step = 0; step < o_.steps; ++step) {
      tokens_ = o_.batch * length();
      to_.mark("step", tokens_ / o_.batch);
      to_.copy(ids_, host_ids_, tokens_ * 8, 0);
      forward();
      backward();
      optimise();
      to_.copy(host_loss_, loss_, 4, 0);
      to_.synchronize(0);
      to_.free(loss_);
      to_.wait_ns(numbers_.below(400) * 1000);
    }
    tear_down();
    return to_.finish();
  }

 private:
  static constexpr std::uint64_t half = 2;   // bytes of an activation, bfloat16
  static constexpr std::uint64_t whole = 4;  // of a weight, a gradient and a state, float

  std::uint64_t length() {
    // Batches are padded to a multiple of 8 tokens, for the tensor cores.
    return align_up(numbers_.between(o_.shortest, o_.longest), 8);
  }
  memory activation(std::uint64_t width) { return to_.allocate(tokens_ * width * half); }

  void set_up() {
    const std::uint64_t w = o_.width;
    parameter_bytes_.push_back(o_.vocabulary * w * whole);
    for (std::uint64_t layer = 0; layer < o_.layers; ++layer) {
      for (const std::uint64_t elements : {w * 3 * w, w * w, w * 4 * w, 4 * w * w, 2 * w}) {
        parameter_bytes_.push_back(elements * whole);
      }
    }
    for (const std::uint64_t bytes : parameter_bytes_) parameters_.push_back(to_.allocate(bytes));
    const kind host = host_kind(o_.host);
    host_ids_ = to_.allocate(o_.batch * align_up(o_.longest, 8) * 8, 0, host);
    host_loss_ = to_.allocate(4, 0, host);
    ids_ = to_.allocate(o_.batch * align_up(o_.longest, 8) * 8);
  }

  [[nodiscard]] const memory& weight(std::uint64_t layer, std::uint64_t which) const {
    return parameters_[1 + layer * 5 + which];
  }

  void forward() {
    const std::uint64_t w = o_.width;
    memory x = activation(w);
    to_.kernel("embed", 0, {ids_, parameters_[0], x});
    for (std::uint64_t layer = 0; layer < o_.layers; ++layer) {
      saved_layer s;
      s.input = x;
      s.normed = activation(w);
      to_.kernel("norm", 0, {x, weight(layer, 4), s.normed});
      s.qkv = activation(3 * w);
      to_.kernel("gemm", 0, {s.normed, weight(layer, 0), s.qkv});
      const memory scores = to_.allocate(tokens_ * (tokens_ / o_.batch) * o_.heads * half);
      s.attention = activation(w);
      to_.kernel("attention", 0, {s.qkv, scores, s.attention});
      to_.free(scores);
      s.projected = activation(w);
      to_.kernel("gemm", 0, {s.attention, weight(layer, 1), s.projected});
      s.hidden = activation(4 * w);
      to_.kernel("gemm", 0, {s.projected, weight(layer, 2), s.hidden});
      s.activated = activation(4 * w);
      to_.kernel("gelu", 0, {s.hidden, s.activated});
      x = activation(w);
      to_.kernel("gemm", 0, {s.activated, weight(layer, 3), x});
      saved_.push_back(s);
    }
    const memory logits = to_.allocate(tokens_ * o_.vocabulary * half);
    to_.kernel("gemm", 0, {x, parameters_[0], logits});
    loss_ = to_.allocate(4);
    to_.kernel("loss", 0, {logits, loss_});
    gradient_ = activation(w);
    gradients_.assign(parameters_.size(), {});
    gradients_[0] = to_.allocate(parameter_bytes_[0]);
    to_.kernel("gemm", 0, {logits, x, parameters_[0], gradient_, gradients_[0]});
    to_.free(logits);
    to_.free(x);
  }

  // A gemm's gradients: of its input, returned, and of its weight, kept for the optimiser.
  memory through_gemm(const memory& gradient, const memory& input, std::uint64_t width,
                      std::size_t which) {
    const memory made = activation(width);
    gradients_[which] = to_.allocate(parameter_bytes_[which]);
    to_.kernel("gemm_backward", 0, {gradient, input, parameters_[which], made, gradients_[which]});
    to_.free(gradient);
    to_.free(input);
    return made;
  }

  void backward() {
    const std::uint64_t w = o_.width;
    for (std::uint64_t layer = o_.layers; layer-- > 0;) {
      const saved_layer s = saved_.back();
      saved_.pop_back();
      const std::size_t first = 1 + static_cast<std::size_t>(layer) * 5;
      memory g = through_gemm(gradient_, s.activated, 4 * w, first + 3);
      to_.kernel("gelu_backward", 0, {g, s.hidden});
      to_.free(s.hidden);
      g = through_gemm(g, s.projected, w, first + 2);
      g = through_gemm(g, s.attention, w, first + 1);
      const memory scores = to_.allocate(tokens_ * (tokens_ / o_.batch) * o_.heads * half);
      const memory g_qkv = activation(3 * w);
      to_.kernel("attention_backward", 0, {g, s.qkv, scores, g_qkv});
      to_.free(scores);
      to_.free(g);
      to_.free(s.qkv);
      g = through_gemm(g_qkv, s.normed, w, first + 0);
      gradients_[first + 4] = to_.allocate(parameter_bytes_[first + 4]);
      to_.kernel("norm_backward", 0, {g, s.input, gradients_[first + 4]});
      to_.free(s.input);
      gradient_ = g;
    }
    to_.kernel("embed_backward", 0, {gradient_, ids_, gradients_[0]});
    to_.free(gradient_);
  }

  void optimise() {
    if (states_.empty()) {  // AdamW makes its two moments at the first step
      for (const std::uint64_t bytes : parameter_bytes_) {
        states_.push_back(to_.allocate(bytes));
        states_.push_back(to_.allocate(bytes));
      }
    }
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const memory update = to_.allocate(parameter_bytes_[i]);
      to_.kernel("adamw", 0,
                 {parameters_[i], gradients_[i], states_[2 * i], states_[2 * i + 1], update});
      to_.free(update);
    }
    for (const memory& each : gradients_) to_.free(each);
  }

  void tear_down() {
    for (const memory& each : states_) to_.free(each);
    for (const memory& each : parameters_) to_.free(each);
    for (const memory& each : {ids_, host_ids_, host_loss_}) to_.free(each);
  }

  training_options o_;
  random numbers_;
  trace_builder to_;
  std::uint64_t tokens_ = 0;
  std::vector<std::uint64_t> parameter_bytes_;
  std::vector<memory> parameters_, gradients_, states_;
  std::vector<saved_layer> saved_;
  memory ids_, host_ids_, host_loss_, loss_, gradient_;
};

constexpr std::array<std::string_view, 3> all_workload_names{"inference", "churn", "training"};

}  // namespace

result<trace_data> make_training(const training_options& options) {
  const auto& o = options;
  if (!within(o.steps, most_events) || !within(o.layers, most_count) ||
      !within(o.width, most_count) || !within(o.heads, 1024) ||
      !within(o.vocabulary, std::uint64_t{1} << 20) || !within(o.batch, 4096) ||
      !within(o.longest, most_count)) {
    return bad("training",
               "steps (to 2^32), layers, width, longest (to 65536), heads (to 1024), vocabulary "
               "(to 2^20), batch (to 4096) must be at least 1 and no more than that");
  }
  if (o.shortest == 0 || o.shortest > o.longest) {
    return bad("training", "the shortest sequence must be from 1 to the longest");
  }
  return training_run(options).run();
}

std::span<const std::string_view> workload_names() noexcept {
  return all_workload_names;
}

result<trace_data> make_workload(std::string_view name, const workload_options& options) {
  if (name == "inference") {
    inference_options o{.seed = options.seed, .streams = options.streams, .host = options.host};
    if (options.length != 0) o.requests = options.length;
    return make_inference(o);
  }
  if (name == "churn") {
    churn_options o{.seed = options.seed, .streams = options.streams};
    if (options.length != 0) o.operations = options.length;
    return make_churn(o);
  }
  if (name == "training") {
    if (options.streams != 1) return bad("training", "runs on one stream");
    training_options o{.seed = options.seed, .host = options.host};
    if (options.length != 0) o.steps = options.length;
    return make_training(o);
  }
  if (is_shape(name)) {
    if (options.streams != 1) return bad(name, "has its own streams");
    return make_shape(name, options.seed, options.length);
  }
  return error{
      error_code::invalid_argument,
      fmt::format(
          "no workload is named '{}': there are inference, churn and training, and the shapes {}",
          name, fmt::join(shape_names(), ", "))};
}

}  // namespace millpond::trace
