// Any bytes at all, opened as a trace: an answer, never a crash, a hang or a great deal of memory.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "trace/lifetimes.hpp"
#include "trace/source.hpp"

namespace {

// What must be true of every answer; a fuzzer notices a call of abort.
void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millpond;
  trace::open_options limits;
  limits.memory_limit_bytes = 64 * MiB;
  auto source = trace::open_trace_bytes(
      "input", std::string(reinterpret_cast<const char*>(data), size), limits);
  if (!source) {
    require(source.error().code == error_code::bad_input,
            "a file that cannot be opened is bad input");
    require(source.error().message.find("input") != std::string::npos,
            "the message names the file");
    return 0;
  }
  auto loaded = trace::load_trace(std::move(*source));
  if (!loaded) {
    require(loaded.error().code == error_code::bad_input,
            "a file that cannot be read is bad input");
    require(!loaded.error().message.empty(), "the message says something");
    return 0;
  }
  require(loaded->info.status != trace::read_status::reading, "a trace that was read has an end");
  const auto found = trace::find_lifetimes(*loaded);
  if (found) {
    require(found->frees <= found->blocks.size(), "no more frees than blocks");
    require(found->end_live_bytes <= found->peak_live_bytes, "the peak is the most there ever was");
  }
  return 0;
}
