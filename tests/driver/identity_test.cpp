// The identity pattern: on the host, in the launch's sharing out, and as PTX text.
#include "driver/identity.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <vector>

#include "driver/cuda/kernels.hpp"

namespace millpond {
namespace {

TEST(identity, any_size_and_alignment_verifies_and_nothing_outside_is_written) {
  for (std::uint64_t offset = 0; offset < 17; ++offset) {
    for (std::uint64_t bytes = 0; bytes < 70; ++bytes) {
      std::vector<unsigned char> memory(128, 0xee);
      fill_identity(memory.data() + offset, bytes, 77);
      for (std::uint64_t i = 0; i < memory.size(); ++i) {
        const bool inside = i >= offset && i < offset + bytes;
        EXPECT_TRUE(inside || memory[i] == 0xee) << i;
      }
      identity_report report;
      EXPECT_EQ(verify_identity(memory.data() + offset, bytes, 77, &report), 0u);
      EXPECT_EQ(report.address, 0u);
    }
  }
}

TEST(identity, the_tail_is_the_low_bytes_of_the_next_word) {
  std::array<unsigned char, 16> memory{};
  fill_identity(memory.data(), 11, 5);
  const std::uint64_t word = identity_word(5, 1);
  for (unsigned i = 0; i < 3; ++i) {
    EXPECT_EQ(memory[8 + i], static_cast<unsigned char>(word >> (8 * i)));
  }
}

TEST(identity, every_changed_byte_is_found_where_it_is) {
  constexpr std::uint64_t bytes = 45;
  std::vector<unsigned char> memory(bytes);
  for (std::uint64_t at = 0; at < bytes; ++at) {
    fill_identity(memory.data(), bytes, 9);
    memory[at] ^= 0x40;
    identity_report report;
    EXPECT_EQ(verify_identity(memory.data(), bytes, 9, &report), 1u) << at;
    EXPECT_EQ(report.mismatches, 1u);
    EXPECT_EQ(report.expected, 9u);
    EXPECT_EQ(report.address, reinterpret_cast<std::uint64_t>(memory.data()) + at / 8 * 8);
    EXPECT_EQ(report.found_word & 0xff, memory[at / 8 * 8]);
  }
}

TEST(identity, a_report_adds_up_and_keeps_the_first) {
  std::vector<unsigned char> memory(64);
  fill_identity(memory.data(), 64, 1);
  identity_report report;
  EXPECT_EQ(verify_identity(memory.data(), 64, 2, &report), 8u);
  const std::uint64_t first = report.address;
  EXPECT_EQ(verify_identity(memory.data() + 8, 56, 3, &report), 7u);
  EXPECT_EQ(report.mismatches, 15u);
  EXPECT_EQ(report.address, first);
  EXPECT_EQ(report.expected, 2u);
}

TEST(identity_launch, thread_blocks_go_by_size_and_cover_every_block) {
  std::vector<identity_block> blocks;
  blocks.push_back({0x100000, std::uint64_t{4} << 30, 1});
  for (std::uint64_t i = 1; i < max_identity_blocks; ++i) {
    blocks.push_back({0x1000 * i, i % 3 == 0 ? 0 : 100 * i, i});
  }
  cuda::launch_table table{};
  const unsigned ctas = cuda::share_out(blocks, 132, table);
  EXPECT_LE(ctas, 132 * std::size_t{16} + max_identity_blocks);
  EXPECT_GE(table.pieces[0].ctas, 132u * 15) << "the large block fills the GPU";
  unsigned next = 0;
  std::uint64_t bytes = 0;
  for (unsigned i = 0; i < table.count; ++i) {
    EXPECT_EQ(table.pieces[i].first_cta, next);
    EXPECT_GE(table.pieces[i].ctas, 1u);
    EXPECT_GT(table.pieces[i].bytes, 0u);
    next += table.pieces[i].ctas;
    bytes += table.pieces[i].bytes;
  }
  EXPECT_EQ(next, ctas);
  std::uint64_t asked = 0;
  for (const identity_block& block : blocks) asked += block.bytes;
  EXPECT_EQ(bytes, asked);
  EXPECT_EQ(cuda::share_out({}, 132, table), 0u);
}

// What a command prints, and its exit status in `status`.
std::string output_of(const std::string& command, int& status) {
  std::string text;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) {
    status = -1;
    return text;
  }
  std::array<char, 4096> chunk{};
  while (const std::size_t got = std::fread(chunk.data(), 1, chunk.size(), pipe)) {
    text.append(chunk.data(), got);
  }
  status = ::pclose(pipe);
  return text;
}

// Comments and blank lines say who compiled it and when; the instructions are the rest.
std::vector<std::string> instructions(const std::string& ptx) {
  std::vector<std::string> lines;
  std::istringstream in(ptx);
  for (std::string line; std::getline(in, line);) {
    line.erase(0, line.find_first_not_of(" \t"));
    if (!line.empty() && line.rfind("//", 0) != 0) lines.push_back(line);
  }
  return lines;
}

std::string compiler_of(const std::string& ptx) {
  const std::size_t at = ptx.find("// Cuda compilation tools");
  return at == std::string::npos ? std::string() : ptx.substr(at, ptx.find('\n', at) - at);
}

TEST(identity_ptx, has_the_three_kernels_and_asks_for_no_new_driver) {
  const std::string ptx = cuda::identity_ptx();
  for (const char* kernel :
       {"millpond_identity_write", "millpond_identity_check", "millpond_spin"}) {
    EXPECT_THAT(ptx, testing::HasSubstr(std::string(".visible .entry ") + kernel + "("));
  }
  EXPECT_THAT(ptx, testing::HasSubstr(".version 7.0\n"));
  EXPECT_THAT(ptx, testing::HasSubstr(".target sm_75\n"));
}

TEST(identity_ptx, is_what_its_source_compiles_to) {
  int status = 0;
  const std::string script = std::string(MILLPOND_SOURCE_DIR) + "/scripts/identity_ptx --print";
  const std::string fresh = output_of(script + " 2>&1", status);
  if (WEXITSTATUS(status) == 3) GTEST_SKIP() << "nvcc is not found";
  ASSERT_EQ(status, 0) << fresh;
  const std::string kept = cuda::identity_ptx();
  if (compiler_of(fresh) != compiler_of(kept)) {
    GTEST_SKIP() << "another compiler: " << compiler_of(fresh) << "; kept: " << compiler_of(kept);
  }
  EXPECT_EQ(instructions(fresh), instructions(kept))
      << "identity.cu has changed: run scripts/identity_ptx";
}

}  // namespace
}  // namespace millpond
