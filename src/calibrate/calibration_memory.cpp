// Calibration of the calls that take and give memory.
#include <cstdlib>
#include <cstring>
#include <limits>

#include "calibrate/calibration_bench.hpp"
#include "millpond/base/units.hpp"

namespace millpond::calibration {
namespace {

using times = std::vector<double>;

std::vector<std::uint64_t> up_to(std::uint64_t largest,
                                 std::initializer_list<std::uint64_t> sizes) {
  std::vector<std::uint64_t> kept;
  for (const std::uint64_t size : sizes) {
    if (size <= largest) kept.push_back(size);
  }
  return kept;
}

// A pair of calls, one that takes and one that gives back, by size.
template <class Take, class Give>
void pair_by_size(bench& on, gpu_profile& into, const char* take_name, const char* give_name,
                  const std::vector<std::uint64_t>& sizes, Take&& take, Give&& give) {
  cost_table taking, giving;
  for (const std::uint64_t bytes : sizes) {
    times took, gave;
    on.repeat(
        [&] {
          took.push_back(on.time([&] { return take(bytes); }));
          gave.push_back(on.time([&] { return give(bytes); }));
        },
        {&took, &gave});
    taking.points.push_back(bench::point(bytes, std::move(took)));
    giving.points.push_back(bench::point(bytes, std::move(gave)));
  }
  into.calls[take_name] = std::move(taking);
  into.calls[give_name] = std::move(giving);
}

void measure_registration(bench& on, gpu_profile& into, std::uint64_t largest) {
  const std::vector<std::uint64_t> sizes = up_to(largest, {4 * KiB, MiB, 64 * MiB});
  constexpr std::size_t page = 4096;
  void* const memory = std::aligned_alloc(page, sizes.back());
  if (memory == nullptr) on.need({driver_status::out_of_memory, "aligned_alloc"});
  const at_end freed([&] { std::free(memory); });
  std::memset(memory, 1, sizes.back());  // touched: what is measured is pinning, not first touch
  pair_by_size(
      on, into, "cuMemHostRegister", "cuMemHostUnregister", sizes,
      [&](std::uint64_t bytes) { return on.gpu.host_register(memory, bytes); },
      [&](std::uint64_t) { return on.gpu.host_unregister(memory); });
}

// Managed blocks that the device has written, and small ones beside another.
void measure_used_managed(bench& on, gpu_profile& into, std::uint64_t largest) {
  driver& gpu = on.gpu;
  device_address at = 0;
  cost_table giving;
  for (const std::uint64_t bytes : up_to(largest, {MiB, 16 * MiB, 64 * MiB, 512 * MiB})) {
    times gave;
    on.repeat(
        [&] {
          on.need(gpu.managed_allocate(&at, bytes));
          on.need(gpu.set_async(at, 0x5a, bytes, on.stream));
          on.wait();
          gave.push_back(on.time([&] { return gpu.memory_free(at); }));
        },
        {&gave});
    giving.points.push_back(bench::point(bytes, std::move(gave)));
  }
  into.calls["cuMemFree.managed_resident"] = std::move(giving);
  device_address neighbour = 0;
  on.need(gpu.managed_allocate(&neighbour, KiB));
  const at_end gone([&] { static_cast<void>(gpu.memory_free(neighbour)); });
  pair_by_size(
      on, into, "cuMemAllocManaged.shared", "cuMemFree.managed_shared", {KiB},
      [&](std::uint64_t bytes) { return gpu.managed_allocate(&at, bytes); },
      [&](std::uint64_t) { return gpu.memory_free(at); });
}

}  // namespace

void measure_plain_calls(bench& on, gpu_profile& into, std::uint64_t largest) {
  driver& gpu = on.gpu;
  const std::vector<std::uint64_t> sizes = up_to(largest, {KiB, MiB, 64 * MiB, GiB});
  device_address at = 0;
  void* host = nullptr;
  on.stage("cuMemAlloc", 0.15);
  pair_by_size(
      on, into, "cuMemAlloc", "cuMemFree", sizes,
      [&](std::uint64_t bytes) { return gpu.memory_allocate(&at, bytes); },
      [&](std::uint64_t) { return gpu.memory_free(at); });
  {
    // Beside a small block that lives, so that its page is there already.
    device_address neighbour = 0;
    on.need(gpu.memory_allocate(&neighbour, KiB));
    const at_end gone([&] { static_cast<void>(gpu.memory_free(neighbour)); });
    pair_by_size(
        on, into, "cuMemAlloc.shared", "cuMemFree.shared", {KiB},
        [&](std::uint64_t bytes) { return gpu.memory_allocate(&at, bytes); },
        [&](std::uint64_t) { return gpu.memory_free(at); });
  }
  on.stage("cuMemHostAlloc", 0.2);
  pair_by_size(
      on, into, "cuMemHostAlloc", "cuMemFreeHost", sizes,
      [&](std::uint64_t bytes) {
        return gpu.host_allocate(&host, bytes, driver::host_flags::none);
      },
      [&](std::uint64_t) { return gpu.host_free(host); });
  on.stage("cuMemAllocManaged", 0.35);
  pair_by_size(
      on, into, "cuMemAllocManaged", "cuMemFree.managed", sizes,
      [&](std::uint64_t bytes) { return gpu.managed_allocate(&at, bytes); },
      [&](std::uint64_t) { return gpu.memory_free(at); });
  measure_used_managed(on, into, largest);
  on.stage("cuMemHostRegister", 0.4);
  measure_registration(on, into, largest);

  std::uint64_t free = 0, total = 0;
  into.calls["cuMemGetInfo"] = on.quick([&] { return gpu.memory_info(&free, &total); });
  on.need(gpu.memory_allocate(&at, MiB));
  const at_end given([&] { static_cast<void>(gpu.memory_free(at)); });
  driver::pointer_facts facts;
  into.calls["cuPointerGetAttributes"] = on.quick([&] { return gpu.pointer_info(at, &facts); });
}

namespace {

// Allocations from a pool that has the memory already: the calls alone.
void measure_warm_pool(bench& on, gpu_profile& into, memory_location location, const char* suffix) {
  driver& gpu = on.gpu;
  pool_handle pool = nullptr;
  on.need(gpu.pool_create(&pool, location, 0));
  const at_end destroyed([&] { static_cast<void>(gpu.pool_destroy(pool)); });
  on.need(gpu.pool_set_release_threshold(pool, std::numeric_limits<std::uint64_t>::max()));
  // Many pairs between two synchronises: one pair alone would measure the pool's waking up.
  constexpr int pairs = 200;
  times took, gave;
  const auto round = [&] {
    for (int i = 0; i < pairs; ++i) {
      device_address at = 0;
      took.push_back(on.time([&] { return gpu.pool_allocate(&at, MiB, pool, on.stream); }));
      gave.push_back(on.time([&] { return gpu.pool_free(at, on.stream); }));
    }
    on.wait();
  };
  round();
  took.clear();
  gave.clear();
  for (int i = 0; i < 10; ++i) round();
  into.calls[std::string("cuMemAllocFromPoolAsync") + suffix] = {
      {bench::point(0, std::move(took))}};
  into.calls[std::string("cuMemFreeAsync") + suffix] = {{bench::point(0, std::move(gave))}};
}

// What a pool's growing and giving back add, by the bytes.
void measure_pool_growth(bench& on, gpu_profile& into, std::uint64_t largest) {
  driver& gpu = on.gpu;
  pool_handle pool = nullptr;
  on.need(gpu.pool_create(&pool, memory_location::device, 0));
  const at_end destroyed([&] { static_cast<void>(gpu.pool_destroy(pool)); });
  on.need(gpu.pool_set_release_threshold(pool, std::numeric_limits<std::uint64_t>::max()));
  const double warm = into.calls["cuMemAllocFromPoolAsync"].points.front().p50_ns;
  driver::pool_usage usage;
  for (const std::uint64_t bytes : up_to(largest, {32 * MiB, 64 * MiB, GiB})) {
    times grew, shrank;
    on.repeat(
        [&] {
          device_address at = 0;
          const double took =
              on.time([&] { return gpu.pool_allocate(&at, bytes, pool, on.stream); });
          on.need(gpu.pool_free(at, on.stream));
          on.wait();
          grew.push_back(std::max(0.0, took - warm));
          shrank.push_back(on.time([&] { return gpu.pool_trim(pool, 0); }));
        },
        {&grew, &shrank});
    into.pool_growth.points.push_back(bench::point(bytes, std::move(grew)));
    into.pool_shrink.points.push_back(bench::point(bytes, std::move(shrank)));
  }
  // Pools reserve in steps: what one byte makes them reserve.
  device_address at = 0;
  on.need(gpu.pool_allocate(&at, 1, pool, on.stream));
  on.need(gpu.pool_get_usage(pool, &usage));
  into.pool_step_bytes = usage.reserved;
  on.need(gpu.pool_free(at, on.stream));
  on.wait();
}

}  // namespace

namespace {

// What the first allocation of the process takes beyond the first of another pool.
void measure_first_pool(bench& on, gpu_profile& into) {
  double took[2] = {};
  for (double& each : took) {
    pool_handle pool = nullptr;
    device_address at = 0;
    on.need(on.gpu.pool_create(&pool, memory_location::device, 0));
    const at_end destroyed([&] { static_cast<void>(on.gpu.pool_destroy(pool)); });
    each = on.time([&] { return on.gpu.pool_allocate(&at, MiB, pool, on.stream); });
    on.need(on.gpu.pool_free(at, on.stream));
    on.wait();
  }
  into.calls["cuMemAllocFromPoolAsync.first"] = {
      {bench::point(0, {std::max(0.0, took[0] - took[1])})}};
}

}  // namespace

void measure_pools(bench& on, gpu_profile& into, std::uint64_t largest) {
  driver& gpu = on.gpu;
  measure_first_pool(on, into);
  measure_warm_pool(on, into, memory_location::device, "");
  if (gpu.info().host_granularity != 0) measure_warm_pool(on, into, memory_location::host, ".host");
  measure_pool_growth(on, into, largest);
  pool_handle pool = nullptr;
  pair_by_size(
      on, into, "cuMemPoolCreate", "cuMemPoolDestroy", {0},
      [&](std::uint64_t) { return gpu.pool_create(&pool, memory_location::device, 0); },
      [&](std::uint64_t) { return gpu.pool_destroy(pool); });
  on.need(gpu.pool_create(&pool, memory_location::device, 0));
  const at_end destroyed([&] { static_cast<void>(gpu.pool_destroy(pool)); });
  into.calls["cuMemPoolSetAttribute"] =
      on.quick([&] { return gpu.pool_set_release_threshold(pool, 0); });
  into.calls["cuMemPoolTrimTo"] = on.quick([&] { return gpu.pool_trim(pool, 0); });
}

namespace {

// Handles of one size side by side, as a pool maps them: one handle alone costs less than its share
// in a large mapping does.
class handle_row {
 public:
  handle_row(bench& on, std::uint64_t handle_bytes, std::uint64_t count)
      : on_(on), bytes_(handle_bytes), handles_(count) {
    on_.need(on_.gpu.address_reserve(&at_, total(), 0));
  }
  ~handle_row() {
    // After a failure half-way some of this is refused, and only memory of a run that failed is
    // left.
    if (mapped_ > 0) static_cast<void>(on_.gpu.unmap(at_, mapped_ * bytes_));
    for (const physical_handle each : handles_) {
      if (each != 0) static_cast<void>(on_.gpu.physical_release(each));
    }
    static_cast<void>(on_.gpu.address_free(at_, total()));
  }
  handle_row(const handle_row&) = delete;
  handle_row& operator=(const handle_row&) = delete;

  void round(times& create, times& map, times& access, times& unmap, times& release) {
    driver& gpu = on_.gpu;
    const auto count = static_cast<double>(handles_.size());
    for (physical_handle& each : handles_) {
      create.push_back(on_.time([&] {
        return gpu.physical_create(&each, bytes_, memory_location::device, driver::shareable::no);
      }));
    }
    for (const physical_handle each : handles_) {
      map.push_back(on_.time([&] { return gpu.map(at_ + mapped_ * bytes_, bytes_, each); }));
      ++mapped_;
    }
    access.push_back(
        on_.time([&] { return gpu.set_access(at_, total(), memory_location::device); }) / count);
    unmap.push_back(on_.time([&] { return gpu.unmap(at_, total()); }) / count);
    mapped_ = 0;
    for (physical_handle& each : handles_) {
      release.push_back(on_.time([&] { return gpu.physical_release(each); }));
      each = 0;
    }
  }

 private:
  [[nodiscard]] std::uint64_t total() const { return bytes_ * handles_.size(); }
  bench& on_;
  std::uint64_t bytes_;
  device_address at_ = 0;
  std::vector<physical_handle> handles_;
  std::uint64_t mapped_ = 0;
};

}  // namespace

void measure_virtual_memory(bench& on, gpu_profile& into, std::uint64_t largest) {
  driver& gpu = on.gpu;
  constexpr std::uint64_t most_handles = 64;
  const std::uint64_t granule = gpu.info().granularity;
  cost_table tables[5];
  for (const std::uint64_t factor : {1u, 4u, 16u, 64u, 256u, 512u}) {
    const std::uint64_t bytes = granule * factor;
    if (bytes > largest) break;
    handle_row row(on, bytes, std::clamp<std::uint64_t>(largest / bytes, 1, most_handles));
    times series[5];
    on.repeat([&] { row.round(series[0], series[1], series[2], series[3], series[4]); },
              {&series[0], &series[1], &series[2], &series[3], &series[4]});
    for (std::size_t i = 0; i < 5; ++i) {
      tables[i].points.push_back(bench::point(bytes, std::move(series[i])));
    }
  }
  const char* names[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"};
  for (std::size_t i = 0; i < 5; ++i) into.calls[names[i]] = std::move(tables[i]);
  device_address at = 0;
  pair_by_size(
      on, into, "cuMemAddressReserve", "cuMemAddressFree", up_to(16 * largest, {2 * MiB, 16 * GiB}),
      [&](std::uint64_t bytes) { return gpu.address_reserve(&at, bytes, 0); },
      [&](std::uint64_t bytes) { return gpu.address_free(at, bytes); });
}

}  // namespace millpond::calibration
