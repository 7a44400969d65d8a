// PyTorch's snapshot: bytes as they are, and after the opcode by which a pickle is known.
#include "trace/read_everything.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  millpond::trace::read_everything(bytes);
  millpond::trace::read_everything("\x80\x04" + bytes);
  return 0;
}
