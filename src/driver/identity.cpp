#include "driver/identity.hpp"

#include <bit>
#include <cstring>

namespace millpond {

static_assert(std::endian::native == std::endian::little, "the pattern's words are little-endian");

namespace {
constexpr std::uint64_t word_bytes = 8;
}

void fill_identity(void* at, std::uint64_t bytes, std::uint64_t identity) noexcept {
  auto* out = static_cast<unsigned char*>(at);
  const std::uint64_t words = bytes / word_bytes;
  for (std::uint64_t i = 0; i < words; ++i) {
    const std::uint64_t word = identity_word(identity, i);
    std::memcpy(out + i * word_bytes, &word, word_bytes);
  }
  if (const std::uint64_t tail = bytes % word_bytes; tail != 0) {
    const std::uint64_t word = identity_word(identity, words);
    std::memcpy(out + words * word_bytes, &word, tail);
  }
}

std::uint64_t verify_identity(const void* at, std::uint64_t bytes, std::uint64_t identity,
                              identity_report* report) noexcept {
  const auto* in = static_cast<const unsigned char*>(at);
  std::uint64_t wrong = 0;
  const auto look = [&](std::uint64_t index, std::uint64_t count) {
    std::uint64_t found = 0;
    std::uint64_t expected = 0;
    const std::uint64_t word = identity_word(identity, index);
    std::memcpy(&found, in + index * word_bytes, count);
    std::memcpy(&expected, &word, count);
    if (found == expected) return;
    ++wrong;
    if (report->address != 0) return;
    report->address = reinterpret_cast<std::uint64_t>(in + index * word_bytes);
    report->expected = identity;
    report->found_word = found;
  };
  const std::uint64_t words = bytes / word_bytes;
  for (std::uint64_t i = 0; i < words; ++i) look(i, word_bytes);
  if (const std::uint64_t tail = bytes % word_bytes; tail != 0) look(words, tail);
  report->mismatches += wrong;
  return wrong;
}

}  // namespace millpond
