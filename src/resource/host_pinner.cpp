#include "millpond/memory/host_pinner.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/bits.hpp"
#include "base/fork.hpp"
#include "base/threads.hpp"
#include "driver/own_calls.hpp"
#include "machine/machine_facts.hpp"
#include "millpond/base/units.hpp"

namespace millpond {
namespace {

constexpr std::uint64_t largest = std::uint64_t{1} << 60;  // more than any machine has
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
  const auto workers =
      static_cast<unsigned>(std::min<std::uint64_t>({threads, pieces, most_threads_of_a_call}));
  std::atomic<std::uint64_t> next{0};  // pieces are independent: the number alone is shared
  const auto work = [&] {
    for (std::uint64_t i = next.fetch_add(1, std::memory_order_relaxed); i < pieces;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      touch(at + i * piece, std::min(piece, bytes - i * piece));
    }
  };
  joined_threads others;
  for (unsigned i = 1; i < workers && others.start(work); ++i) {
    // Where there are fewer, each does more.
  }
  work();
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
  if (options.keep_ready_bytes == 0) return made;
  made->keeper_ = thread_or_none([raw = made.get()] { raw->keep_ready(); });
  if (!made->keeper_.joinable()) {
    made->pin_ahead();
    const std::lock_guard lock(made->mutex_);
    made->ahead_ = ahead::over;
    made->usage_.background_failure =
        "the system has no thread to give to pin ahead with: what was to be ready was pinned once, "
        "by the call that made the pinner";
  }
  return made;
}

host_pinner::host_pinner(std::shared_ptr<driver> gpu, host_pinner_options options,
                         std::uint64_t budget)
    : gpu_(std::move(gpu)), options_(options), budget_(budget), born_in_fork_(fork_count()) {
  options_.keep_ready_bytes = align_up(std::min(options_.keep_ready_bytes, largest), huge_page);
  usage_.budget_bytes = budget;
  if (options_.keep_ready_bytes > 0) ahead_ = ahead::wanted;
}

host_pinner::~host_pinner() {
  if (born_in_fork_ != fork_count()) {  // the thread and the memory did not come along
    if (keeper_.joinable()) keeper_.detach();
    static_cast<void>(changed_.release());  // its end would wait for that thread
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_->notify_all();
  if (keeper_.joinable()) keeper_.join();
  if (ready_ != nullptr && !unpin(ready_, options_.keep_ready_bytes))
    static_cast<void>(unpin(ready_, options_.keep_ready_bytes));
}

bool host_pinner::take_budget(std::uint64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  if (bytes > budget_ || usage_.pinned_bytes > budget_ - bytes) return false;
  usage_.pinned_bytes += bytes;
  return true;
}

error host_pinner::over_budget(std::uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  return {
      error_code::out_of_memory,
      fmt::format("pinning {} more would pass the budget of {} ({} are pinned): raise budget_bytes "
                  "or budget_share, "
                  "free pinned memory, or use pageable memory with staging",
                  format_bytes(bytes), format_bytes(budget_), format_bytes(usage_.pinned_bytes))};
}

// What is pinned ahead, where without it the budget has room for so many bytes. It is not made anew
// before something is freed: it would stand in the way again. False where there is none such.
bool host_pinner::let_ready_go(std::uint64_t bytes) {
  void* at = nullptr;
  {
    std::unique_lock lock(mutex_);
    if (ready_ == nullptr && ahead_ != ahead::runs) return false;
    const std::uint64_t others =
        usage_.pinned_bytes - std::min(usage_.pinned_bytes, options_.keep_ready_bytes);
    if (bytes > budget_ || others > budget_ - bytes) return false;
    changed_->wait(lock, [this] { return ahead_ != ahead::runs; });
    at = std::exchange(ready_, nullptr);
    usage_.ready_bytes = 0;
    if (ahead_ == ahead::there) ahead_ = ahead::waits_for_a_free;
  }
  if (at == nullptr || unpin(at, options_.keep_ready_bytes)) return true;
  const std::lock_guard lock(mutex_);  // the driver keeps it, and so do we
  ready_ = at;
  usage_.ready_bytes = options_.keep_ready_bytes;
  ahead_ = ahead::there;
  return false;
}

// Memory is pinned at moments that the program does not choose, by a thread of its own too: no
// capture may suffer from it.
call_result host_pinner::registered(void* at, std::uint64_t bytes) noexcept {
  const own_calls_scope own_calls(*gpu_);
  if (!own_calls.entered()) return own_calls.entered();
  return gpu_->host_register(at, bytes);
}

// Of budget that was taken, which is given back where pinning fails.
result<void*> host_pinner::pin(std::uint64_t bytes) {
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
  // As long as it is pinned a forked child's copy would be neither cheap, since each page is copied
  // at the fork, nor true, since the device writes here.
  static_cast<void>(::madvise(at, bytes, MADV_DONTFORK));
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
    const own_calls_scope own_calls(*gpu_);
    if (!own_calls.entered())
      return to_error(own_calls.entered(), "unpinning memory, which stays pinned");
    if (const call_result answer = gpu_->host_unregister(at); !answer.ok())
      return to_error(answer, "unpinning memory, which stays pinned");
  }
  ::munmap(at, bytes);
  const std::lock_guard lock(mutex_);
  usage_.pinned_bytes -= bytes;
  return {};
}

result<void*> host_pinner::allocate(std::uint64_t bytes) {
  if (born_in_fork_ != fork_count()) return refused_in_child("host_pinner::allocate");
  if (bytes > largest) {
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
      ahead_ = keeper_.joinable() ? ahead::wanted : ahead::over;
      ++usage_.served_ready;
      usage_.ready_bytes = 0;
    }
  }
  if (at != nullptr) {
    changed_->notify_all();
  } else {
    // Others' frees may have it made ready again meanwhile: let go of a few times, not for ever.
    for (int tries = 0; !take_budget(whole); ++tries) {
      if (tries < 4 && let_ready_go(whole)) continue;
      {
        const std::lock_guard lock(mutex_);
        ++usage_.refused;
      }
      return over_budget(whole);
    }
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
  if (born_in_fork_ != fork_count()) return refused_in_child("host_pinner::free");
  std::map<void*, std::uint64_t>::node_type block;  // goes back as it is where it stays pinned
  {
    const std::lock_guard lock(mutex_);
    block = out_.extract(at);
    if (block.empty())
      return error{error_code::foreign_pointer, "host_pinner: it has not handed out this block"};
    usage_.blocks = out_.size();
  }
  auto done = unpin(at, block.mapped());
  {
    const std::lock_guard lock(mutex_);
    if (!done) {
      out_.insert(std::move(block));
      usage_.blocks = out_.size();
      return done;
    }
    const std::uint64_t ready = options_.keep_ready_bytes;
    if (ahead_ != ahead::waits_for_a_free || ready > budget_ ||
        usage_.pinned_bytes > budget_ - ready)
      return done;
    ahead_ = ahead::wanted;
  }
  changed_->notify_all();
  return done;
}

// The memory that is to be ready. A budget without room for it is waited for; any other refusal is
// the end of it: who asks next learns why.
void host_pinner::pin_ahead() {
  const std::uint64_t bytes = options_.keep_ready_bytes;
  {
    const std::lock_guard lock(mutex_);
    if (ahead_ != ahead::wanted) return;
    ahead_ = ahead::runs;
  }
  const bool room = take_budget(bytes);
  auto pinned = room ? pin(bytes) : result<void*>(over_budget(bytes));
  {
    const std::lock_guard lock(mutex_);
    if (pinned) {
      ready_ = *pinned;
      usage_.ready_bytes = bytes;
      usage_.background_failure.clear();
      ahead_ = ahead::there;
    } else {
      usage_.background_failure = pinned.error().message;
      ahead_ = room ? ahead::over : ahead::waits_for_a_free;
    }
  }
  changed_->notify_all();
}

// The thread that pins ahead.
void host_pinner::keep_ready() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_->wait(lock, [this] { return ending_ || ahead_ == ahead::wanted; });
      if (ending_) return;
    }
    pin_ahead();
  }
}

host_pinner_usage host_pinner::usage() const {
  const std::lock_guard lock(mutex_);
  return usage_;
}

void host_pinner::wait_until_ready() {
  std::unique_lock lock(mutex_);
  changed_->wait(lock,
                 [this] { return ending_ || (ahead_ != ahead::wanted && ahead_ != ahead::runs); });
}

}  // namespace millpond
