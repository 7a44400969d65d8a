// Bytes that are written once and read back once, in bounded memory: the first in memory, the rest
// in a temporary file without a name, which goes with the process. For readers whose events cannot
// be given out in the order of their file.
#pragma once
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <vector>

#include "millpond/base/result.hpp"
#include "trace/input.hpp"
#include "trace/writer.hpp"

namespace millpond::trace {

// Not thread-safe.
class spool {
 public:
  explicit spool(std::uint64_t most_in_memory) : most_in_memory_(most_in_memory) {}
  // output_failure where the temporary file cannot be made or the disk is full.
  result<void> append(std::span<const std::uint8_t> bytes);
  // Up to into.size() bytes from there on, 0 only at the end.
  result<std::size_t> read(std::uint64_t from, std::span<std::byte> into) const;
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] std::uint64_t in_memory() const noexcept { return blocks_.size() * block_bytes; }

 private:
  struct close_file {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }
  };
  static constexpr std::uint64_t block_bytes = std::uint64_t{256} << 10;

  std::uint64_t most_in_memory_;
  std::vector<std::unique_ptr<std::uint8_t[]>> blocks_;  // the first bytes
  std::unique_ptr<std::FILE, close_file> file_;          // what is behind them
  std::uint64_t size_ = 0;
};

// What a trace_writer writes goes to the end of the spool, which outlives the sink.
[[nodiscard]] std::unique_ptr<sink> make_spool_sink(spool& into);
// The bytes from `begin` to `end` of a spool, which outlives the input.
[[nodiscard]] std::unique_ptr<input> make_spool_input(const spool& from, std::uint64_t begin,
                                                      std::uint64_t end);

}  // namespace millpond::trace
