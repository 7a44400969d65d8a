// The server: a queue, batches of 1 to 32 items that close when they are full or their oldest
// request is due, and as many batches on the way as there are streams. One thread dispatches; any
// thread submits.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "network.hpp"
#include "strategies.hpp"

namespace inference {

struct server_options {
  unsigned clients = 16;
  std::uint64_t largest_batch = 32;   // items
  std::uint64_t largest_request = 4;  // items; client buffers are so large
  std::uint64_t deadline_ns =
      200'000;  // a batch starts when its oldest request has waited this long
};

struct request {
  unsigned client = 0;
  std::uint64_t items = 0;
  std::uint64_t arrived_ns = 0;
};

struct server_counts {
  std::uint64_t batches = 0;
  std::uint64_t items = 0;
  std::uint64_t peak_managed_bytes = 0;  // that the strategy has out, where it is all managed
};

class server {
 public:
  server(surroundings where, strategy& memory, network& layers, network_shape shape,
         server_options options);
  ~server();
  // Weights, control data and clients' buffers; runs every batch size once. Empty, or what failed.
  [[nodiscard]] std::string prepare();
  // What is on the way is finished; then everything goes back.
  void end();

  // A client's own buffer: it writes its input there, and finds the answer there.
  [[nodiscard]] unsigned char* buffer(unsigned client) const { return buffers_[client]; }
  void submit(const request& one);
  // Starts what can start and finishes what is done; answered(request) for each that is. False
  // where nothing happened.
  bool step(std::uint64_t now_ns, const std::function<void(const request&)>& answered);
  [[nodiscard]] bool busy() const;
  // When the oldest request in the queue is due; the largest number where there is none.
  [[nodiscard]] std::uint64_t due_ns() const;
  [[nodiscard]] const std::string& failure() const noexcept { return failure_; }
  [[nodiscard]] const server_counts& counts() const noexcept { return counts_; }

 private:
  struct batch {
    bool active = false;
    std::uint64_t items = 0;
    std::vector<request> requests;
    std::vector<millpond::device_address> activations;
    millpond::event_handle done = nullptr;
  };
  [[nodiscard]] bool take_batch(std::uint64_t now_ns, batch& into);
  bool start(std::size_t s, batch& b);
  bool finish(std::size_t s, batch& b, const std::function<void(const request&)>& answered);
  bool fail(const std::string& why);
  millpond::device_address take(std::size_t s, std::uint64_t bytes);
  void touch_control(std::size_t s, millpond::access_kind kind);
  void charge_own();

  surroundings where_;
  millpond::driver& gpu_;
  millpond::simulated_gpu* simulated_;
  strategy& memory_;
  network& network_;
  network_shape shape_;
  server_options options_;
  std::vector<millpond::device_address> weights_;
  std::vector<control_data> controls_;
  std::vector<millpond::device_address> scratch_;
  std::vector<unsigned char*> buffers_;
  std::vector<batch> batches_;
  mutable std::mutex mutex_;  // the queue
  std::deque<request> queue_;
  std::string failure_;
  server_counts counts_;
  std::uint64_t live_bytes_ = 0;
  double own_carry_ = 0;
};

}  // namespace inference
