// The ladder: the ways to a block where no cache has one, cheapest first. An allocation walks it
// from the heap to growth; where neither free memory nor growth serves the request it walks on
// under pressure, and each of those steps reports what it gained. At the end stands out_of_memory
// with the whole report.
#include <algorithm>

#include "driver/own_calls.hpp"
#include "pool/core.hpp"

namespace millpond {
namespace {

// From here on an allocation of a pool with several streams asks the fences before it takes a
// place. Without that, large blocks of several streams spread over all that was ever free: a
// recorded workload of four streams needed four times as many moves.
constexpr std::uint64_t worth_asking = std::uint64_t{4} << 20;
constexpr int most_growths = 8;     // of one allocation: each time another thread took the room
constexpr int most_callbacks = 16;  // of one allocation

}  // namespace

// One climb for one request, and its books.
class pool::core::climb {
 public:
  climb(core& in, const block_request& what, thread_cache* refill)
      : in_(in),
        what_(what),
        refill_(refill),
        many_(in.blocks_.many_streams() && in.options_.reuse != reuse_policy::same_stream) {}

  heap::extent* from_heap();  // the first step, for whoever needs no more
  result<heap::extent*> walk();

 private:
  // A step answers a block, or nullptr: then the next one is taken.
  using take = heap::extent* (climb::*)();
  enum class when : std::uint8_t {
    always,
    beyond_slack,    // rather than reserve more than the slack allows
    under_pressure,  // there is no more memory to reserve; the step is reported
  };
  struct step {
    when taken;
    take from;
  };
  static const step steps[];

  heap::extent* asked_fences();
  heap::extent* caches();
  heap::extent* stitched();
  heap::extent* fences_about_to_pass();
  heap::extent* behind_another_stream();
  heap::extent* growth();
  heap::extent* fences();
  heap::extent* all_caches();
  heap::extent* unused_spans();
  heap::extent* other_members();
  heap::extent* waiting();
  heap::extent* callback();

  [[nodiscard]] heap::extent* carved() { return in_.blocks_.carve(what_); }
  heap::extent* grown(bool* more = nullptr);
  [[nodiscard]] heap::extent* carved_or_grown() {
    heap::extent* const block = carved();
    return block != nullptr ? block : grown();
  }
  void fence_all() {
    in_.streams_.fence_context();
    in_.streams_.poll();
  }
  void flush() {
    in_.caches_.flush_for_memory();
    flushed_ = true;
  }

  // What a step under pressure gained.
  void note(const char* name, std::uint64_t gained_bytes);
  template <class Take>
  void note_freed(const char* name, Take&& step) {  // what became usable while it ran
    const std::uint64_t before = usable();
    step();
    const std::uint64_t after = usable();
    note(name, after > before ? after - before : 0);
  }
  [[nodiscard]] std::uint64_t usable();

  core& in_;
  const block_request& what_;
  thread_cache* const refill_;
  const bool many_;  // streams that may serve each other
  bool flushed_ = false;
  std::vector<ladder_step> gained_;
};

const pool::core::climb::step pool::core::climb::steps[] = {
    {when::always, &climb::asked_fences},
    {when::beyond_slack, &climb::caches},
    {when::beyond_slack, &climb::stitched},
    {when::beyond_slack, &climb::fences_about_to_pass},
    {when::beyond_slack, &climb::behind_another_stream},
    {when::always, &climb::growth},
    {when::under_pressure, &climb::fences},
    {when::under_pressure, &climb::all_caches},
    {when::under_pressure, &climb::unused_spans},
    {when::under_pressure, &climb::other_members},
    {when::under_pressure, &climb::waiting},
    {when::under_pressure, &climb::callback},
};

result<heap::extent*> pool::core::acquire(const block_request& what, thread_cache* refill) {
  climb up(*this, what, refill);
  if (heap::extent* const block = up.from_heap()) return block;
  return up.walk();
}

result<heap::extent*> pool::core::climb::walk() {
  const miss_budget::visit queueing(in_.blocks_.misses());
  const own_calls_scope own_calls(*in_.gpu_);
  bool slack_known = false;
  bool passes_slack = false;
  for (const step& s : steps) {
    if (s.taken == when::beyond_slack) {
      if (!slack_known) passes_slack = in_.memory_.would_pass_slack(what_);
      slack_known = true;
      if (!passes_slack) continue;
    }
    if (s.taken == when::under_pressure && !in_.serving()) return in_.not_serving();
    if (heap::extent* const block = (this->*s.from)()) return block;
  }
  in_.out_of_memory_.fetch_add(1, std::memory_order_relaxed);
  return in_.out_of_memory_report(what_, std::move(gained_));
}

// To growth
// ----------------------------------------------------------------------------

heap::extent* pool::core::climb::from_heap() {
  if (in_.blocks_.take_lull()) in_.caches_.flush_for_memory();
  if (refill_ != nullptr) {
    // Asking goes over all streams, so the more there are the rarer it is done.
    if (many_ && what_.size >= worth_asking &&
        refill_->counts.misses.get() % (1 + in_.streams_.count() / 16) == 0)
      in_.streams_.poll_when_free();
    if (what_.size_class == large_class && in_.caches_.streaks_count())
      in_.caches_.missed_large(*refill_, what_.size);
  }
  return in_.caches_.carve(what_, refill_);
}

heap::extent* pool::core::climb::asked_fences() {
  if (in_.caches_.streaks_count()) in_.streams_.reclaim_streaks(what_.stream);
  if (many_) {
    in_.streams_.wish_for_seals();
    in_.streams_.poll();
  }
  return carved();
}

// What caches keep may be what holds a stretch in pieces.
heap::extent* pool::core::climb::caches() {
  const bool flushes = many_ || in_.blocks_.misses().may_flush();
  using unsealed = stream_directory::unsealed;
  const bool much = many_ && what_.stream != nullptr &&
                    in_.streams_.worth_a_context_fence(unsealed::lately_freed, what_.stream);
  if (flushes) flush();
  if (many_) {
    if (what_.stream != nullptr) in_.caches_.seal(*what_.stream);
    if (much || in_.streams_.worth_a_context_fence(unsealed::of_gone, nullptr))
      in_.streams_.fence_context();
    in_.streams_.poll();
  }
  heap::extent* const block = carved();
  if (flushes) in_.blocks_.misses().flushed(block != nullptr);
  return block;
}

// Where pages can be moved nothing is added; where not, the caches are emptied after all.
heap::extent* pool::core::climb::stitched() {
  if (flushed_ || in_.memory_.granularity() == 0) return nullptr;
  if (heap::extent* const block = in_.memory_.stitched(what_)) return block;
  flush();
  heap::extent* const block = carved();
  in_.blocks_.misses().flushed(block != nullptr);
  return block;
}

heap::extent* pool::core::climb::fences_about_to_pass() {
  return many_ ? in_.streams_.block_by_asking(what_) : nullptr;
}

heap::extent* pool::core::climb::behind_another_stream() {
  return in_.options_.reuse == reuse_policy::may_wait && what_.stream != nullptr
             ? in_.streams_.block_behind_a_wait(what_)
             : nullptr;
}

heap::extent* pool::core::climb::growth() {
  if (in_.memory_.past_soft_limit(what_.size)) in_.memory_.relieve(what_.size);
  for (int tries = 0; tries < most_growths; ++tries) {
    bool more = false;
    if (heap::extent* const block = grown(&more); block != nullptr || !more) return block;
  }
  return nullptr;
}

// One growth, and what it made room for. more: another thread took that.
heap::extent* pool::core::climb::grown(bool* more) {
  heap::extent* block = nullptr;
  const physical_memory::growth how = in_.memory_.grow(what_, &block);
  in_.set_cache_limits();
  if (how == physical_memory::growth::more) block = carved();
  if (more != nullptr) *more = how == physical_memory::growth::more;
  return block;
}

// Under pressure
// ----------------------------------------------------------------------------

void pool::core::climb::note(const char* name, std::uint64_t gained_bytes) {
  const auto known = std::find_if(gained_.begin(), gained_.end(),
                                  [&](const ladder_step& s) { return s.name == name; });
  ladder_step& books = known != gained_.end() ? *known : gained_.emplace_back();
  books.name = name;
  ++books.times;
  books.gained_bytes += gained_bytes;
}

std::uint64_t pool::core::climb::usable() {
  const block_store::locked books(in_.blocks_);
  return books.heap().free_bytes(heap::anyone) +
         (what_.owner == heap::anyone ? 0 : books.heap().free_bytes(what_.owner));
}

heap::extent* pool::core::climb::fences() {
  note_freed("fences", [&] {
    in_.captures_.empty_arenas();
    fence_all();
  });
  return carved();
}

heap::extent* pool::core::climb::all_caches() {
  note_freed("caches", [&] {
    flush();
    fence_all();
  });
  return carved();
}

// Spans that are free but in the wrong places make room for one that is in the right place.
heap::extent* pool::core::climb::unused_spans() {
  if (in_.memory_.granularity() == 0) return nullptr;
  const std::uint64_t given = in_.memory_.give_back(0);
  note("unused spans", given);
  return given > 0 ? carved_or_grown() : nullptr;
}

heap::extent* pool::core::climb::other_members() {
  if (in_.memory_.budget() == nullptr) return nullptr;
  const std::uint64_t given = in_.memory_.reclaim_from_others(what_.size);
  note("other members", given);
  return given > 0 ? carved_or_grown() : nullptr;
}

heap::extent* pool::core::climb::waiting() {
  const pool_options& options = in_.options_;
  if (options.max_wait_ns == 0 || options.reuse == reuse_policy::same_stream) return nullptr;
  const std::uint64_t begun = options.clock ? options.clock() : 0;
  const std::uint64_t deadline =
      begun + std::min(options.max_wait_ns, ~std::uint64_t{0} - begun);  // "for ever" stays so
  for (;;) {
    bool passed = false;
    note_freed("waiting", [&] { passed = in_.streams_.wait_for_one(deadline); });
    if (!passed) return nullptr;
    if (heap::extent* const block = carved()) return block;
    if (heap::extent* const block = unused_spans()) return block;
    if (options.clock && options.clock() >= deadline) return nullptr;
  }
}

heap::extent* pool::core::climb::callback() {
  for (int calls = 0; calls < most_callbacks && in_.options_.on_pressure; ++calls) {
    in_.pressure_callbacks_.fetch_add(1, std::memory_order_relaxed);
    bool retry = false;
    note_freed("callback", [&] {
      retry = in_.options_.on_pressure(what_.size);
      if (!retry) return;
      in_.caches_.flush(nullptr);
      fence_all();
    });
    if (!retry) return nullptr;
    if (heap::extent* const block = carved_or_grown()) return block;
  }
  return nullptr;
}

}  // namespace millpond
