#include "replay/contents.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "millpond/base/units.hpp"

namespace millpond::replay {

result<void> contents_checker::prepare(std::shared_ptr<driver> gpu,
                                       std::span<const stream_handle> streams,
                                       const workload& work) {
  gpu_ = std::move(gpu);
  streams_.assign(streams.begin(), streams.end());
  work_ = &work;
  state_.assign(work.blocks.size(), {});
  batches_.assign(streams.size(), {});
  void* memory = nullptr;
  const call_result answer =
      gpu_->host_allocate(&memory, sizeof(identity_report), driver::host_flags::none);
  if (!answer) return to_error(answer, "allocating the report of the contents check");
  report_ = new (memory) identity_report;
  return {};
}

void contents_checker::begin_round(std::uint64_t round) {
  round_ = round;
  std::fill(state_.begin(), state_.end(), block_state{});
  for (auto& batch : batches_) batch.clear();
}

result<void> contents_checker::allocated(std::uint32_t block, device_address at) {
  state_[block] = {at, true, false};
  return overwritten(block);
}

result<void> contents_checker::overwritten(std::uint32_t block) {
  block_state& state = state_[block];
  if (!state.known || state.waiting) return {};
  const std::uint16_t stream = work_->blocks[block].stream;
  state.waiting = true;
  batches_[stream].push_back(block);
  if (batches_[stream].size() == max_identity_blocks) return flush(stream);
  return {};
}

result<void> contents_checker::write_now(std::uint32_t block) {
  if (auto done = overwritten(block); !done) return done;
  return flush(work_->blocks[block].stream);
}

result<void> contents_checker::flush(std::uint16_t stream) {
  auto& batch = batches_[stream];
  if (batch.empty()) return {};
  launch_.clear();
  for (const std::uint32_t block : batch) {
    state_[block].waiting = false;
    launch_.push_back({state_[block].at, work_->blocks[block].bytes, identity_of(block)});
  }
  batch.clear();
  const call_result answer = gpu_->identity_write(launch_, streams_[stream]);
  if (!answer) return to_error(answer, "writing identities into blocks");
  return {};
}

result<void> contents_checker::check(std::span<const std::uint32_t> blocks, std::uint16_t stream) {
  for (const std::uint32_t block : blocks) {
    if (!state_[block].waiting) continue;
    if (auto done = flush(work_->blocks[block].stream); !done) return done;
  }
  for (std::size_t at = 0; at < blocks.size(); at += max_identity_blocks) {
    launch_.clear();
    for (const std::uint32_t block :
         blocks.subspan(at, std::min(max_identity_blocks, blocks.size() - at))) {
      if (!state_[block].known) continue;
      launch_.push_back({state_[block].at, work_->blocks[block].bytes, identity_of(block)});
    }
    if (launch_.empty()) continue;
    checked_ += launch_.size();
    const call_result answer = gpu_->identity_check(launch_, report_, streams_[stream]);
    if (!answer) return to_error(answer, "checking the identities in blocks");
  }
  return {};
}

std::string contents_checker::name(std::uint32_t block) const {
  const workload_block& facts = work_->blocks[block];
  return fmt::format("block {} (event {}, {} on stream {})", block, facts.event,
                     format_bytes(facts.bytes), work_->streams[facts.stream]);
}

std::optional<violation> contents_checker::poll() {
  // The kernel writes it, so each read is one of memory.
  const volatile identity_report* const report = report_;
  if (report == nullptr || reported_ || report->mismatches == 0) return std::nullopt;
  reported_ = true;
  const std::uint64_t at = report->address;
  const std::uint64_t word = report->found_word;
  const std::uint64_t blocks = work_->blocks.size();
  const std::uint64_t expected = report->expected;
  const std::string owner = expected == 0 || expected > (round_ + 1) * blocks
                                ? "a block"
                                : name(static_cast<std::uint32_t>((expected - 1) % blocks));
  // Whose word is it? One of the blocks that lay over the address.
  for (std::uint32_t block = 0; block < blocks; ++block) {
    const block_state& other = state_[block];
    if (other.at == 0 || at < other.at || at - other.at >= work_->blocks[block].bytes) continue;
    if (identity_of(block) == expected) continue;
    if (identity_word(identity_of(block), (at - other.at) / 8) != word) continue;
    return violation{"contents", fmt::format("{} was overwritten at {:#x} by {} while it was live",
                                             owner, at, name(block))};
  }
  return violation{
      "contents",
      fmt::format("{} held {:#018x} at {:#x}, which no block of this run wrote", owner, word, at)};
}

std::uint64_t contents_checker::wrong_words() const noexcept {
  if (report_ == nullptr) return wrong_words_;
  return static_cast<const volatile identity_report*>(report_)->mismatches;
}

result<void> contents_checker::finish() {
  if (report_ == nullptr) return {};
  wrong_words_ = wrong_words();
  const call_result answer = gpu_->host_free(report_);
  report_ = nullptr;
  if (!answer) return to_error(answer, "freeing the report of the contents check");
  return {};
}

}  // namespace millpond::replay
