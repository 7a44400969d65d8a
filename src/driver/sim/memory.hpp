// The simulated memory: which addresses exist, what physical memory is behind them, and what each
// kind of call may do to them. It knows nothing of time, streams or contents.
//
// Physical memory is a number line that is never used twice: a range of it is given to each
// allocation and handle, so that whatever is remembered of a range (tags, past users) can never be
// taken for another's. Only the sum is limited, as on a card, where scattered pages serve as well
// as neighbouring ones.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "driver/sim/backing.hpp"
#include "driver/sim/clocks.hpp"
#include "driver/sim/extents.hpp"
#include "driver/sim/interval_map.hpp"
#include "millpond/base/units.hpp"
#include "millpond/driver/driver.hpp"

namespace millpond::sim {

// Sizes beyond this are refused before any rounding could wrap.
inline constexpr std::uint64_t absurd = std::uint64_t{1} << 48;

inline constexpr std::uint64_t page_bytes = 2 * MiB;  // the device's granularity

struct written {};

// One range of physical memory with one owner.
struct physical {
  std::uint64_t base = 0;
  std::uint64_t bytes = 0;
  memory_location location = memory_location::device;
  bool real = false;    // bytes exist behind it
  bool counted = true;  // against its place's limit
  int fd = -1;          // its own file where it is shareable
  std::uint64_t inode = 0;
  driver::shareable share = driver::shareable::no;
  unsigned handles = 0;                     // physical_handle values that name it
  unsigned mappings = 0;                    // regions that show it
  bool host_written = false;                // the CPU or another process may have written it unseen
  interval_map<written> written_by_device;  // where no noted block is: for read_of_unwritten
};

enum class region_kind : std::uint8_t {
  device,
  pinned,
  managed,
  pool_block,
  pool_segment,
  registered,
  mapping
};

// A range of addresses over one physical range (offset: within it).
struct region {
  std::uint64_t bytes = 0;
  std::shared_ptr<physical> memory;
  std::uint64_t offset = 0;
  region_kind kind = region_kind::device;
  bool accessible = true;      // a mapping is not before set_access
  pool_handle pool = nullptr;  // of a pool block or segment
  std::vector<point> touched;  // the last work of each timeline that touches it
  [[nodiscard]] std::uint64_t physical_begin() const noexcept { return memory->base + offset; }
};

// A stretch of an address range in one region.
struct piece {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t physical = 0;
  region* in = nullptr;
};

[[nodiscard]] memory_kind kind_of(const region& r) noexcept;

class memory {
 public:
  struct limits {
    std::uint64_t device_bytes = 0;
    std::uint64_t host_bytes = 0;
  };
  enum class contents : std::uint8_t { tags, bytes };
  static std::unique_ptr<memory> create(limits most, contents mode);
  ~memory();
  memory(const memory&) = delete;
  memory& operator=(const memory&) = delete;

  // Plain kinds. `address` is where it is.
  driver_status allocate_device(std::uint64_t bytes, std::uint64_t& address);
  driver_status allocate_pinned(std::uint64_t bytes, std::uint64_t& address);
  driver_status allocate_managed(std::uint64_t bytes, std::uint64_t& address);
  driver_status register_host(std::uint64_t address, std::uint64_t bytes);
  // Of the kind that lives exactly at this address; the caller has checked that it does.
  void free_region(std::uint64_t address);

  // Pools: a range of addresses, segments of memory that are put behind parts of it, and blocks,
  // which are regions that may lie over several segments. A range's physical numbers go with its
  // addresses.
  driver_status add_range(std::uint64_t bytes, memory_location location, std::uint64_t& address);
  void remove_range(std::uint64_t address);  // its segments are gone
  // [address, address + bytes) of a range, in segments of `step` and a last one of what is left.
  driver_status add_segments(std::uint64_t range, std::uint64_t address, std::uint64_t bytes,
                             std::uint64_t step, pool_handle pool);
  void remove_segment(std::uint64_t address);
  void add_block(std::uint64_t range, std::uint64_t address, std::uint64_t bytes, pool_handle pool);
  void remove_block(std::uint64_t address);

  // Virtual memory.
  driver_status reserve(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t& address);
  driver_status free_reservation(std::uint64_t address, std::uint64_t bytes);
  driver_status create_handle(std::uint64_t bytes, memory_location location,
                              driver::shareable share, physical_handle& handle);
  driver_status release_handle(physical_handle handle);
  driver_status map(std::uint64_t address, std::uint64_t bytes, physical_handle handle);
  // The mappings that [address, address + bytes) covers exactly; empty where it does not.
  [[nodiscard]] std::vector<std::pair<std::uint64_t, region*>> mappings_in(std::uint64_t address,
                                                                           std::uint64_t bytes);
  void unmap(std::uint64_t address);  // one mapping, whole
  driver_status export_handle(physical_handle handle, int& fd);
  driver_status import_handle(int fd, physical_handle& handle);
  [[nodiscard]] const physical* find_handle(physical_handle handle) const;

  // The region that holds an address (a block before its segment); null for memory the driver never
  // saw.
  [[nodiscard]] region* find(std::uint64_t address, std::uint64_t& start);
  // The region that starts there.
  [[nodiscard]] region* find_start(std::uint64_t address);
  // Cuts a range into pieces. False when a part is not accessible to the device; memory that the
  // driver never saw (outside the arena, unregistered) is a piece with no region.
  [[nodiscard]] bool pieces_of(std::uint64_t address, std::uint64_t bytes, std::vector<piece>& out);
  // Whether bytes really exist behind the device's memory.
  [[nodiscard]] bool real() const noexcept { return mode_ == contents::bytes; }
  [[nodiscard]] bool in_arena(std::uint64_t address) const noexcept {
    return backing_->in_arena(address);
  }

  // Called before a physical range is gone for good.
  void on_release(std::function<void(const physical&)> observer) {
    released_ = std::move(observer);
  }

  void set_pressure(std::uint64_t largest_piece, std::uint64_t taken_bytes) noexcept {
    largest_piece_ = largest_piece;
    taken_ = taken_bytes;
  }
  [[nodiscard]] std::uint64_t device_used() const noexcept { return device_used_; }
  [[nodiscard]] std::uint64_t device_peak() const noexcept { return device_peak_; }
  void reset_peak() noexcept { device_peak_ = device_used_; }
  [[nodiscard]] std::uint64_t device_free() const noexcept;
  [[nodiscard]] std::uint64_t device_total() const noexcept { return limits_.device_bytes; }
  [[nodiscard]] std::uint64_t host_used() const noexcept { return host_used_; }
  [[nodiscard]] std::uint64_t count(region_kind kind) const noexcept;
  [[nodiscard]] std::uint64_t handle_count() const noexcept { return handles_.size(); }
  [[nodiscard]] std::uint64_t reservation_count() const noexcept { return reservations_.size(); }

 private:
  memory(limits most, contents mode) : limits_(most), mode_(mode) {}
  driver_status take(std::uint64_t bytes, memory_location location);
  void give(std::uint64_t bytes, memory_location location);
  std::shared_ptr<physical> make_physical(std::uint64_t bytes, memory_location location);
  void drop_physical(const std::shared_ptr<physical>& p);
  bool show(std::uint64_t address, const physical& p);
  driver_status allocate(std::uint64_t bytes, std::uint64_t unit, region_kind kind,
                         memory_location location, std::uint64_t& address);
  driver_status allocate_small(std::uint64_t bytes, std::uint64_t& address);
  void add_region(std::uint64_t address, region r);

  limits limits_;
  contents mode_;
  std::unique_ptr<backing> backing_;
  extents addresses_;
  std::uint64_t next_physical_ = page_bytes;
  std::map<std::uint64_t, region> regions_;                    // every kind but segments and chunks
  std::map<std::uint64_t, region> segments_;                   // of pools
  std::map<std::uint64_t, std::shared_ptr<physical>> ranges_;  // of pools
  std::map<std::uint64_t, std::uint64_t> reservations_;
  struct named_handle {
    std::shared_ptr<physical> memory;
  };
  std::unordered_map<physical_handle, named_handle> handles_;
  physical_handle next_handle_ = 1;
  // Small device allocations share pages of 2 MiB, as cudaMalloc's do.
  struct chunk {
    std::shared_ptr<physical> memory;
    std::uint64_t used = 0;
  };
  std::map<std::uint64_t, chunk> chunks_;
  extents small_;
  std::uint64_t device_used_ = 0, device_peak_ = 0, host_used_ = 0;
  std::uint64_t largest_piece_ = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t taken_ = 0;
  std::uint64_t counts_[7] = {};
  std::function<void(const physical&)> released_;
};

}  // namespace millpond::sim
