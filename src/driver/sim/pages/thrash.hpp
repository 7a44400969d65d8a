// Pages that go to and fro: how the driver notices them, and what it does. Kept by page, as
// uvm_perf_thrashing.c of open-gpu-kernel-modules keeps it, for those blocks alone that have been
// on both sides within one lapse.
#pragma once
#include <bitset>
#include <cstdint>
#include <vector>

#include "driver/sim/pages/costs.hpp"

namespace millpond::sim::pages {

using page_mask = std::bitset<pages_a_block>;

enum class side : std::uint8_t { none, host, device };

class thrash_state {
 public:
  // What a fault on a page is to do.
  struct hint {
    enum class kind : std::uint8_t { none, throttle, pin } what = kind::none;
    double until_ns = 0;  // of throttle: the fault waits so long
  };

  // Pages have moved to one side because of a fault, their neighbours by the prefetcher with them.
  // Two moves of a page within a lapse are an event; from the third event on it is thrashing, until
  // it stays longer than a lapse.
  void moved(const page_mask& pages, side to, double now_ns, const page_costs& costs);
  // A fault of one side on a page. Of a thrashing page one side may have it for a lapse and the
  // other waits; after ten such waits it is to be pinned.
  [[nodiscard]] hint ask(unsigned page, side by, double now_ns, const page_costs& costs);
  // The pages were moved by a call, or are duplicated: what was known of them is void.
  void forget(const page_mask& pages);

  // Not moved by the prefetcher.
  [[nodiscard]] const page_mask& thrashing() const noexcept { return thrashing_; }
  // Pins that have run out; the pages are as any others again.
  [[nodiscard]] page_mask unpin(double now_ns);

 private:
  struct page {
    double moved_ns = -1;  // the last move; less than 0: none
    double throttled_until_ns = -1;
    double pinned_until_ns = 0;
    unsigned events = 0;
    unsigned throttles = 0;
    side spared = side::none;  // who does not wait in the period that runs
    bool host_waits = false, device_waits = false;
  };
  void forget_one(unsigned number);

  std::vector<page> pages_;  // none before the block has been on both sides within a lapse
  double moved_ns_ = -1;     // the block's last move
  side moved_to_ = side::none;
  double thrashed_ns_ = -1;  // the last event of a thrashing page
  unsigned resets_ = 0;
  bool ever_pinned_ = false;
  page_mask thrashing_, pinned_;
};

}  // namespace millpond::sim::pages
