// The layout of an .mpt file, version 1.0, all of it. Numbers are little-endian; "varint" is LEB128
// (7 bits a byte, low ones first, at most 10 bytes), "signed varint" is zigzag ((n << 1) ^ (n >>
// 63)) in a varint.
//
//   file    = header chunk*
//   header  = magic[8]  major u16  minor u16  crc u32 of the 12 bytes before it             16
//   bytes chunk   = marker u32  number u32  codec u16  zero u16  stored_bytes u32  raw_bytes u32
//             payload_crc u32  header_crc u32 of the 24 bytes before it                      28
//             bytes payload[stored_bytes]
//   payload = records, compressed by `codec`; raw_bytes long when undone
//   record  = type varint  length varint  body[length]
//
// Chunks are numbered from 0. A chunk decodes with no other: event fields are predicted from the
// event before in the same chunk (from an event of zeros at its start). Checksums are CRC-32 as in
// zlib and gzip. A record of an unknown type is skipped, and so is what a known record has after
// the fields that the reader knows: a minor version only adds such things, a major version may
// change anything.
//
//   string   (2) id varint, text to the end of the body. Ids count up from 1; 0 is the empty text.
//   stack    (3) id varint, then a frame each: symbol, file (string ids), line, as signed varints
//   against the
//                frame before (innermost first). Ids count up from 1; 0 is no stack.
//   metadata (4) field varint, value: see meta_field. A later record replaces an earlier one.
//   end      (5) events varint: how many the file holds. The last record: a file without it was
//   cut. event    (1) action u8, mask varint, then for each bit of the mask, from the lowest, one
//   field:
//                see event_field. A field that is not in the mask is as predicted.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "trace/event.hpp"

namespace millpond::trace::mpt {

// As PNG's: a byte over 127, both line ends and a DOS end of file show a transfer that took it for
// text.
inline constexpr std::string_view magic{"\x89MPT\r\n\x1a\n", 8};
inline constexpr std::uint16_t major_version = 1;
inline constexpr std::uint16_t minor_version = 0;
inline constexpr std::size_t header_bytes = 16;

inline constexpr std::uint32_t chunk_marker = 0x6b63'706d;  // "mpck"
inline constexpr std::size_t chunk_header_bytes = 28;
enum class codec : std::uint16_t { none = 0, zstd = 1 };

// A reader allocates what a file claims only up to these.
inline constexpr std::uint32_t most_raw_bytes = 16u << 20;  // of a chunk
inline constexpr std::uint64_t most_text_bytes = 1u << 20;  // of a string or a metadata value
inline constexpr std::uint64_t most_frames = 4096;          // of a stack

enum class record : std::uint8_t { event = 1, string = 2, stack = 3, metadata = 4, end = 5 };

enum class meta_field : std::uint8_t {
  program = 1,         // text
  device_name = 2,     // text
  recorded_by = 3,     // text
  simulated = 4,       // varint, 0 or 1
  start_unix_ns = 5,   // varint
  dropped_events = 6,  // varint
  note = 7,            // varint length of the name, name, value text; one record a note
};

// Bit numbers of an event's mask, with the coding and the prediction.
enum class event_field : std::uint8_t {
  sequence = 0,     // signed varint against the last one + 1
  time_ns = 1,      // signed varint against the last one
  stream = 2,       // varint; the last one
  address = 3,      // signed varint against the last one
  bytes = 4,        // varint; 0
  object = 5,       // varint; 0
  other = 6,        // varint; 0; of a copy: signed varint against this event's address
  duration_ns = 7,  // varint; 0
  thread = 8,       // varint; the last one
  stack = 9,        // varint; 0
  status = 10,      // signed varint; 0
  device = 11,      // varint; the last one
  of = 12,          // u8; the last one
};
inline constexpr int event_field_count = 13;
// Longest event record: type, length, action, mask, and every field at its longest.
inline constexpr std::size_t most_event_bytes = 1 + 2 + 1 + 2 + 7 * 10 + 4 * 5 + 3 + 1;

// Sums over 64 bits wrap on purpose: any two values have a difference that adds up again.
[[nodiscard]] constexpr std::uint64_t zigzag(std::uint64_t difference) noexcept {
  return (difference << 1) ^ (0 - (difference >> 63));
}
[[nodiscard]] constexpr std::uint64_t undo_zigzag(std::uint64_t coded) noexcept {
  return (coded >> 1) ^ (0 - (coded & 1));
}

// Writes a varint and returns the byte after it; room for 10 must be there.
inline std::uint8_t* put_varint(std::uint8_t* at, std::uint64_t value) noexcept {
  while (value >= 0x80) {
    *at++ = static_cast<std::uint8_t>(value | 0x80);
    value >>= 7;
  }
  *at++ = static_cast<std::uint8_t>(value);
  return at;
}

// Reads a varint from [at, end) and returns the byte after it; nullptr if it does not end in there,
// is longer than 10 bytes or does not fit 64 bits.
[[nodiscard]] inline const std::uint8_t* get_varint(const std::uint8_t* at, const std::uint8_t* end,
                                                    std::uint64_t& value) noexcept {
  if (at != end && *at < 0x80) {
    value = *at;
    return at + 1;
  }
  value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (at == end) return nullptr;
    const std::uint64_t byte = *at++;
    if (shift == 63 && byte > 1) return nullptr;
    value |= (byte & 0x7f) << shift;
    if (byte < 0x80) return at;
  }
  return nullptr;
}

template <class Number>
inline std::uint8_t* put_fixed(std::uint8_t* at, Number value) noexcept {
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    *at++ = static_cast<std::uint8_t>(static_cast<std::uint64_t>(value) >> (8 * i));
  }
  return at;
}
template <class Number>
[[nodiscard]] inline Number get_fixed(const std::uint8_t* at) noexcept {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(Number); ++i) value |= std::uint64_t{at[i]} << (8 * i);
  return static_cast<Number>(value);
}

}  // namespace millpond::trace::mpt
