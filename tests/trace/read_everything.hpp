// What a fuzzer does with bytes: read them as a trace to the end, and all that follows from it.
// Shared by the fixed-seed tests and by the libFuzzer targets.
#pragma once
#include <zlib.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "trace/lifetimes.hpp"
#include "trace/mpt.hpp"
#include "trace/source.hpp"

namespace millpond::trace {

struct everything {
  bool opened = false;
  bool finished = false;  // no error at all
  std::uint64_t events = 0;
  std::string message;
};

// Stops the program where a promise is broken: an error without a place, an event no enum knows, an
// end that does not stay.
inline everything read_everything(std::string bytes) {
  everything outcome;
  const open_options options{.memory_limit_bytes = 64 * MiB, .table_limit_bytes = 16 * MiB};
  auto source = open_trace_bytes("input", std::move(bytes), options);
  const auto failed = [&](const error& why) {
    MILLPOND_CHECK(why.code == error_code::bad_input, to_string(why.code), why.message);
    MILLPOND_CHECK(why.message.starts_with("input"), why.message);
    MILLPOND_CHECK(why.message.find("expected") != std::string::npos, why.message);
    outcome.message = why.message;
  };
  if (!source) {
    failed(source.error());
    return outcome;
  }
  outcome.opened = true;
  lifetime_builder lives("input", {.on_fault = strictness::tolerant, .most_warnings = 2});
  std::vector<event> batch(100);
  for (;;) {
    auto got = source->read(batch);
    if (!got) {
      failed(got.error());
      auto again = source->read(batch);
      MILLPOND_CHECK(!again && again.error().message == outcome.message);
      return outcome;
    }
    if (*got == 0) break;
    for (const event& each : std::span(batch).first(*got)) {
      MILLPOND_CHECK(static_cast<int>(each.what) < action_count, static_cast<int>(each.what));
      MILLPOND_CHECK(each.of <= kind::pageable, static_cast<int>(each.of));
      MILLPOND_CHECK(lives.add(each).has_value());
      ++outcome.events;
    }
  }
  MILLPOND_CHECK(source->info().status != read_status::reading);
  auto again = source->read(batch);
  MILLPOND_CHECK(again && *again == 0);
  const lifetimes found = lives.finish();
  MILLPOND_CHECK(found.frees + found.end_live_blocks == found.blocks.size());
  outcome.finished = true;
  return outcome;
}

// Makes the checksums of an .mpt right again, so that a mutation is not stopped at the door.
inline void mend_checksums(std::string& bytes) {
  const auto sum = [&](std::size_t at, std::size_t count) {
    return static_cast<std::uint32_t>(
        crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()) + at, count));
  };
  auto* const data = reinterpret_cast<std::uint8_t*>(bytes.data());
  if (bytes.size() < mpt::header_bytes) return;
  mpt::put_fixed(data + 12, sum(0, 12));
  std::size_t at = mpt::header_bytes;
  while (bytes.size() - at >= mpt::chunk_header_bytes) {
    const auto stored = mpt::get_fixed<std::uint32_t>(data + at + 12);
    if (bytes.size() - at - mpt::chunk_header_bytes < stored) return;
    mpt::put_fixed(data + at + 20, sum(at + mpt::chunk_header_bytes, stored));
    mpt::put_fixed(data + at + 24, sum(at, mpt::chunk_header_bytes - 4));
    at += mpt::chunk_header_bytes + stored;
  }
}

}  // namespace millpond::trace
