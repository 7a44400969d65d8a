#include "report/columns.hpp"

#include <zlib.h>

#include "base/check.hpp"

namespace millpond::report {

// Seven bits a byte, low ones first; the top bit says that more follow. A difference has its sign
// in the lowest bit.
void column::add(std::uint64_t value) {
  std::uint64_t code = value;
  if (how_ == form::difference) {
    const std::uint64_t change = value - last_;
    code = (change << 1) ^ (change >> 63 != 0 ? UINT64_MAX : 0);
    last_ = value;
  }
  for (; code >= 0x80; code >>= 7) bytes_.push_back(static_cast<std::uint8_t>(code | 0x80));
  bytes_.push_back(static_cast<std::uint8_t>(code));
  ++count_;
}

std::string column::text() {
  uLongf size = compressBound(bytes_.size());
  std::vector<std::uint8_t> packed(size);
  const int status = compress2(packed.data(), &size, bytes_.data(), bytes_.size(), 6);
  MILLPOND_CHECK(status == Z_OK, status);
  packed.resize(size);
  bytes_.clear();
  return base64(packed);
}

std::string base64(const std::vector<std::uint8_t>& bytes) {
  static constexpr std::string_view letters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string made;
  made.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t left = bytes.size() - at;
    const std::uint32_t three = (std::uint32_t{bytes[at]} << 16) |
                                (left > 1 ? std::uint32_t{bytes[at + 1]} << 8 : 0) |
                                (left > 2 ? std::uint32_t{bytes[at + 2]} : 0);
    made += letters[three >> 18];
    made += letters[(three >> 12) & 63];
    made += left > 1 ? letters[(three >> 6) & 63] : '=';
    made += left > 2 ? letters[three & 63] : '=';
  }
  return made;
}

}  // namespace millpond::report
