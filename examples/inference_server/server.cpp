#include "server.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

namespace inference {
namespace {

namespace mp = millpond;

constexpr unsigned char answer_byte = 0x5a;
constexpr std::uint64_t answer_at = 64;  // in the control data: beyond what the CPU writes
constexpr std::uint64_t answer_bytes = 64;

mp::device_address address(const void* at) {
  return reinterpret_cast<mp::device_address>(at);
}

}  // namespace

server::server(surroundings where, strategy& memory, network& layers, network_shape shape,
               server_options options)
    : where_(std::move(where)),
      gpu_(*where_.gpu),
      simulated_(dynamic_cast<mp::simulated_gpu*>(where_.gpu.get())),
      memory_(memory),
      network_(layers),
      shape_(shape),
      options_(options),
      batches_(where_.streams.size()) {}

server::~server() {
  for (const mp::device_address each : scratch_) static_cast<void>(gpu_.memory_free(each));
  for (batch& each : batches_) {
    if (each.done != nullptr) static_cast<void>(gpu_.event_destroy(each.done));
  }
}

bool server::fail(const std::string& why) {
  if (failure_.empty()) failure_ = why;
  return false;
}

std::string server::prepare() {
  for (unsigned i = 0; i < shape_.layers; ++i) {
    weights_.push_back(memory_.weights(shape_.weights_bytes()));
    if (weights_.back() == 0) return "no memory for the weights";
    // Each layer halves what comes in, on the whole, so that numbers stay numbers.
    if (!gpu_.set_async(weights_.back(), 0, shape_.weights_bytes(), where_.streams[0]).ok())
      return "the weights cannot be set";
  }
  for (unsigned i = 0; i < options_.clients; ++i) {
    const std::uint64_t bytes = options_.largest_request * shape_.item_bytes();
    buffers_.push_back(static_cast<unsigned char*>(memory_.client_buffer(bytes)));
    if (buffers_.back() == nullptr) return "no memory for the clients' buffers";
    std::memset(buffers_.back(), 0, bytes);
  }
  for (std::size_t s = 0; s < batches_.size(); ++s) {
    controls_.push_back(memory_.control(s));
    mp::device_address scratch = 0;
    if (controls_.back().host == nullptr || controls_.back().device == 0 ||
        !gpu_.memory_allocate(&scratch, control_bytes).ok() ||
        !gpu_.event_create(&batches_[s].done).ok()) {
      return "no memory for the control data";
    }
    std::memset(controls_.back().host, 0, control_bytes);
    scratch_.push_back(scratch);
  }
  // Every batch size once on every stream: libraries choose and load their kernels on first use.
  for (std::uint64_t items = 1; items <= options_.largest_batch; ++items) {
    for (std::size_t s = 0; s < batches_.size(); ++s) {
      batch& b = batches_[s];
      b.items = items;
      b.requests.clear();
      if (!start(s, b)) return failure_;
      if (!gpu_.stream_synchronize(where_.streams[s]).ok() || !finish(s, b, [](const request&) {}))
        return "warming up failed: " + failure_;
    }
  }
  counts_ = {};
  return {};
}

void server::end() {
  static_cast<void>(gpu_.context_synchronize());
  for (std::size_t s = 0; s < batches_.size(); ++s) {
    for (const mp::device_address each : batches_[s].activations)
      memory_.give(s, each, batches_[s].items * shape_.item_bytes());
    batches_[s].activations.clear();
    batches_[s].active = false;
  }
}

void server::submit(const request& one) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(one);
}

bool server::busy() const {
  return std::ranges::any_of(batches_, &batch::active);
}

std::uint64_t server::due_ns() const {
  const std::lock_guard lock(mutex_);
  return queue_.empty() ? std::numeric_limits<std::uint64_t>::max()
                        : queue_.front().arrived_ns + options_.deadline_ns;
}

bool server::take_batch(std::uint64_t now_ns, batch& into) {
  const std::lock_guard lock(mutex_);
  if (queue_.empty()) return false;
  std::uint64_t waiting = 0;
  for (const request& each : queue_) waiting += each.items;
  if (waiting < options_.largest_batch && now_ns < queue_.front().arrived_ns + options_.deadline_ns)
    return false;
  into.items = 0;
  into.requests.clear();
  while (!queue_.empty() && into.items + queue_.front().items <= options_.largest_batch) {
    into.items += queue_.front().items;
    into.requests.push_back(queue_.front());
    queue_.pop_front();
  }
  return true;
}

bool server::step(std::uint64_t now_ns, const std::function<void(const request&)>& answered) {
  bool happened = false;
  for (std::size_t s = 0; s < batches_.size() && failure_.empty(); ++s) {
    batch& b = batches_[s];
    if (b.active) {
      const auto answer = gpu_.event_query(b.done);
      if (answer.status == mp::driver_status::not_ready) continue;
      if (!answer.ok()) return fail(to_string(answer));
      happened = finish(s, b, answered) || happened;
    }
    if (!b.active && take_batch(now_ns, b)) happened = start(s, b) || happened;
  }
  return happened;
}

// On the simulated GPU an allocator's own time passes as its profile says.
void server::charge_own() {
  if (simulated_ == nullptr) return;
  own_carry_ += memory_.own_ns() / 2;
  if (own_carry_ < 1) return;
  simulated_->advance(static_cast<std::uint64_t>(own_carry_));
  own_carry_ -= static_cast<double>(static_cast<std::uint64_t>(own_carry_));
}

mp::device_address server::take(std::size_t s, std::uint64_t bytes) {
  const mp::device_address at = memory_.take(s, bytes);
  charge_own();
  live_bytes_ += bytes;
  if (memory_.managed_buffers())
    counts_.peak_managed_bytes =
        std::max(counts_.peak_managed_bytes, live_bytes_ + shape_.layers * shape_.weights_bytes());
  return at;
}

// The CPU is about to touch the control data: on the simulated GPU its pages come back.
void server::touch_control(std::size_t s, mp::access_kind kind) {
  if (simulated_ != nullptr && controls_[s].managed)
    simulated_->touch_managed(controls_[s].device, control_bytes, kind);
}

bool server::start(std::size_t s, batch& b) {
  const mp::stream_handle stream = where_.streams[s];
  const std::uint64_t bytes = b.items * shape_.item_bytes();
  control_data& c = controls_[s];
  b.activations.clear();
  b.active = true;
  const auto need = [this](mp::call_result answer) {
    return answer.ok() || fail(to_string(answer));
  };
  const auto activation = [&] {
    const mp::device_address at = take(s, bytes);
    if (at != 0) b.activations.push_back(at);
    return at != 0 || fail("no memory for an activation");
  };
  touch_control(s, mp::access_kind::write);
  std::memcpy(c.host, &b.items, sizeof b.items);
  c.host[answer_at] = 0;
  if (c.copied && !need(gpu_.copy_async(c.device, address(c.host), answer_at, stream)))
    return false;
  if (!need(gpu_.copy_async(scratch_[s], c.device, answer_at, stream)))
    return false;  // the GPU reads it
  if (!activation()) return false;
  std::uint64_t offset = 0;
  for (const request& each : b.requests) {
    const std::uint64_t part = each.items * shape_.item_bytes();
    if (!need(gpu_.copy_async(b.activations[0] + offset, address(buffers_[each.client]), part,
                              stream)))
      return false;
    offset += part;
  }
  // A warm-up batch has no requests: its input is zeros.
  if (b.requests.empty() && !need(gpu_.set_async(b.activations[0], 0, bytes, stream))) return false;
  for (unsigned layer = 0; layer < shape_.layers; ++layer) {
    if (!activation()) return false;
    const std::size_t last = b.activations.size() - 1;
    if (!network_.layer(s, weights_[layer], b.activations[last - 1], b.activations[last], b.items))
      return fail("a layer cannot be launched");
  }
  offset = 0;
  for (const request& each : b.requests) {
    const std::uint64_t part = each.items * shape_.item_bytes();
    if (!need(gpu_.copy_async(address(buffers_[each.client]), b.activations.back() + offset, part,
                              stream)))
      return false;
    offset += part;
  }
  if (!need(gpu_.set_async(c.device + answer_at, answer_byte, answer_bytes, stream)))
    return false;  // the GPU answers
  if (c.copied && !need(gpu_.copy_async(address(c.host) + answer_at, c.device + answer_at,
                                        answer_bytes, stream)))
    return false;
  return need(gpu_.event_record(b.done, stream));
}

bool server::finish(std::size_t s, batch& b, const std::function<void(const request&)>& answered) {
  // It is over; most servers learn it by a synchronise, which is when the driver's pool gives
  // memory back.
  if (const auto waited = gpu_.event_synchronize(b.done); !waited.ok())
    return fail(to_string(waited));
  touch_control(s, mp::access_kind::read);
  // The simulated GPU keeps contents of device memory as tags, so that its answer is there only
  // where memory is mapped.
  if (simulated_ == nullptr && controls_[s].host[answer_at] != answer_byte)
    return fail("a batch ended without its answer");
  for (const mp::device_address each : b.activations) {
    memory_.give(s, each, b.items * shape_.item_bytes());
    charge_own();
    live_bytes_ -= b.items * shape_.item_bytes();
  }
  b.activations.clear();
  b.active = false;
  ++counts_.batches;
  counts_.items += b.items;
  for (const request& each : b.requests) answered(each);
  return true;
}

}  // namespace inference
