#include "replay/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <unordered_map>

#include "base/check.hpp"
#include "millpond/base/units.hpp"
#include "millpond/sim/simulated_gpu.hpp"
#include "replay/contents.hpp"
#include "replay/metered_driver.hpp"
#include "replay/stages.hpp"

namespace millpond::replay {
namespace {

class replayer {
 public:
  replayer(const workload& work, const strategy_facts& which, std::shared_ptr<driver> gpu,
           const run_options& options)
      : work_(work),
        options_(options),
        gpu_(std::move(gpu)),
        simulated_(dynamic_cast<simulated_gpu*>(gpu_.get())) {
    made_.strategy = which.name;
    made_.meaning = which.meaning;
    made_.needs = which.needs;
    made_.gpu_name = gpu_->info().name;
    made_.simulated = gpu_->simulated();
    made_.touched = options.contents == contents_mode::touch;
    made_.copies = work.copied_bytes > 0 ? options.copies : staging::none;
    strategy_ = options.make ? options.make() : which.make();
  }

  result<outcome> run() {
    if (auto done = prepare(); !done) return done.error();
    if (made_.failures == 0) {
      const std::uint64_t started = now();
      for (std::uint64_t round = 0; round < options_.rounds; ++round) {
        const double before = made_.allocator_ns;
        if (auto done = play_round(round); !done) return done.error();
        made_.round_allocator_ns.push_back(made_.allocator_ns - before);
      }
      made_.run_ns = static_cast<double>(now() - started);
      read_account();
      made_.remarks = strategy_->remarks();
    }
    if (auto done = finish(); !done) return done.error();
    return std::move(made_);
  }

 private:
  // --- Before and after
  // -----------------------------------------------------------------------------
  result<void> prepare() {
    if (const auto bound = gpu_->bind_thread(); !bound)
      return to_error(bound, "using the GPU on this thread");
    clock_ = simulated_ != nullptr
                 ? std::function<std::uint64_t()>([this] { return simulated_->now_ns(); })
                 : options_.clock;
    MILLPOND_CHECK(static_cast<bool>(clock_), "a replay on a card needs a clock");
    if (simulated_ == nullptr) measure_clock();
    for (std::size_t i = 0; i < work_.streams.size(); ++i) {
      stream_handle made = nullptr;
      if (const auto done = gpu_->stream_create(&made); !done)
        return to_error(done, "making a stream");
      streams_.push_back(made);
    }
    if (auto done = order_.prepare(gpu_, streams_); !done) return done;
    if (made_.touched) {
      if (auto done = contents_.prepare(gpu_, streams_, work_); !done) return done;
    }
    if (work_.copied_bytes > 0) {
      if (auto done =
              stages_.prepare(gpu_, made_.copies, work_.largest_copy_bytes, streams_.size());
          !done) {
        return done;
      }
      std::vector<bool> ready(streams_.size());
      for (const op& each : work_.ops) {
        if ((each.what != op_kind::copy_in && each.what != op_kind::copy_out) || ready[each.stream])
          continue;
        ready[each.stream] = true;
        if (auto done = stages_.make_ready(each.stream); !done) return done;
      }
    }
    at_.assign(work_.blocks.size(), 0);
    meter_ = std::make_shared<metered_driver>(gpu_, clock_);
    strategy_setting setting{meter_, streams_, &work_, {}, clock_};
    if (simulated_ != nullptr) {
      const gpu_profile& profile = simulated_->profile();
      made_.own_source = profile.allocator_path_source;
      setting.costs.source = profile.allocator_path_source;
      setting.costs.ns = [&profile](std::string_view path) {
        const auto found = profile.allocator_path_ns.find(path);
        return found == profile.allocator_path_ns.end() ? 0.0 : found->second;
      };
    }
    if (!streams_.empty()) {
      if (auto awake = strategy_->wake(*gpu_, streams_.front(), clock_); !awake) {
        failed(awake.error());
        return {};
      }
    }
    if (auto ready = strategy_->prepare(setting); !ready) {
      failed(ready.error());
      return {};
    }
    prepared_ = true;
    own_so_far_ = strategy_->own_ns();
    return {};
  }

  // What two readings of the clock cost with nothing between them: the median of many.
  void measure_clock() {
    std::vector<std::uint64_t> costs(1001);
    for (std::uint64_t& cost : costs) {
      const std::uint64_t before = clock_();
      cost = clock_() - before;
    }
    const auto middle = costs.begin() + 500;
    std::nth_element(costs.begin(), middle, costs.end());
    clock_cost_ns_ = static_cast<double>(*middle);
  }

  void read_account() {
    const driver_account account = meter_->account();
    made_.peak_reserved_bytes = account.peak_device_bytes + account.pool_reserved_high;
    made_.peak_host_bytes = account.peak_host_bytes;
    made_.own_ns += strategy_->own_ns();
    made_.checked_blocks = contents_.checked();
    if (simulated_ == nullptr) return;
    made_.violation_count += simulated_->violation_count();
    for (const millpond::violation& each : simulated_->violations()) {
      if (made_.violations.size() < options_.most_violations)
        made_.violations.push_back({each.rule, each.text});
    }
  }

  result<void> finish() {
    result<void> answer;
    const auto keep_first = [&answer](const result<void>& done) {
      if (answer && !done) answer = done.error();
    };
    if (prepared_) keep_first(strategy_->finish());
    made_.wrong_words = made_.touched ? contents_.wrong_words() : 0;
    keep_first(contents_.finish());
    keep_first(stages_.finish());
    keep_first(order_.finish());
    for (const stream_handle stream : streams_) {
      if (const auto done = gpu_->stream_destroy(stream); !done) {
        keep_first(to_error(done, "destroying a stream"));
      }
    }
    return answer;
  }

  // --- Time
  // -----------------------------------------------------------------------------------------
  [[nodiscard]] std::uint64_t now() const { return clock_(); }

  // Runs one call of the strategy and gives its time. On the simulated GPU the strategy's own host
  // time passes there too, so that the device's work overlaps it as it would.
  template <class Call>
  double timed(Call&& call) {
    if (simulated_ == nullptr) {
      const std::uint64_t before = clock_();
      call();
      const double taken = static_cast<double>(clock_() - before) - clock_cost_ns_;
      return std::max(0.0, taken);
    }
    const double own_before = own_so_far_;  // between its calls a strategy does nothing
    const std::uint64_t waits_before = simulated_->device_waits();
    const std::uint64_t before = simulated_->now_ns();
    call();
    const double in_calls = static_cast<double>(simulated_->now_ns() - before);
    own_so_far_ = strategy_->own_ns();
    double own = own_so_far_ - own_before;
    if (cold_calls_ > 0) {
      // The caches are cold for an allocator's own paths as they are for the driver's.
      --cold_calls_;
      const double more = own * (simulated_->profile().after_pageable_factor - 1);
      own += more;
      made_.own_ns += more;
    }
    const std::uint64_t waits = simulated_->device_waits() - waits_before;
    made_.device_waits += waits;
    if (waits > 0) made_.device_wait_ns += in_calls;
    own_carry_ += own;
    const double whole = std::floor(own_carry_);
    if (whole >= 1) {
      simulated_->advance(static_cast<std::uint64_t>(whole));
      own_carry_ -= whole;
    }
    return in_calls + own;
  }

  void pause(const op& next) {
    if (options_.pace != pacing::recorded || next.gap_ns == 0) return;
    if (simulated_ != nullptr) {
      simulated_->advance(next.gap_ns);
      return;
    }
    const std::uint64_t until = now() + next.gap_ns;
    while (now() < until) {
    }
  }

  // --- One round
  // ------------------------------------------------------------------------------------
  result<void> play_round(std::uint64_t round) {
    std::fill(at_.begin(), at_.end(), 0);
    users_.clear();
    if (made_.touched) contents_.begin_round(round);
    live_bytes_ = 0;
    step_began_ = never;
    checked_to_ = 0;
    const auto waits_before = meter_->account();
    for (std::size_t index = 0; index < work_.ops.size(); ++index) {
      const op& next = work_.ops[index];
      if (next.what == op_kind::step) end_step();
      pause(next);
      if (auto done = play(next, index); !done) return done;
      if ((index & 0xfff) == 0 && options_.progress) {
        const double done_share =
            static_cast<double>(index) / static_cast<double>(work_.ops.size());
        options_.progress((static_cast<double>(round) + done_share) /
                          static_cast<double>(options_.rounds));
      }
    }
    if (simulated_ == nullptr) {
      const driver_account waits = meter_->account();
      made_.device_waits += waits.waiting_calls - waits_before.waiting_calls;
      made_.device_wait_ns += static_cast<double>(waits.waiting_ns - waits_before.waiting_ns);
    }
    return end_round();
  }

  // Blocks that live to the end are checked and given back outside of the measured time: the next
  // round, or the end of the process, finds nothing left.
  result<void> end_round() {
    for (std::uint32_t block = 0; block < at_.size(); ++block) {
      if (at_[block] == 0) continue;
      const std::uint16_t stream = work_.blocks[block].stream;
      if (made_.touched) {
        if (auto done = contents_.check(std::span(&block, 1), stream); !done) return done;
      }
      if (auto done = give_back(block, stream); !done) failed(done.error());
    }
    if (const auto done = gpu_->context_synchronize(); !done)
      return to_error(done, "waiting for the GPU");
    poll_contents();
    return {};
  }

  void end_step() {
    if (step_began_ != never) made_.step.add(static_cast<double>(now() - step_began_));
  }

  result<void> play(const op& next, std::size_t index) {
    switch (next.what) {
      case op_kind::allocate: return allocate(next);
      case op_kind::free: return free(next, index);
      case op_kind::use: return use(next);
      case op_kind::kernel:
        if (!made_.touched || at_[next.block] == 0) return {};
        if (next.stream != work_.blocks[next.block].stream) return {};
        return contents_.write_now(next.block);
      case op_kind::copy_in:
      case op_kind::copy_out: return copy(next);
      case op_kind::copy_between: return copy_between(next);
      case op_kind::synchronize_stream: {
        if (auto done = flush(next.stream); !done) return done;
        if (const auto done = gpu_->stream_synchronize(streams_[next.stream]); !done) {
          return to_error(done, "waiting for a stream");
        }
        poll_contents();
        return {};
      }
      case op_kind::synchronize_device: {
        for (std::size_t stream = 0; stream < streams_.size(); ++stream) {
          if (auto done = flush(static_cast<std::uint16_t>(stream)); !done) return done;
        }
        if (const auto done = gpu_->context_synchronize(); !done)
          return to_error(done, "waiting for the GPU");
        poll_contents();
        return {};
      }
      case op_kind::order_streams: {
        const auto from = static_cast<std::uint16_t>(next.other);
        if (auto done = flush(from); !done) return done;
        return order_.order(from, next.stream);
      }
      case op_kind::step: step_began_ = now(); return {};
    }
    return {};
  }

  result<void> flush(std::uint16_t stream) {
    if (!made_.touched) return {};
    return contents_.flush(stream);
  }

  void poll_contents() {
    if (!made_.touched) return;
    if (auto found = contents_.poll()) {
      ++made_.violation_count;
      made_.violations.push_back(std::move(*found));
    }
  }

  void failed(const error& failure) {
    if (made_.failures++ == 0) made_.first_failure = failure.message;
  }

  [[nodiscard]] std::string call_site(std::uint32_t block, const char* what) const {
    return fmt::format("event {} ({})", work_.blocks[block].event, what);
  }

  result<void> allocate(const op& next) {
    const std::uint64_t bytes = work_.blocks[next.block].bytes;
    if (bytes == 0) return {};
    result<device_address> answer = device_address{0};
    made_.allocate.add(spend(timed([&] { answer = strategy_->allocate(bytes, next.stream); })));
    if (!answer) {
      failed(answer.error());
      return gpu_->alive() ? result<void>{} : result<void>{answer.error()};
    }
    at_[next.block] = *answer;
    live_bytes_ += bytes;
    made_.peak_live_bytes = std::max(made_.peak_live_bytes, live_bytes_);
    if (simulated_ != nullptr) {
      simulated_->note_allocate(*answer, bytes, streams_[next.stream],
                                call_site(next.block, "allocation"));
    }
    return made_.touched ? contents_.allocated(next.block, *answer) : result<void>{};
  }

  double spend(double nanoseconds) {
    made_.allocator_ns += nanoseconds;
    return nanoseconds;
  }

  // The freeing stream runs after the block's own, as in any right program.
  result<void> order_free(std::uint32_t block, std::uint16_t stream) {
    const std::uint16_t home = work_.blocks[block].stream;
    if (home == stream) return {};
    if (auto done = flush(home); !done) return done;
    return order_.order(home, stream);
  }

  result<void> free(const op& next, std::size_t index) {
    if (at_[next.block] == 0) return {};
    if (made_.touched && index >= checked_to_) {
      // The frees that follow at once on this stream are checked by the same kernel.
      run_.clear();
      std::size_t end = index;
      for (; end < work_.ops.size() && run_.size() < max_identity_blocks; ++end) {
        const op& one = work_.ops[end];
        if (one.what != op_kind::free || one.stream != next.stream) break;
        if (at_[one.block] == 0) continue;
        if (auto done = order_free(one.block, one.stream); !done) return done;
        run_.push_back(one.block);
      }
      checked_to_ = end;
      if (auto done = contents_.check(run_, next.stream); !done) return done;
    } else if (!made_.touched) {
      if (auto done = order_free(next.block, next.stream); !done) return done;
    }
    result<void> answer;
    made_.free.add(spend(timed_free(next.block, next.stream, answer)));
    if (!answer) {
      failed(answer.error());
      if (!gpu_->alive()) return answer;
    }
    return {};
  }

  double timed_free(std::uint32_t block, std::uint16_t stream, result<void>& answer) {
    const std::uint64_t bytes = work_.blocks[block].bytes;
    const device_address at = at_[block];
    at_[block] = 0;
    live_bytes_ -= bytes;
    if (simulated_ != nullptr) {
      simulated_->note_free(at, bytes, streams_[stream],
                            call_site(block, "free of this allocation"));
    }
    users_here_.clear();
    if (const auto found = users_.find(block); found != users_.end()) {
      for (const std::uint16_t user : found->second) {
        if (user != stream) users_here_.push_back(user);
      }
      users_.erase(found);
    }
    return timed([&] { answer = strategy_->free(at, bytes, stream, users_here_); });
  }

  result<void> give_back(std::uint32_t block, std::uint16_t stream) {
    result<void> answer;
    const std::uint64_t waits = made_.device_waits;
    const double wait_ns = made_.device_wait_ns;
    timed_free(block, stream, answer);
    made_.device_waits = waits;
    made_.device_wait_ns = wait_ns;
    return answer;
  }

  result<void> use(const op& next) {
    const device_address at = at_[next.block];
    if (at == 0) return {};
    const std::uint16_t home = work_.blocks[next.block].stream;
    if (auto done = flush(home); !done) return done;
    if (auto done = order_.order(home, next.stream); !done) return done;
    result<void> answer;
    const double taken = spend(timed([&] { answer = strategy_->use(at, next.stream); }));
    made_.sharing_ns += taken;
    if (!answer) failed(answer.error());
    if (simulated_ != nullptr)
      simulated_->note_use(at, streams_[next.stream], call_site(next.block, "use"));
    users_[next.block].push_back(next.stream);
    return made_.touched ? contents_.check(std::span(&next.block, 1), next.stream) : result<void>{};
  }

  result<void> copy(const op& next) {
    const device_address at = at_[next.block];
    if (at == 0) return {};
    const std::uint16_t home = work_.blocks[next.block].stream;
    const bool in = next.what == op_kind::copy_in;
    if (!in) {
      if (auto done = flush(home); !done) return done;
    }
    if (auto done = stages_.copy(at, next.amount, streams_[next.stream], next.stream,
                                 in ? stages::direction::in : stages::direction::out);
        !done) {
      return done;
    }
    if (made_.copies == staging::pageable && next.amount >= cold_after_bytes)
      cold_calls_ = cold_calls_after_copy;
    return in ? rewritten(next.block, next.stream) : result<void>{};
  }

  result<void> copy_between(const op& next) {
    const device_address to = at_[next.block], from = at_[next.other];
    if (to == 0 || from == 0) return {};
    if (auto done = flush(work_.blocks[next.other].stream); !done) return done;
    if (auto done = flush(work_.blocks[next.block].stream); !done) return done;
    const call_result answer = gpu_->copy_async(to, from, next.amount, streams_[next.stream]);
    if (!answer) return to_error(answer, "copying between blocks");
    return rewritten(next.block, next.stream);
  }

  result<void> rewritten(std::uint32_t block, std::uint16_t stream) {
    if (!made_.touched) return {};
    if (stream == work_.blocks[block].stream) return contents_.overwritten(block);
    contents_.give_up(block);
    return {};
  }

  const workload& work_;
  const run_options& options_;
  std::shared_ptr<driver> gpu_;
  simulated_gpu* simulated_;
  std::unique_ptr<strategy> strategy_;
  std::shared_ptr<metered_driver> meter_;
  outcome made_;
  std::function<std::uint64_t()> clock_;
  double clock_cost_ns_ = 0;
  // A copy of so many pageable bytes by the CPU leaves its caches cold for the next allocator
  // calls, about a request's frees and the next one's allocations.
  static constexpr std::uint64_t cold_after_bytes = 1 * MiB;
  static constexpr unsigned cold_calls_after_copy = 20;
  unsigned cold_calls_ = 0;
  double own_so_far_ = 0;
  double own_carry_ = 0;  // part of a nanosecond that has not passed yet
  bool prepared_ = false;
  std::vector<stream_handle> streams_;
  stream_order order_;
  contents_checker contents_;
  stages stages_;
  std::vector<device_address> at_;  // where each block is; 0: not live
  std::unordered_map<std::uint32_t, std::vector<std::uint16_t>> users_;
  std::vector<std::uint16_t> users_here_;
  std::vector<std::uint32_t> run_;
  std::size_t checked_to_ = 0;  // frees before this operation were checked with an earlier one
  std::uint64_t live_bytes_ = 0;
  std::uint64_t step_began_ = never;
};

}  // namespace

result<outcome> run(const workload& work, const strategy_facts& which, std::shared_ptr<driver> gpu,
                    const run_options& options) {
  return replayer(work, which, std::move(gpu), options).run();
}

}  // namespace millpond::replay
