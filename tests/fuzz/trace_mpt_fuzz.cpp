// The .mpt file: bytes as they are, with their checksums mended, and as the records of one chunk.
#include "trace/read_everything.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millpond::trace;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  read_everything(bytes);
  mend_checksums(bytes);
  read_everything(bytes);
  std::string file(mpt::magic);
  file.resize(mpt::header_bytes + mpt::chunk_header_bytes);
  auto* at = reinterpret_cast<std::uint8_t*>(file.data());
  mpt::put_fixed(at + 8, mpt::major_version);
  at += mpt::header_bytes;
  mpt::put_fixed(at, mpt::chunk_marker);
  mpt::put_fixed(at + 12, static_cast<std::uint32_t>(size));
  mpt::put_fixed(at + 16, static_cast<std::uint32_t>(size));
  file.append(reinterpret_cast<const char*>(data), size);
  mend_checksums(file);
  read_everything(file);
  return 0;
}
