#include "millpond/memory/host_pinner.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/bits.hpp"
#include "driver/relaxed_capture.hpp"
#include "machine/machine_facts.hpp"
#include "millpond/base/units.hpp"

namespace millpond {
namespace {

constexpr std::uint64_t huge_page = 2 * MiB;
constexpr std::uint64_t small_page = 4 * KiB;
constexpr std::uint64_t piece = 16 * MiB;  // what one thread touches at a time
constexpr unsigned most_threads = 16;

// mbind(2) with MPOL_PREFERRED: pages come from the node while it has some. Not informed of
// failure: a kernel without NUMA refuses, and then there is one node.
void prefer_node(void* at, std::uint64_t bytes, int node) noexcept {
#ifdef SYS_mbind
  constexpr int preferred = 1;
  if (node < 0 || node >= 64) return;
  const unsigned long mask = 1ul << node;
  static_cast<void>(::syscall(SYS_mbind, at, bytes, preferred, &mask, 64ul, 0u));
#else
  static_cast<void>(at), static_cast<void>(bytes), static_cast<void>(node);
#endif
}

void touch(char* from, std::uint64_t bytes) noexcept {
  for (std::uint64_t i = 0; i < bytes; i += small_page) *static_cast<volatile char*>(from + i) = 0;
}

void touch_by_many(char* at, std::uint64_t bytes, unsigned threads) {
  const std::uint64_t pieces = divide_up(bytes, piece);
  const auto workers = static_cast<unsigned>(std::min<std::uint64_t>(threads, pieces));
  std::atomic<std::uint64_t> next{0};  // pieces are independent: the number alone is shared
  const auto work = [&] {
    for (std::uint64_t i = next.fetch_add(1, std::memory_order_relaxed); i < pieces;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      touch(at + i * piece, std::min(piece, bytes - i * piece));
    }
  };
  std::vector<std::thread> others;
  for (unsigned i = 1; i < workers; ++i) {
    try {
      others.emplace_back(work);
    } catch (const std::system_error&) {
      break;  // fewer threads are slower and no more
    }
  }
  work();
  for (std::thread& each : others) each.join();
}

// An aligned anonymous mapping; null where there are no addresses.
char* map_aligned(std::uint64_t bytes) noexcept {
  void* const got = ::mmap(nullptr, bytes + huge_page, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) return nullptr;
  auto* const start = static_cast<char*>(got);
  auto* const aligned =
      reinterpret_cast<char*>(align_up(reinterpret_cast<std::uint64_t>(start), huge_page));
  if (aligned > start) ::munmap(start, static_cast<std::size_t>(aligned - start));
  char* const end = start + bytes + huge_page;
  if (end > aligned + bytes)
    ::munmap(aligned + bytes, static_cast<std::size_t>(end - (aligned + bytes)));
  return aligned;
}

}  // namespace

result<std::shared_ptr<host_pinner>> host_pinner::create(std::shared_ptr<driver> gpu,
                                                         host_pinner_options options) {
  if (options.budget_bytes == 0 && !(options.budget_share > 0 && options.budget_share <= 1)) {
    return error{error_code::invalid_argument,
                 fmt::format("host_pinner: budget_share is {}, expected more than 0 and at most 1",
                             options.budget_share)};
  }
  std::uint64_t budget = options.budget_bytes;
  if (budget == 0) {
    const host_facts host = read_host_facts("");
    std::uint64_t memory = host.ram_bytes.value_or(0);
    if (host.memory_limit_bytes)
      memory = memory == 0 ? *host.memory_limit_bytes : std::min(memory, *host.memory_limit_bytes);
    if (memory == 0) {
      return error{
          error_code::not_supported,
          "host_pinner: how much memory the machine has cannot be read; give budget_bytes"};
    }
    budget = static_cast<std::uint64_t>(options.budget_share * static_cast<double>(memory));
  }
  if (options.threads == 0)
    options.threads = std::clamp(std::thread::hardware_concurrency(), 1u, most_threads);
  if (options.numa_node < 0) options.numa_node = gpu->info().host_numa_id;
  std::shared_ptr<host_pinner> made(new host_pinner(std::move(gpu), options, budget));
  if (options.keep_ready_bytes > 0)
    made->keeper_ = std::thread([raw = made.get()] { raw->keep_ready(); });
  return made;
}

host_pinner::host_pinner(std::shared_ptr<driver> gpu, host_pinner_options options,
                         std::uint64_t budget)
    : gpu_(std::move(gpu)), options_(options), budget_(budget) {
  options_.keep_ready_bytes = align_up(options_.keep_ready_bytes, huge_page);
  usage_.budget_bytes = budget;
  making_ready_ = options_.keep_ready_bytes > 0;
}

host_pinner::~host_pinner() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (keeper_.joinable()) keeper_.join();
  if (ready_ != nullptr) static_cast<void>(unpin(ready_, options_.keep_ready_bytes));
}

result<void> host_pinner::take_budget(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes <= budget_ && usage_.pinned_bytes <= budget_ - bytes) {
    usage_.pinned_bytes += bytes;
    return {};
  }
  ++usage_.refused;
  return error{
      error_code::out_of_memory,
      fmt::format("pinning {} more would pass the budget of {} ({} are pinned): raise budget_bytes "
                  "or budget_share, "
                  "free pinned memory, or use pageable memory with staging",
                  format_bytes(bytes), format_bytes(budget_), format_bytes(usage_.pinned_bytes))};
}

// Memory is pinned at moments that the program does not choose, by a thread of its own too: no
// capture may suffer from it.
call_result host_pinner::registered(void* at, std::uint64_t bytes) noexcept {
  const relaxed_capture_scope relaxed(*gpu_);
  if (!relaxed.entered()) return relaxed.entered();
  call_result answer = gpu_->host_register(at, bytes);
  if (answer.status == driver_status::invalid_context && gpu_->bind_thread().ok())
    answer = gpu_->host_register(at, bytes);
  return answer;
}

result<void*> host_pinner::pin(std::uint64_t bytes) {
  if (auto taken = take_budget(bytes); !taken) return taken.error();
  const auto give_back = [&] {
    const std::lock_guard lock(mutex_);
    usage_.pinned_bytes -= bytes;
  };
  char* const at = map_aligned(bytes);
  if (at == nullptr) {
    give_back();
    return error{error_code::out_of_memory,
                 fmt::format("pinning {}: mmap: {}", format_bytes(bytes), std::strerror(errno))};
  }
  if (options_.pages == host_pinner_options::huge_pages::advised)
    static_cast<void>(::madvise(at, bytes, MADV_HUGEPAGE));
  prefer_node(at, bytes, options_.numa_node);
  touch_by_many(at, bytes, options_.threads);
  const call_result answer = registered(at, bytes);
  if (answer.ok()) return static_cast<void*>(at);
  ::munmap(at, bytes);
  give_back();
  error why = to_error(answer, fmt::format("pinning {}", format_bytes(bytes)));
  const host_facts host = read_host_facts("");
  if (host.memlock_bytes.value_or(unlimited_bytes) < bytes) {
    why.code = error_code::out_of_memory;
    why.message +=
        fmt::format("; this process may lock {} (ulimit -l), which is less: raise the limit",
                    format_bytes(*host.memlock_bytes));
  }
  return why;
}

result<void> host_pinner::unpin(void* at, std::uint64_t bytes) noexcept {
  if (gpu_->alive()) {
    const relaxed_capture_scope relaxed(*gpu_);
    if (!relaxed.entered())
      return to_error(relaxed.entered(), "unpinning memory, which stays pinned");
    call_result answer = gpu_->host_unregister(at);
    if (answer.status == driver_status::invalid_context && gpu_->bind_thread().ok())
      answer = gpu_->host_unregister(at);
    if (!answer.ok()) return to_error(answer, "unpinning memory, which stays pinned");
  }
  ::munmap(at, bytes);
  const std::lock_guard lock(mutex_);
  usage_.pinned_bytes -= bytes;
  return {};
}

result<void*> host_pinner::allocate(std::uint64_t bytes) {
  if (bytes > (std::uint64_t{1} << 60)) {
    return error{error_code::out_of_memory,
                 fmt::format("pinning {}: no machine has that much", format_bytes(bytes))};
  }
  const std::uint64_t whole = align_up(std::max<std::uint64_t>(bytes, 1), huge_page);
  void* at = nullptr;
  std::uint64_t size = whole;
  {
    const std::lock_guard lock(mutex_);
    // Of what is ready at most half may be wasted.
    if (ready_ != nullptr && whole <= options_.keep_ready_bytes &&
        whole > options_.keep_ready_bytes / 2) {
      at = ready_;
      size = options_.keep_ready_bytes;
      ready_ = nullptr;
      making_ready_ = true;
      ++usage_.served_ready;
      usage_.ready_bytes = 0;
    }
  }
  if (at != nullptr) {
    changed_.notify_all();
  } else {
    auto pinned = pin(whole);
    if (!pinned) return pinned;
    at = *pinned;
  }
  const std::lock_guard lock(mutex_);
  out_.emplace(at, size);
  usage_.blocks = out_.size();
  return at;
}

result<void> host_pinner::free(void* at, std::uint64_t) noexcept {
  std::uint64_t size = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = out_.find(at);
    if (found == out_.end())
      return error{error_code::foreign_pointer, "host_pinner: it has not handed out this block"};
    size = found->second;
    out_.erase(found);
    usage_.blocks = out_.size();
  }
  auto done = unpin(at, size);
  if (!done) {
    const std::lock_guard lock(mutex_);
    out_.emplace(at, size);
    usage_.blocks = out_.size();
  }
  return done;
}

// The thread that pins ahead. A refusal ends it: who asks next learns why.
void host_pinner::keep_ready() {
  static_cast<void>(gpu_->bind_thread());
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ending_ || making_ready_; });
      if (ending_) return;
    }
    auto pinned = pin(options_.keep_ready_bytes);
    const std::lock_guard lock(mutex_);
    making_ready_ = false;
    if (pinned) {
      ready_ = *pinned;
      usage_.ready_bytes = options_.keep_ready_bytes;
    } else {
      usage_.background_failure = pinned.error().message;
      ending_ = true;
    }
    changed_.notify_all();
  }
}

host_pinner_usage host_pinner::usage() const {
  const std::lock_guard lock(mutex_);
  return usage_;
}

void host_pinner::wait_until_ready() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !making_ready_ || ending_; });
}

}  // namespace millpond
