// Thousands of mutations of valid inputs, from a fixed seed: no input crashes, hangs or is believed
// against its checksum. Under the sanitizers no byte is read that is not there.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "base/random.hpp"
#include "trace/exporters.hpp"
#include "trace/read_everything.hpp"
#include "trace/synthetic/workload.hpp"

namespace millpond::trace {
namespace {

std::string file_bytes(const std::string& path) {
  std::ifstream file(MILLPOND_SOURCE_DIR + path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// Tokens that the formats give a meaning.
constexpr std::string_view tokens[] = {",",
                                       "\n",
                                       "\r\n",
                                       "0x",
                                       "(nil)",
                                       "alloc",
                                       "free_requested",
                                       "oom",
                                       "-1",
                                       "18446744073709551615",
                                       "9223372036854775808",
                                       "24:00:00",
                                       "\x80",
                                       "\x94",
                                       "\x8d",
                                       "(",
                                       "u",
                                       "e",
                                       "q\xff",
                                       "r\xff\xff\xff\xff",
                                       "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"};

std::string mutated(std::string bytes, random& numbers) {
  const std::uint64_t changes = 1 + numbers.below(4);
  for (std::uint64_t i = 0; i < changes && !bytes.empty(); ++i) {
    const std::size_t at = numbers.below(bytes.size());
    const std::size_t length = numbers.below(std::min<std::size_t>(bytes.size() - at, 40) + 1);
    switch (numbers.below(8)) {
      case 0: bytes[at] = static_cast<char>(bytes[at] ^ (1 << numbers.below(8))); break;
      case 1: bytes[at] = static_cast<char>(numbers.below(256)); break;
      case 2: bytes.erase(at, length); break;
      case 3: bytes.insert(numbers.below(bytes.size() + 1), bytes.substr(at, length)); break;
      case 4: bytes.resize(at); break;
      case 5: bytes.insert(at, tokens[numbers.below(std::size(tokens))]); break;
      case 6: bytes.replace(at, length, length, static_cast<char>(numbers.below(2) * 255)); break;
      default: {
        const std::string_view token = tokens[numbers.below(std::size(tokens))];
        bytes.replace(at, std::min(token.size(), bytes.size() - at), token);
      }
    }
  }
  return bytes;
}

struct counts {
  int finished = 0, failed = 0;
};

counts fuzz(const std::string& valid, std::uint64_t seed, int rounds,
            void (*mend)(std::string&) = nullptr) {
  EXPECT_TRUE(read_everything(valid).finished) << read_everything(valid).message;
  random numbers(seed);
  counts of;
  for (int round = 0; round < rounds; ++round) {
    std::string input = mutated(valid, numbers);
    if (mend != nullptr) mend(input);
    ++(read_everything(std::move(input)).finished ? of.finished : of.failed);
  }
  // Both ends are reached: else the mutations are too wild or too tame to test anything.
  EXPECT_GT(of.finished, rounds / 200);
  EXPECT_GT(of.failed, rounds / 20);
  return of;
}

TEST(fuzz, csv) {
  fuzz(
      "action,time_us,addr,size,stream\nsegment_alloc,0,7f0000000000,2097152,0\nalloc,5,"
      "7f0000000000,512,3\n"
      "free_requested,6,7f0000000000,512,3\nfree_completed,8,7f0000000000,512,3\noom,9,4096,"
      "1048576,0\n"
      "snapshot,10,0,0,0\nalloc,11,7f0000000200,99,0\n",
      1, 6000);
}

TEST(fuzz, rmm) {
  fuzz(
      "Thread,Time,Action,Pointer,Size,Stream\n1,23:59:46.191735,allocate,0x7f1a00000000,1048576,"
      "0x0\n"
      "2,23:59:46.191800,allocate,0x7f1a00200000,256,0x55d1c0\n1,00:00:46.2,allocate "
      "failure,(nil),99,0x0\n"
      "2,00:00:46.192000,free,0x7f1a00200000,256,0x2\n",
      2, 6000);
}

TEST(fuzz, snapshot) {
  for (const char* name : {"plain_protocol2", "plain_protocol4", "old_without_times"}) {
    fuzz(file_bytes(std::string("/tests/data/snapshots/") + name + ".pickle"), 3, 3000);
  }
}

// A small one: the recorded traces take too long thousands of times.
std::string small_gzip() {
  const std::string text =
      "action,time_us,addr,size,stream\nalloc,5,a,512,3\nfree_requested,6,a,512,3\n";
  std::string packed(200, '\0');
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

TEST(fuzz, gzip) {
  fuzz(small_gzip(), 4, 6000);
}

std::string small_mpt(int level) {
  auto made = make_inference({.requests = 2, .layers = 2});
  std::string bytes;
  const auto stack = made->info.stacks.intern(std::vector<frame>{{1, 2, 3}, {4, 5, 6}});
  made->events[3].stack = stack;
  made->info.meta.notes = {{"a", "b"}};
  EXPECT_TRUE(export_mpt(*made, *make_memory_sink(bytes),
                         {.chunk_bytes = 200, .compression_level = level}));
  return bytes;
}

TEST(fuzz, mpt) {
  const std::string valid = small_mpt(3);
  random numbers(5);
  const everything whole = read_everything(valid);
  for (int round = 0; round < 6000; ++round) {
    const std::string input = mutated(valid, numbers);
    const everything outcome = read_everything(input);
    // Finished means unchanged, or cut at a chunk's end: never a changed byte believed.
    if (outcome.finished) {
      ASSERT_LE(outcome.events, whole.events);
    }
  }
}

TEST(fuzz, mpt_with_checksums_mended) {
  fuzz(small_mpt(0), 6, 10'000, mend_checksums);
  fuzz(small_mpt(3), 7, 4000, mend_checksums);
}

TEST(fuzz, bytes_of_no_format_at_all) {
  random numbers(8);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes(numbers.below(300), '\0');
    for (char& each : bytes) each = static_cast<char>(numbers.next());
    // After the marks by which formats are known, too.
    const std::string_view marks[] = {"", "\x80\x04", "\x1f\x8b\x08", "action,addr,size\n",
                                      mpt::magic};
    read_everything(std::string(marks[numbers.below(5)]) + bytes);
  }
}

}  // namespace
}  // namespace millpond::trace
