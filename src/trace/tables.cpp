#include "trace/tables.hpp"

#include <algorithm>
#include <cstring>

namespace millpond::trace {

string_table::string_table() {
  intern({});
}

std::uint32_t string_table::intern(std::string_view text) {
  if (const auto known = ids_.find(text); known != ids_.end()) return known->second;
  return append(text);
}

std::uint32_t string_table::append(std::string_view text) {
  const auto id = static_cast<std::uint32_t>(texts_.size());
  const std::string_view kept = keep(text);
  texts_.push_back(kept);
  ids_.emplace(kept, id);
  return id;
}

std::string_view string_table::at(std::uint32_t id) const noexcept {
  return id < texts_.size() ? texts_[id] : std::string_view{};
}

std::string_view string_table::keep(std::string_view text) {
  if (text.empty()) return {};
  if (block_size_ - block_used_ < text.size()) {
    block_size_ = std::max<std::size_t>(text.size(), std::size_t{16} << 10);
    blocks_.push_back(std::make_unique<char[]>(block_size_));
    block_used_ = 0;
  }
  char* at = blocks_.back().get() + block_used_;
  std::memcpy(at, text.data(), text.size());
  block_used_ += text.size();
  text_bytes_ += text.size();
  return {at, text.size()};
}

stack_table::stack_table() : starts_{0, 0} {}

namespace {

std::uint64_t hash_of(std::span<const frame> frames) noexcept {
  std::uint64_t hash = frames.size();
  for (const frame& each : frames) {
    for (const std::uint64_t part : {each.symbol, each.file, each.line}) {
      hash = (hash ^ part) * 0x9e3779b97f4a7c15ULL;
      hash ^= hash >> 29;
    }
  }
  return hash;
}

}  // namespace

std::uint32_t stack_table::intern(std::span<const frame> frames) {
  if (frames.empty()) return 0;
  const auto [first, last] = by_hash_.equal_range(hash_of(frames));
  for (auto known = first; known != last; ++known) {
    if (std::ranges::equal(at(known->second), frames)) return known->second;
  }
  return append(frames);
}

std::uint32_t stack_table::append(std::span<const frame> frames) {
  const auto id = size();
  frames_.insert(frames_.end(), frames.begin(), frames.end());
  starts_.push_back(frames_.size());
  by_hash_.emplace(hash_of(frames), id);
  return id;
}

std::span<const frame> stack_table::at(std::uint32_t id) const noexcept {
  if (id + std::size_t{1} >= starts_.size()) return {};
  return std::span(frames_).subspan(starts_[id], starts_[id + 1] - starts_[id]);
}

}  // namespace millpond::trace
