// What is in physical memory, as tags instead of bytes: a range holds an identity block's words,
// one repeated byte, or something that only an operation's number names. A copy copies tags.
#pragma once
#include <cstdint>
#include <vector>

#include "driver/sim/interval_map.hpp"
#include "driver/sim/memory.hpp"
#include "millpond/driver/driver.hpp"

namespace millpond::sim {

class contents {
 public:
  void write_identity(const std::vector<piece>& pieces, const identity_block& block);
  void fill(const std::vector<piece>& pieces, unsigned char value);
  // From memory that has no tags, or by a kernel that says only that it writes.
  void write_unknown(const std::vector<piece>& pieces, std::uint64_t operation);
  void copy(const std::vector<piece>& to, const std::vector<piece>& from, std::uint64_t operation);
  // Adds to the report as the check kernel does: words that differ, and the first of them.
  void check_identity(const std::vector<piece>& pieces, const identity_block& block,
                      identity_report& report) const;
  void forget(std::uint64_t begin, std::uint64_t end) { tags_.erase(begin, end); }
  [[nodiscard]] std::size_t size() const noexcept { return tags_.size(); }

 private:
  enum class source : std::uint8_t { identity, fill, unknown };
  // `shift` is the physical address less the offset in the block, so that cutting a range keeps it
  // true.
  struct tag {
    source from = source::unknown;
    std::uint64_t value = 0;
    std::uint64_t shift = 0;
  };
  interval_map<tag> tags_;
};

}  // namespace millpond::sim
