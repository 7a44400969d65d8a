#include "driver/sim/contents.hpp"

#include <algorithm>

namespace millpond::sim {
namespace {

constexpr std::uint64_t word_bytes = 8;

void add_mismatch(identity_report& report, std::uint64_t words, std::uint64_t expected,
                  std::uint64_t found, std::uint64_t address) {
  if (report.address == 0) {
    report.expected = expected;
    report.found_word = found;
    report.address = address;
  }
  report.mismatches += words;
}

}  // namespace

void contents::write_identity(const std::vector<piece>& pieces, const identity_block& block) {
  for (const piece& p : pieces) {
    tags_.assign(p.physical, p.physical + p.bytes,
                 {source::identity, block.identity, p.physical - (p.address - block.address)});
  }
}

void contents::fill(const std::vector<piece>& pieces, unsigned char value) {
  for (const piece& p : pieces)
    tags_.assign(p.physical, p.physical + p.bytes, {source::fill, value, 0});
}

void contents::write_unknown(const std::vector<piece>& pieces, std::uint64_t operation) {
  for (const piece& p : pieces) {
    if (p.in == nullptr) continue;
    tags_.assign(p.physical, p.physical + p.bytes, {source::unknown, operation, 0});
  }
}

void contents::copy(const std::vector<piece>& to, const std::vector<piece>& from,
                    std::uint64_t operation) {
  // Read everything first: the two may overlap.
  struct part {
    std::uint64_t begin, end;  // offsets in the copy
    tag value;
  };
  std::vector<part> parts;
  std::uint64_t offset = 0;
  for (const piece& p : from) {
    if (p.in != nullptr) {
      tags_.visit(p.physical, p.physical + p.bytes,
                  [&](std::uint64_t a, std::uint64_t b, const tag& value) {
                    parts.push_back({offset + (a - p.physical), offset + (b - p.physical), value});
                    // From here the shift is against offsets in the copy.
                    parts.back().value.shift = value.shift - a + parts.back().begin;
                  });
    }
    offset += p.bytes;
  }
  write_unknown(to, operation);
  offset = 0;
  for (const piece& p : to) {
    if (p.in != nullptr) {
      for (const part& each : parts) {
        const std::uint64_t a = std::max(each.begin, offset);
        const std::uint64_t b = std::min(each.end, offset + p.bytes);
        if (a >= b) continue;
        tag value = each.value;
        value.shift += p.physical - offset;
        tags_.assign(p.physical + (a - offset), p.physical + (b - offset), value);
      }
    }
    offset += p.bytes;
  }
}

void contents::check_identity(const std::vector<piece>& pieces, const identity_block& block,
                              identity_report& report) const {
  for (const piece& p : pieces) {
    const std::uint64_t shift = p.physical - (p.address - block.address);
    const auto wrong = [&](std::uint64_t a, std::uint64_t b, std::uint64_t found) {
      add_mismatch(report, std::max<std::uint64_t>(1, (b - a) / word_bytes), block.identity, found,
                   p.address + (a - p.physical));
    };
    std::uint64_t reached = p.physical;
    tags_.visit(p.physical, p.physical + p.bytes,
                [&](std::uint64_t a, std::uint64_t b, const tag& value) {
                  if (a > reached) wrong(reached, a, 0);
                  reached = b;
                  if (value.from == source::identity && value.value == block.identity &&
                      value.shift == shift)
                    return;
                  std::uint64_t found = 0;
                  if (value.from == source::identity)
                    found = identity_word(value.value, (a - value.shift) / word_bytes);
                  if (value.from == source::fill) found = value.value * 0x0101010101010101ULL;
                  wrong(a, b, found);
                });
    if (reached < p.physical + p.bytes) wrong(reached, p.physical + p.bytes, 0);
  }
}

}  // namespace millpond::sim
