// The tests of the contract. To be included by exactly one file of a test program.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "base/bits.hpp"
#include "base/random.hpp"
#include "millpond/memory/kinds.hpp"
#include "support/resource_contract.hpp"

namespace millpond::testing {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(resource_contract);

// --- The fixture
// --------------------------------------------------------------------------------------

std::shared_ptr<simulated_gpu> small_gpu(std::uint64_t bytes) {
  simulated_gpu_options options;
  options.mode = simulated_gpu_options::contents::bytes;  // what kernels write, the CPU is to see
  options.memory_bytes = bytes;
  options.host_bytes = bytes;
  auto made = simulated_gpu::create(options);
  if (!made) throw memory_error(made.error());
  return *made;
}

void resource_contract::SetUp() {
  make_on(GetParam().open ? GetParam().open() : small_gpu(2 * GiB));
}

void resource_contract::make_on(std::shared_ptr<driver> gpu) {
  TearDown();
  gpu_ = std::move(gpu);
  ASSERT_NE(gpu_, nullptr);
  ASSERT_TRUE(gpu_->bind_thread().ok());
  subject_ = std::make_unique<contract_subject>(GetParam().make(gpu_));
}

void resource_contract::TearDown() {
  if (gpu_ == nullptr) return;
  EXPECT_TRUE(gpu_->context_synchronize().ok());
  subject_.reset();
  for (stream_handle stream : streams_) EXPECT_TRUE(gpu_->stream_destroy(stream).ok());
  streams_.clear();
  if (simulated_gpu* const simulated = simulator(); simulated != nullptr) {
    EXPECT_EQ(to_string(simulated->leaks()), "nothing");
    for (const violation& each : simulated->violations())
      ADD_FAILURE() << each.rule << ": " << each.text;
  }
  gpu_.reset();
}

stream_handle resource_contract::new_stream() {
  stream_handle stream = nullptr;
  EXPECT_TRUE(gpu_->stream_create(&stream).ok());
  streams_.push_back(stream);
  return stream;
}

void resource_contract::write_identity(void* block, std::uint64_t bytes, std::uint64_t identity,
                                       stream_handle stream) {
  if (memory().device_accessible()) {
    const identity_block one{reinterpret_cast<device_address>(block), bytes, identity};
    EXPECT_TRUE(gpu_->identity_write({&one, 1}, stream).ok());
    return;
  }
  auto* const out = static_cast<unsigned char*>(block);
  for (std::uint64_t at = 0; at < bytes; at += 8) {
    const std::uint64_t word = identity_word(identity, at / 8);
    std::memcpy(out + at, &word, std::min<std::uint64_t>(8, bytes - at));
  }
}

std::uint64_t resource_contract::wrong_words(void* block, std::uint64_t bytes,
                                             std::uint64_t identity, stream_handle stream) {
  std::uint64_t wrong = 0;
  if (memory().device_accessible()) {
    pinned_resource pinned(gpu_);
    auto* const report =
        static_cast<identity_report*>(pinned.allocate(sizeof(identity_report), nullptr));
    *report = {};
    const identity_block one{reinterpret_cast<device_address>(block), bytes, identity};
    EXPECT_TRUE(gpu_->identity_check({&one, 1}, report, stream).ok());
    EXPECT_TRUE(gpu_->stream_synchronize(stream).ok());
    wrong += report->mismatches;
    pinned.deallocate(report, sizeof(identity_report), nullptr);
  }
  if (memory().host_accessible()) {
    EXPECT_TRUE(gpu_->stream_synchronize(stream).ok());
    const auto* const in = static_cast<const unsigned char*>(block);
    for (std::uint64_t at = 0; at < bytes; at += 8) {
      const std::uint64_t word = identity_word(identity, at / 8);
      wrong += std::memcmp(in + at, &word, std::min<std::uint64_t>(8, bytes - at)) != 0 ? 1 : 0;
    }
  }
  return wrong;
}

void resource_contract::expect_refused(const result<void>& answer,
                                       const std::vector<error_code>& codes) {
  ASSERT_FALSE(answer.has_value());
  EXPECT_THAT(codes, ::testing::Contains(answer.error().code))
      << to_string(answer.error().code) << ": " << answer.error().message;
  EXPECT_FALSE(answer.error().message.empty());
}

// --- What is asked for is what is given
// -----------------------------------------------------------------

TEST_P(resource_contract, zero_bytes_give_nullptr_and_nullptr_may_be_freed) {
  EXPECT_EQ(memory().allocate(0, nullptr), nullptr);
  EXPECT_TRUE(memory().try_deallocate(nullptr, 0, nullptr));
  EXPECT_TRUE(memory().try_deallocate(nullptr, 100, nullptr));
  EXPECT_EQ(memory().deallocation_errors(), 0u);
}

TEST_P(resource_contract, every_alignment_up_to_two_mebibytes_is_honoured) {
  const stream_handle stream = new_stream();
  for (std::uint64_t alignment = 1; alignment <= max_alignment; alignment *= 2) {
    std::vector<std::pair<void*, std::uint64_t>> blocks;
    for (const std::uint64_t bytes : {std::uint64_t{1}, std::uint64_t{511}, 4 * KiB, 3 * MiB + 1}) {
      blocks.emplace_back(memory().allocate(bytes, alignment, stream), bytes);
      EXPECT_TRUE(is_aligned(reinterpret_cast<std::uint64_t>(blocks.back().first), alignment))
          << bytes << " bytes aligned to " << alignment;
    }
    for (const auto& [block, bytes] : blocks)
      EXPECT_TRUE(memory().try_deallocate(block, bytes, stream));
  }
}

TEST_P(resource_contract, the_default_alignment_is_honoured_where_none_is_asked_for) {
  for (int i = 0; i < 20; ++i) {
    void* const block = memory().allocate(std::uint64_t{1} << i, nullptr);
    EXPECT_TRUE(is_aligned(reinterpret_cast<std::uint64_t>(block), default_alignment));
    memory().deallocate(block, std::uint64_t{1} << i, nullptr);
  }
}

TEST_P(resource_contract, alignments_that_no_one_can_serve_are_refused) {
  for (const std::uint64_t bad :
       {std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{768}, 4 * MiB}) {
    const auto answer = memory().try_allocate(100, bad, nullptr);
    ASSERT_FALSE(answer.has_value()) << bad;
    EXPECT_EQ(answer.error().code, error_code::invalid_argument);
    EXPECT_THROW(static_cast<void>(memory().allocate(100, bad, nullptr)), memory_error);
  }
}

TEST_P(resource_contract, sizes_from_one_byte_to_the_largest_hold_their_contents) {
  const stream_handle stream = new_stream();
  for (std::uint64_t bytes = 1; bytes <= GetParam().largest_bytes;
       bytes = 4 * bytes + (bytes < 64 ? 1 : 0)) {
    void* const block = memory().allocate(bytes, stream);
    ASSERT_NE(block, nullptr);
    // The CPU need not write gigabytes to know that both ends are there.
    const std::uint64_t part = std::min<std::uint64_t>(bytes, 64 * KiB);
    void* const end = static_cast<char*>(block) + align_down(bytes - part, 8);
    const std::uint64_t end_bytes = bytes - align_down(bytes - part, 8);
    write_identity(end, end_bytes, 2 * bytes + 1, stream);
    EXPECT_EQ(wrong_words(end, end_bytes, 2 * bytes + 1, stream), 0u) << bytes;
    write_identity(block, part, bytes, stream);
    EXPECT_EQ(wrong_words(block, part, bytes, stream), 0u) << bytes;
    EXPECT_NE(wrong_words(block, part, bytes + 1, stream), 0u) << "a check that cannot fail";
    EXPECT_TRUE(memory().try_deallocate(block, bytes, stream));
  }
}

TEST_P(resource_contract, blocks_do_not_overlap_and_keep_their_contents_among_others) {
  const stream_handle stream = new_stream();
  random numbers(7);
  struct held {
    void* block;
    std::uint64_t bytes, identity;
  };
  std::vector<held> live;
  std::map<std::uint64_t, std::uint64_t> ranges;
  for (std::uint64_t step = 1; step <= 1500; ++step) {
    if (live.size() < 200 && (live.empty() || numbers.chance(0.55))) {
      const std::uint64_t bytes = numbers.log_uniform(1, 256 * KiB);
      void* const block = memory().allocate(bytes, std::uint64_t{1} << numbers.below(13), stream);
      const auto address = reinterpret_cast<std::uint64_t>(block);
      const auto next = ranges.lower_bound(address);
      ASSERT_TRUE(next == ranges.end() || address + bytes <= next->first);
      ASSERT_TRUE(next == ranges.begin() ||
                  std::prev(next)->first + std::prev(next)->second <= address);
      ranges[address] = bytes;
      write_identity(block, bytes, step, stream);
      live.push_back({block, bytes, step});
    } else {
      const std::size_t at = numbers.below(live.size());
      if (step % 8 == 0) {
        ASSERT_EQ(wrong_words(live[at].block, live[at].bytes, live[at].identity, stream), 0u)
            << step;
      }
      ranges.erase(reinterpret_cast<std::uint64_t>(live[at].block));
      // A size that is not reported is as good as one that is.
      ASSERT_TRUE(
          memory().try_deallocate(live[at].block, step % 3 == 0 ? 0 : live[at].bytes, stream));
      live[at] = live.back();
      live.pop_back();
    }
  }
  for (const held& each : live) {
    ASSERT_EQ(wrong_words(each.block, each.bytes, each.identity, stream), 0u);
    memory().deallocate(each.block, each.bytes, stream);
  }
  EXPECT_EQ(memory().deallocation_errors(), 0u);
}

TEST_P(resource_contract, what_one_stream_still_uses_another_does_not_get) {
  simulated_gpu* const checked = simulator();
  if (checked == nullptr || !memory().device_accessible())
    GTEST_SKIP() << "the simulated GPU's checker judges kernels";
  const stream_handle slow = new_stream();
  const stream_handle other = new_stream();
  constexpr std::uint64_t bytes = 3 * MiB;
  const auto use = [&](void* block, std::uint64_t duration_ns, stream_handle stream) {
    const auto at = reinterpret_cast<device_address>(block);
    kernel_description kernel;
    kernel.name = "uses a block";
    kernel.duration_ns = duration_ns;
    kernel.accesses.push_back({at, bytes, access_kind::write});
    EXPECT_TRUE(checked->launch(kernel, stream).ok());
  };
  for (int round = 0; round < 4; ++round) {
    void* const first = memory().allocate(bytes, slow);
    checked->note_allocate(reinterpret_cast<device_address>(first), bytes, slow, "first");
    use(first, 10'000'000, slow);
    checked->note_free(reinterpret_cast<device_address>(first), bytes, slow, "first");
    EXPECT_TRUE(memory().try_deallocate(first, bytes, slow));
    void* const second = memory().allocate(bytes, other);
    checked->note_allocate(reinterpret_cast<device_address>(second), bytes, other, "second");
    use(second, 1000, other);
    checked->note_free(reinterpret_cast<device_address>(second), bytes, other, "second");
    EXPECT_TRUE(memory().try_deallocate(second, bytes, other));
  }
}

// --- When there is none
// ---------------------------------------------------------------------------------

TEST_P(resource_contract, more_than_anyone_has_is_out_of_memory_and_harms_nothing) {
  for (const std::uint64_t bytes :
       {std::uint64_t{1} << 50, max_bytes, max_bytes + 1, ~std::uint64_t{0}}) {
    const auto answer = memory().try_allocate(bytes, max_alignment, nullptr);
    ASSERT_FALSE(answer.has_value());
    EXPECT_EQ(answer.error().code, error_code::out_of_memory) << answer.error().message;
    EXPECT_THROW(static_cast<void>(memory().allocate(bytes, nullptr)), out_of_memory);
  }
  void* const block = memory().allocate(4096, nullptr);
  EXPECT_TRUE(memory().try_deallocate(block, 4096, nullptr));
}

TEST_P(resource_contract, at_the_end_of_memory_it_says_so_and_serves_again_what_is_freed) {
  if (!GetParam().bounded || simulator() == nullptr)
    GTEST_SKIP() << "its memory has no small bound";
  make_on(small_gpu(256 * MiB));
  std::vector<void*> blocks;
  for (;;) {
    const auto answer = memory().try_allocate(10 * MiB, 512, nullptr);
    if (!answer) {
      EXPECT_EQ(answer.error().code, error_code::out_of_memory) << answer.error().message;
      break;
    }
    blocks.push_back(*answer);
    ASSERT_LT(blocks.size(), 100u);
  }
  ASSERT_GT(blocks.size(), 10u);
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(memory().try_deallocate(blocks.back(), 10 * MiB, nullptr));
    blocks.back() = memory().allocate(10 * MiB, nullptr);
  }
  for (void* block : blocks) EXPECT_TRUE(memory().try_deallocate(block, 10 * MiB, nullptr));
}

// --- Frees that are wrong
// -------------------------------------------------------------------------------

TEST_P(resource_contract, a_block_of_another_kind_is_refused_and_stays) {
  pageable_resource pageable(nullptr);
  pinned_resource pinned(std::shared_ptr<driver>(std::shared_ptr<void>(), &gpu()));
  for (memory_resource* other :
       {static_cast<memory_resource*>(&pageable), static_cast<memory_resource*>(&pinned)}) {
    if (other->kind() == memory().kind()) continue;
    void* const block = other->allocate(4096, nullptr);
    expect_refused(memory().try_deallocate(block, 4096, nullptr), GetParam().other_kind);
    std::memset(block, 1, 4096);
    EXPECT_TRUE(other->try_deallocate(block, 4096, nullptr));
  }
}

TEST_P(resource_contract, a_second_free_is_refused) {
  void* const block = memory().allocate(4096, nullptr);
  EXPECT_TRUE(memory().try_deallocate(block, 4096, nullptr));
  expect_refused(memory().try_deallocate(block, 4096, nullptr), GetParam().double_free);
  expect_refused(memory().try_deallocate(block, 0, nullptr), GetParam().double_free);
}

TEST_P(resource_contract, an_interior_pointer_is_refused_and_the_block_stays) {
  const stream_handle stream = new_stream();
  void* const block = memory().allocate(64 * KiB, stream);
  write_identity(block, 64 * KiB, 5, stream);
  for (const std::uint64_t offset : {std::uint64_t{1}, std::uint64_t{512}, 64 * KiB - 1}) {
    expect_refused(memory().try_deallocate(static_cast<char*>(block) + offset, 0, stream),
                   GetParam().interior);
  }
  EXPECT_EQ(wrong_words(block, 64 * KiB, 5, stream), 0u);
  EXPECT_TRUE(memory().try_deallocate(block, 64 * KiB, stream));
}

TEST_P(resource_contract, a_foreign_pointer_is_refused) {
  int local = 0;
  expect_refused(memory().try_deallocate(&local, sizeof local, nullptr), GetParam().foreign);
  expect_refused(memory().try_deallocate(reinterpret_cast<void*>(std::uintptr_t{0x10}), 0, nullptr),
                 GetParam().foreign);
}

TEST_P(resource_contract, a_wrong_size_is_refused_and_the_block_stays) {
  void* const block = memory().allocate(4096, nullptr);
  expect_refused(memory().try_deallocate(block, MiB, nullptr), {error_code::invalid_argument});
  EXPECT_TRUE(memory().try_deallocate(block, 4096, nullptr));
}

TEST_P(resource_contract, errors_of_deallocate_reach_the_sink_and_are_counted) {
  std::vector<error> reported;
  memory().set_error_sink([&](const error& failure) { reported.push_back(failure); });
  int local = 0;
  memory().deallocate(&local, sizeof local, nullptr);
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(memory().deallocation_errors(), 1u);
  EXPECT_FALSE(reported[0].message.empty());
  memory().set_error_sink(nullptr);
  memory().deallocate(&local, sizeof local, nullptr);
  EXPECT_EQ(memory().deallocation_errors(), 2u);
}

// --- Threads and processes
// ------------------------------------------------------------------------------

TEST_P(resource_contract, threads_share_it_and_free_each_others_blocks) {
  constexpr int thread_count = 4;
  std::vector<stream_handle> streams;
  for (int t = 0; t < thread_count; ++t) streams.push_back(new_stream());
  std::mutex mutex;
  std::map<std::uint64_t, std::uint64_t> ranges;                 // of all live blocks
  std::vector<std::pair<void*, std::uint64_t>> left_for_others;  // on no stream that is still busy
  std::atomic<int> overlaps{0}, refused{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < thread_count; ++t) {
    threads.emplace_back([&, t] {
      EXPECT_TRUE(gpu().bind_thread().ok());
      random numbers(static_cast<std::uint64_t>(100 + t));
      const stream_handle stream = streams[static_cast<std::size_t>(t)];
      for (int step = 0; step < 300; ++step) {
        const std::uint64_t bytes = numbers.log_uniform(1, 64 * KiB);
        void* block = memory().allocate(bytes, stream);
        std::uint64_t freed_bytes = bytes;
        {
          const std::lock_guard lock(mutex);
          const auto address = reinterpret_cast<std::uint64_t>(block);
          const auto next = ranges.lower_bound(address);
          if (next != ranges.end() && address + bytes > next->first) ++overlaps;
          if (next != ranges.begin() && std::prev(next)->first + std::prev(next)->second > address)
            ++overlaps;
          ranges[address] = bytes;
          left_for_others.emplace_back(block, bytes);
          if (left_for_others.size() < 20) continue;
          const std::size_t at = numbers.below(left_for_others.size());
          std::tie(block, freed_bytes) = left_for_others[at];
          left_for_others[at] = left_for_others.back();
          left_for_others.pop_back();
          ranges.erase(reinterpret_cast<std::uint64_t>(block));
        }
        if (!memory().try_deallocate(block, freed_bytes, stream)) ++refused;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& [block, bytes] : left_for_others) memory().deallocate(block, bytes, streams[0]);
  EXPECT_EQ(overlaps.load(), 0);
  EXPECT_EQ(refused.load(), 0);
  EXPECT_EQ(memory().deallocation_errors(), 0u);
}

TEST_P(resource_contract, a_forked_child_is_refused) {
  void* const block = memory().allocate(4096, nullptr);
  std::fflush(nullptr);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto allocated = memory().try_allocate(4096, 512, nullptr);
    const auto freed = memory().try_deallocate(block, 4096, nullptr);
    const bool refused = !allocated && allocated.error().code == error_code::not_permitted &&
                         !freed && freed.error().code == error_code::not_permitted;
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(memory().try_deallocate(block, 4096, nullptr));
}

// --- Driver calls that fail
// -----------------------------------------------------------------------------

namespace contract_faults {

// Everything that went wrong in one small life of a resource. A free that is refused is tried
// again.
inline std::vector<std::string> live_once(const contract_case& of,
                                          const std::shared_ptr<simulated_gpu>& gpu) {
  std::vector<std::string> errors;
  stream_handle stream = nullptr;
  if (const call_result made = gpu->stream_create(&stream); !made.ok()) return {to_string(made)};
  {
    std::unique_ptr<contract_subject> subject;
    try {
      subject = std::make_unique<contract_subject>(of.make(gpu));
    } catch (const std::exception& why) {
      errors.emplace_back(why.what());
      gpu->set_faults({});
      subject = std::make_unique<contract_subject>(of.make(gpu));
    }
    subject->memory->set_error_sink(
        [&](const error& failure) { errors.push_back(failure.message); });
    std::vector<std::pair<void*, std::uint64_t>> blocks;
    for (const std::uint64_t bytes : {std::uint64_t{100}, 64 * KiB, 3 * MiB, 40 * MiB}) {
      for (const std::uint64_t alignment : {std::uint64_t{512}, 2 * MiB}) {
        auto answer = subject->memory->try_allocate(bytes, alignment, stream);
        if (answer) {
          blocks.emplace_back(*answer, bytes);
        } else {
          errors.push_back(answer.error().message);
        }
      }
    }
    for (const auto& [block, bytes] : blocks) {
      for (int attempt = 0;; ++attempt) {
        const auto answer = subject->memory->try_deallocate(block, bytes, stream);
        if (answer) break;
        errors.push_back(answer.error().message);
        if (attempt == 2) break;
      }
    }
    gpu->set_faults({});
    const auto usable = subject->memory->try_allocate(5 * MiB, 512, stream);
    if (!usable) {
      errors.push_back("not usable afterwards: " + usable.error().message);
    } else if (const auto freed = subject->memory->try_deallocate(*usable, 5 * MiB, stream);
               !freed) {
      errors.push_back("not usable afterwards: " + freed.error().message);
    }
    static_cast<void>(gpu->context_synchronize());
  }
  static_cast<void>(gpu->stream_destroy(stream));
  return errors;
}

}  // namespace contract_faults

TEST_P(resource_contract, every_driver_call_failing_in_turn_is_named_and_nothing_is_lost) {
  if (simulator() == nullptr) GTEST_SKIP() << "faults are planted in the simulated GPU";
  const auto clean = small_gpu(GiB);
  ASSERT_THAT(contract_faults::live_once(GetParam(), clean), ::testing::IsEmpty());
  std::uint64_t planted = 0, reported = 0;
  for (const call_count& each : clean->call_table()) {
    if (each.call == "cuStreamCreate" || each.call == "cuStreamDestroy" ||
        each.call == "cuCtxSynchronize")
      continue;
    for (std::uint64_t at = 1; at <= each.count; ++at) {
      for (const driver_status status : {driver_status::out_of_memory, driver_status::unknown}) {
        const auto gpu = small_gpu(GiB);
        fault_plan plan;
        fault one;
        one.call = each.call;
        one.at = at;
        one.status = status;
        plan.faults.push_back(one);
        gpu->set_faults(plan);
        const auto errors = contract_faults::live_once(GetParam(), gpu);
        ++planted;
        reported += errors.empty() ? 0 : 1;
        for (const std::string& message : errors) {
          EXPECT_THAT(message, ::testing::HasSubstr(each.call)) << "failed call " << at;
        }
        EXPECT_EQ(to_string(gpu->leaks()), "nothing") << each.call << " failed at " << at;
        EXPECT_EQ(gpu->violation_count(), 0u) << each.call << " failed at " << at;
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(planted, 0u);
  RecordProperty("faults_planted", static_cast<int>(planted));
  RecordProperty("faults_reported", static_cast<int>(reported));
}

}  // namespace millpond::testing
