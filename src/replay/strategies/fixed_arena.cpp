// One block from the driver, as large as this very workload is found to need by a pass over it,
// shared out by an arena_book. Where a stream gets bytes that another freed, it waits for that
// stream on the GPU.
#include <fmt/format.h>

#include <cmath>
#include <unordered_map>

#include "driver/sim/allocator_paths.hpp"
#include "millpond/base/units.hpp"
#include "replay/strategies/arena_book.hpp"
#include "replay/strategies/makers.hpp"

namespace millpond::replay {
namespace {

std::uint64_t needed_bytes(const workload& work) {
  arena_book book(std::uint64_t{1} << 62);
  std::vector<std::uint64_t> places(work.blocks.size(), arena_book::none);
  std::vector<arena_book::mark> unused;
  for (const op& each : work.ops) {
    if (each.what != op_kind::allocate && each.what != op_kind::free) continue;
    const std::uint64_t bytes = work.blocks[each.block].bytes;
    if (bytes == 0) continue;
    if (each.what == op_kind::allocate) {
      places[each.block] = book.allocate(bytes, unused);
    } else {
      book.free(places[each.block], bytes, {0, 0});
    }
  }
  return std::max<std::uint64_t>(book.high_water(), arena_book::alignment);
}

class fixed_arena final : public strategy {
 public:
  result<void> prepare(const strategy_setting& setting) override {
    gpu_ = setting.gpu;
    costs_ = setting.costs;
    size_ = needed_bytes(*setting.work);
    if (auto done = order_.prepare(gpu_, setting.streams); !done) return done;
    const call_result answer = gpu_->memory_allocate(&base_, size_);
    if (!answer) {
      base_ = 0;
      return to_error(answer, fmt::format("allocating an arena of {}", format_bytes(size_)));
    }
    book_ = arena_book(size_);
    serials_.assign(setting.streams.size(), 0);
    return {};
  }

  result<device_address> allocate(std::uint64_t bytes, std::uint16_t stream) override {
    ++allocations_;
    allocation_doublings_ += doublings();
    const std::uint64_t at = book_.allocate(bytes, after_);
    if (at == arena_book::none) {
      return error{
          error_code::out_of_memory,
          fmt::format("the arena of {} has no room for {} bytes", format_bytes(size_), bytes)};
    }
    for (const arena_book::mark& freed : after_) {
      if (freed.stream == stream) continue;
      std::uint64_t& seen = ordered_[std::uint64_t{stream} << 16 | freed.stream];
      if (freed.serial <= seen) continue;
      if (auto done = order_.order(freed.stream, stream); !done) return done.error();
      seen = serials_[freed.stream];
      ++waits_;
    }
    return base_ + at;
  }

  result<void> use(device_address, std::uint16_t) override { return {}; }

  result<void> free(device_address at, std::uint64_t bytes, std::uint16_t stream,
                    std::span<const std::uint16_t> users) override {
    ++frees_;
    free_doublings_ += doublings();
    for (const std::uint16_t user : users) {
      if (auto done = order_.order(user, stream); !done) return done;
    }
    book_.free(at - base_, bytes, {stream, ++serials_[stream]});
    return {};
  }

  result<void> finish() override {
    auto answer = order_.finish();
    if (base_ != 0) {
      if (const auto done = gpu_->memory_free(base_); !done)
        answer = to_error(done, "freeing the arena");
      base_ = 0;
    }
    return answer;
  }

  double own_ns() const override {
    if (!costs_.ns) return 0;
    return static_cast<double>(allocations_) *
               costs_.ns(sim::allocator_path::fixed_arena_allocate) +
           allocation_doublings_ * costs_.ns(sim::allocator_path::fixed_arena_allocate_doubling) +
           static_cast<double>(frees_) * costs_.ns(sim::allocator_path::fixed_arena_free) +
           free_doublings_ * costs_.ns(sim::allocator_path::fixed_arena_free_doubling);
  }

  std::vector<std::string> remarks() const override {
    std::vector<std::string> made{
        fmt::format("fixed-arena: {}, sized from this very workload", format_bytes(size_))};
    if (waits_ > 0)
      made.push_back(fmt::format("fixed-arena: streams waited for each other {} times", waits_));
    return made;
  }

 private:
  // The books are trees: a call takes longer by each doubling of the holes in them.
  [[nodiscard]] double doublings() const {
    return costs_.ns ? std::log2(1.0 + static_cast<double>(book_.holes())) : 0;
  }

  std::shared_ptr<driver> gpu_;
  path_costs costs_;
  stream_order order_;
  arena_book book_{0};
  device_address base_ = 0;
  std::uint64_t size_ = 0;
  std::vector<std::uint64_t> serials_;  // frees so far, by stream
  // By `to` and `from`, for those that ever met: `to` runs after this many frees of `from`.
  std::unordered_map<std::uint64_t, std::uint64_t> ordered_;
  std::vector<arena_book::mark> after_;
  std::uint64_t allocations_ = 0, frees_ = 0, waits_ = 0;
  double allocation_doublings_ = 0, free_doublings_ = 0;
};

}  // namespace

std::unique_ptr<strategy> make_fixed_arena() {
  return std::make_unique<fixed_arena>();
}

}  // namespace millpond::replay
