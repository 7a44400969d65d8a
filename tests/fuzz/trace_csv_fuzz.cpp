// The history as CSV: bytes as they are, and after the header by which the format is known.
#include "trace/read_everything.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  millpond::trace::read_everything(bytes);
  millpond::trace::read_everything("action,time_us,addr,size,stream\n" + bytes);
  return 0;
}
