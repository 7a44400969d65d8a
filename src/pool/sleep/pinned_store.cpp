// Pinned host memory made fast: huge pages where the system has them, touched by several threads,
// then registered.
#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>

#include "base/bits.hpp"
#include "base/threads.hpp"
#include "driver/insist.hpp"
#include "driver/own_calls.hpp"
#include "millpond/base/units.hpp"
#include "millpond/pool/sleep.hpp"

namespace millpond {
namespace {

constexpr std::uint64_t huge_page = 2 * MiB;
constexpr std::uint64_t base_page = 4 * KiB;

// A leaf: who holds a store changes twice a sleep.
std::mutex& holders() {
  static std::mutex mutex;
  return mutex;
}

void touch(std::byte* from, std::uint64_t bytes) noexcept {
  for (std::uint64_t at = 0; at < bytes; at += base_page) {
    *const_cast<volatile std::byte*>(from + at) = std::byte{0};
  }
}

}  // namespace

result<std::shared_ptr<pinned_store>> pinned_store::create(std::shared_ptr<driver> gpu,
                                                           std::uint64_t bytes, unsigned threads) {
  if (gpu == nullptr || bytes == 0 || bytes > (std::uint64_t{1} << 46)) {
    return error{error_code::invalid_argument,
                 "pinned_store: a driver and a size from 1 byte to 64 TiB are needed"};
  }
  std::shared_ptr<pinned_store> made(new pinned_store(std::move(gpu)));
  const std::uint64_t size = align_up(bytes, huge_page);
  made->mapped_bytes_ = size + huge_page;  // room to begin on a huge page
  void* const at = ::mmap(nullptr, made->mapped_bytes_, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    made->mapped_bytes_ = 0;
    return error{error_code::out_of_memory,
                 "pinned_store: no " + format_bytes(size) + " of host addresses"};
  }
  made->mapping_ = at;
  const auto start = align_up(reinterpret_cast<std::uintptr_t>(at), huge_page);
  made->data_ = reinterpret_cast<std::byte*>(start);
  made->bytes_ = bytes;
  ::madvise(made->data_, size, MADV_HUGEPAGE);  // where the system has none, small pages serve
  ::madvise(
      made->data_, size,
      MADV_DONTFORK);  // the device writes here: a child's copy would be neither cheap nor true
  if (threads == 0) threads = std::clamp(std::thread::hardware_concurrency(), 1u, 16u);
  threads = std::min(threads, most_threads_of_a_call);
  // Whole huge pages a thread, so that no two fault in the same one.
  const std::uint64_t share = align_up(divide_up(size, threads), huge_page);
  {
    joined_threads others;
    for (std::uint64_t from = share; from < size; from += share) {
      const auto work = [at = made->data_ + from, part = std::min(share, size - from)] {
        touch(at, part);
      };
      if (!others.start(work)) work();  // no thread to be had: slower, and no more
    }
    touch(made->data_, std::min(share, size));
  }
  const own_calls_scope own_calls(*made->gpu_);
  if (const call_result answer = made->gpu_->host_register(made->data_, size); !answer.ok()) {
    return to_error(answer, "pinning " + format_bytes(size) + " of host memory");
  }
  made->registered_ = true;
  return made;
}

pinned_store::~pinned_store() {
  if (registered_ && gpu_->alive()) {
    const own_calls_scope own_calls(*gpu_);
    if (!insist([&] { return gpu_->host_unregister(data_); }).ok())
      return;  // the driver still has it: better kept than taken from under a copy
  }
  if (mapped_bytes_ != 0) {
    ::munmap(mapping_, mapped_bytes_);
  }
}

bool pinned_store::hold() noexcept {
  const std::lock_guard lock(holders());
  return !std::exchange(held_, true);
}

void pinned_store::let_go() noexcept {
  const std::lock_guard lock(holders());
  held_ = false;
}

}  // namespace millpond
