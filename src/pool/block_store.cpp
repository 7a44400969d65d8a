#include "pool/block_store.hpp"

#include <algorithm>
#include <new>

#include "millpond/base/units.hpp"
#include "pool/cache/thread_cache.hpp"

namespace millpond {
namespace {

// What mapping costs does not grow with the pool, so neither does what is kept to save it.
constexpr std::uint64_t slack_counts_to = 3 * GiB;
// A pool of a few MiB would otherwise empty its caches for every other request.
constexpr std::uint64_t least_slack = 8 * MiB;
// Of the peak: less than this is out of the heap in a lull.
constexpr std::uint64_t lull_share = 16;
// Carvings, so that a loop over one large block does not pay for a lull each time.
constexpr std::uint64_t between_lulls = 256;

}  // namespace

heap::extent* block_store::locked::carve(const block_request& what, bool runs) const {
  if (__builtin_expect(!of_.phase_.serving(), 0)) return nullptr;
  heap::heap& in = of_.heap_;
  const heap::zone from = what.size_class != large_class ? heap::zone::small : heap::zone::general;
  heap::extent* block =
      in.allocate(what.size, what.alignment, what.owner, heap::reach::own_and_idle, from);
  if (block == nullptr && runs) block = in.allocate_run(what.size, what.alignment, what.owner);
  if (block == nullptr) return nullptr;
  take(*block, what);
#if defined(MILLPOND_AUDIT)
  in.check();
#endif
  return block;
}

void block_store::locked::take(heap::extent& block, const block_request& what) const noexcept {
  block.holder_class = what.size_class;
  of_.carved_ += block.bytes;
  of_.peak_carved_ = std::max(of_.peak_carved_, of_.carved_);
  ++of_.carvings_;
  of_.misses_.carved();
  if (of_.carved_ > of_.peak_carved_ / 2) of_.was_busy_ = true;
  of_.reserved_lately_.store(of_.reserved_, std::memory_order_relaxed);
  if (__builtin_expect(of_.ages_ != nullptr, 0)) of_.ages_->touch(block.start(), block.bytes);
}

void block_store::locked::put_back(heap::extent& block, heap::owner_id owner, std::uint64_t batch,
                                   heap::absorb_idle absorb) const noexcept {
  of_.carved_ -= block.bytes;
  set_state(block, block_state::none);
  of_.heap_.release(&block, owner, batch, absorb);
}

void block_store::locked::add_reserved(std::uint64_t bytes) const noexcept {
  of_.reserved_ += bytes;
  of_.peak_reserved_ = std::max(of_.peak_reserved_, of_.reserved_);
}

void block_store::locked::forget_peak() const noexcept {
  of_.peak_of_all_ = peak_of_all();
  of_.peak_carved_ = of_.carved_;
  of_.fallen_ = 0;
  of_.misses_.forget_reclaims();
  note_growth();
}

std::uint64_t block_store::locked::slack_bytes(std::uint64_t size,
                                               std::uint32_t times) const noexcept {
  const double peak = static_cast<double>(
      std::min(std::max(of_.peak_carved_, of_.carved_ + size), slack_counts_to));
  return std::max(static_cast<std::uint64_t>(of_.slack_ * times * peak), least_slack);
}

// Where threads queue the slack counts once for each. Where reclaiming does not end it counts from
// what is reserved.
std::uint64_t block_store::locked::allowed_bytes(std::uint64_t size) const noexcept {
  const std::uint64_t peak = std::max(of_.peak_carved_, of_.carved_ + size);
  const std::uint64_t granted = std::min(of_.misses_.granted_bytes(),
                                         peak + slack_bytes(size, miss_budget::most_slack_times));
  return std::max(peak + slack_bytes(size, of_.misses_.slack_times()), granted);
}

bool block_store::locked::passes_slack(std::uint64_t size, std::uint64_t new_bytes) const noexcept {
  const auto passes = [&] { return of_.reserved_ + new_bytes > allowed_bytes(size); };
  if (!passes()) return false;
  of_.misses_.reclaimed(of_.reserved_, slack_bytes(size, 1));
  return passes();
}

span_ages& block_store::locked::ages() const {
  if (of_.ages_ == nullptr) of_.ages_ = std::make_unique<span_ages>();
  return *of_.ages_;
}

void block_store::release(const stream_state& freed_on, heap::extent* chain) noexcept {
  std::uint64_t bytes = 0;
  for (const heap::extent* block = chain; block != nullptr; block = block->link)
    bytes += block->bytes;
  const locked books(*this);
  const heap::absorb_idle absorb = many_streams() ? heap::absorb_idle::no : heap::absorb_idle::yes;
  const std::uint64_t batch = freed_on.batches->join(bytes);
  while (chain != nullptr) {
    heap::extent* const block = chain;
    chain = block->link;
    books.put_back(*block, freed_on.owner, batch, absorb);
  }
  fallen_ = std::max(fallen_, peak_carved_ - carved_);
  // Nearly all has been given back: what caches keep is then what holds the pool in pieces, and the
  // next request begins with emptying them.
  if (was_busy_ && carved_ < peak_carved_ / lull_share && carvings_ >= between_lulls) {
    was_busy_ = false;
    carvings_ = 0;
    lull_.store(true, std::memory_order_relaxed);
  }
}

// Nothing where the heap knows already: with many streams the lock would be taken for each of them.
void block_store::retire(stream_state& stream) noexcept {
  const std::uint64_t completed = stream.batches->completed();
  if (stream.retired.load(std::memory_order_relaxed) >= completed) return;
  const locked books(*this);
  books.heap().retire(stream.owner, completed);
  stream.retired.store(completed, std::memory_order_relaxed);
}

heap::owner_id block_store::new_owner() {
  const locked books(*this);
  if (free_owners_.empty()) {
    free_owners_.reserve(next_owner_ + 1);  // so that giving one back needs no host memory
    if (!heap_.open_owner(next_owner_)) throw std::bad_alloc();
    return next_owner_++;
  }
  const heap::owner_id out = free_owners_.back();
  free_owners_.pop_back();
  return out;
}

}  // namespace millpond
