// What the events of a trace refer to by number: texts, call stacks, and the facts of the
// recording. Tables only grow; id 0 is always "none" (the empty text, the empty stack). Not
// thread-safe.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace millpond::trace {

// Texts by id, each kept once.
class string_table {
 public:
  string_table();
  // The id of this text, new or known.
  std::uint32_t intern(std::string_view text);
  // A new id for this text though it be known: for a reader, whose file has given out the ids.
  std::uint32_t append(std::string_view text);
  // The text of an id; the empty text for an id that was never given out. Stays valid while the
  // table lives.
  [[nodiscard]] std::string_view at(std::uint32_t id) const noexcept;
  [[nodiscard]] std::uint32_t size() const noexcept {
    return static_cast<std::uint32_t>(texts_.size());
  }
  // What the table takes, roughly.
  [[nodiscard]] std::uint64_t memory_bytes() const noexcept {
    return text_bytes_ + texts_.size() * 80;
  }

 private:
  std::string_view keep(std::string_view text);

  // Texts lie end to end in blocks that never move, so that views stay valid.
  std::vector<std::unique_ptr<char[]>> blocks_;
  std::size_t block_used_ = 0;
  std::size_t block_size_ = 0;
  std::uint64_t text_bytes_ = 0;
  std::vector<std::string_view> texts_;
  std::unordered_map<std::string_view, std::uint32_t> ids_;
};

// One place in a program. All three are 0 where unknown.
struct frame {
  std::uint32_t symbol = 0;  // string id
  std::uint32_t file = 0;    // string id
  std::uint32_t line = 0;

  friend bool operator==(const frame&, const frame&) = default;
};

// Call stacks by id, innermost frame first, each kept once.
class stack_table {
 public:
  stack_table();
  std::uint32_t intern(std::span<const frame> frames);
  std::uint32_t append(std::span<const frame> frames);  // as string_table::append
  // Empty for an id that was never given out. Valid until the next intern.
  [[nodiscard]] std::span<const frame> at(std::uint32_t id) const noexcept;
  [[nodiscard]] std::uint32_t size() const noexcept {
    return static_cast<std::uint32_t>(starts_.size() - 1);
  }
  [[nodiscard]] std::uint64_t memory_bytes() const noexcept {
    return frames_.size() * sizeof(frame) + starts_.size() * 56;
  }

 private:
  std::vector<frame> frames_;
  std::vector<std::size_t> starts_;  // stack i is frames_[starts_[i], starts_[i + 1])
  std::unordered_multimap<std::uint64_t, std::uint32_t> by_hash_;
};

// The facts of a recording. Texts are empty and numbers 0 where unknown.
struct metadata {
  std::string program{};             // what ran, with its arguments
  std::string device_name{};         // of device 0
  std::string recorded_by{};         // the recorder and its version, or the allocator that logged
  bool simulated = false;            // recorded on the simulated GPU
  std::uint64_t start_unix_ns = 0;   // wall clock at time_ns 0
  std::uint64_t dropped_events = 0;  // that the recorder had to leave out
  std::vector<std::pair<std::string, std::string>> notes{};  // anything else: name, value

  friend bool operator==(const metadata&, const metadata&) = default;
};

}  // namespace millpond::trace
