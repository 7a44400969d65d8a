#include "strategies.hpp"

#include <dlfcn.h>
#include <millpond/base/units.hpp>
#include <millpond/pinned/pinned_pool.hpp>
#include <millpond/pool/pool.hpp>
#include <millpond/sim/simulated_gpu.hpp>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <string>

#include "peer.h"

namespace inference {
namespace {

namespace mp = millpond;
using mp::device_address;

enum class activations : std::uint8_t { plain, managed, driver_pool, driver_pool_kept };
enum class buffers : std::uint8_t { pageable, pinned, managed };
enum class controls : std::uint8_t { copied, managed, mapped };
enum class weight_place : std::uint8_t { device, as_activations };

device_address address(void* at) {
  return reinterpret_cast<device_address>(at);
}

// What all strategies but millpond's own have in common: the driver's plain calls, and a list of
// what to free.
class common : public strategy {
 public:
  std::string begin(const surroundings& where) override {
    at_ = where;
    return {};
  }
  void end() override {
    static_cast<void>(at_.gpu->context_synchronize());
    for (const device_address each : plain_) static_cast<void>(at_.gpu->memory_free(each));
    for (void* each : pinned_) static_cast<void>(at_.gpu->host_free(each));
    for (void* each : pageable_) std::free(each);
    plain_.clear();
    pinned_.clear();
    pageable_.clear();
  }

 protected:
  device_address device(std::uint64_t bytes) {
    device_address at = 0;
    if (!at_.gpu->memory_allocate(&at, bytes).ok()) return 0;
    plain_.push_back(at);
    return at;
  }
  device_address managed(std::uint64_t bytes) {
    device_address at = 0;
    if (!at_.gpu->managed_allocate(&at, bytes).ok()) return 0;
    plain_.push_back(at);
    return at;
  }
  void* host(buffers kind, std::uint64_t bytes) {
    if (kind == buffers::managed) return reinterpret_cast<void*>(managed(bytes));
    void* at = nullptr;
    if (kind == buffers::pageable) {
      at = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
      pageable_.push_back(at);
    } else if (at_.gpu->host_allocate(&at, bytes, mp::driver::host_flags::none).ok()) {
      pinned_.push_back(at);
    }
    return at;
  }
  control_data make_control(controls kind, buffers io) {
    control_data made;
    if (kind == controls::copied) {
      made.host = static_cast<unsigned char*>(
          host(io == buffers::managed ? buffers::pinned : io, control_bytes));
      made.device = device(control_bytes);
      made.copied = true;
    } else {
      made.managed = kind == controls::managed;
      made.host = static_cast<unsigned char*>(
          host(made.managed ? buffers::managed : buffers::pinned, control_bytes));
      made.device = address(made.host);
    }
    return made;
  }

  surroundings at_;

 private:
  std::vector<device_address> plain_;
  std::vector<void*> pinned_, pageable_;
};

// A strategy by the driver's own calls.
class by_driver final : public common {
 public:
  by_driver(const char* name, const char* meaning, activations a, buffers b, controls c,
            weight_place w)
      : name_(name), meaning_(meaning), activations_(a), buffers_(b), controls_(c), weights_(w) {}
  std::string name() const override { return name_; }
  std::string meaning() const override { return meaning_; }
  std::string begin(const surroundings& where) override {
    if (auto why = common::begin(where); !why.empty()) return why;
    const bool needs_managed = activations_ == activations::managed ||
                               buffers_ == buffers::managed || controls_ == controls::managed;
    if (needs_managed && !where.gpu->info().concurrent_managed_access)
      return "the device has no concurrent managed access";
    if (activations_ != activations::driver_pool && activations_ != activations::driver_pool_kept)
      return {};
    if (!where.gpu->info().memory_pools) return "the device has no memory pools";
    if (!where.gpu->pool_create(&pool_, mp::memory_location::device, 0).ok())
      return "the driver makes no pool";
    if (activations_ == activations::driver_pool_kept) {
      static_cast<void>(
          where.gpu->pool_set_release_threshold(pool_, std::numeric_limits<std::uint64_t>::max()));
    }
    return {};
  }
  void end() override {
    for (const device_address each : pool_weights_)
      static_cast<void>(at_.gpu->pool_free(each, at_.streams[0]));
    pool_weights_.clear();
    common::end();
    if (pool_ != nullptr) static_cast<void>(at_.gpu->pool_destroy(pool_));
    pool_ = nullptr;
  }
  device_address take(std::size_t stream, std::uint64_t bytes) override {
    device_address at = 0;
    mp::call_result answer;
    if (activations_ == activations::plain)
      answer = at_.gpu->memory_allocate(&at, bytes);
    else if (activations_ == activations::managed)
      answer = at_.gpu->managed_allocate(&at, bytes);
    else
      answer = at_.gpu->pool_allocate(&at, bytes, pool_, at_.streams[stream]);
    return answer.ok() ? at : 0;
  }
  void give(std::size_t stream, device_address at, std::uint64_t) override {
    if (pool_ != nullptr)
      static_cast<void>(at_.gpu->pool_free(at, at_.streams[stream]));
    else
      static_cast<void>(at_.gpu->memory_free(at));
  }
  device_address weights(std::uint64_t bytes) override {
    if (weights_ == weight_place::device || activations_ == activations::plain)
      return device(bytes);
    if (activations_ == activations::managed) return managed(bytes);
    const device_address at = take(0, bytes);
    if (at != 0) pool_weights_.push_back(at);
    return at;
  }
  void* client_buffer(std::uint64_t bytes) override { return host(buffers_, bytes); }
  bool managed_buffers() const override { return buffers_ == buffers::managed; }
  control_data control(std::size_t) override { return make_control(controls_, buffers_); }

 private:
  const char* name_;
  const char* meaning_;
  activations activations_;
  buffers buffers_;
  controls controls_;
  weight_place weights_;
  mp::pool_handle pool_ = nullptr;
  std::vector<device_address> pool_weights_;
};

// What millpond gives; the rest is as a plug-in's strategy has it, so that each part can be
// reported from the others.
struct millpond_parts {
  bool activations =
      true;  // from the pool, by caches of each stream; else from the driver's kept pool
  bool one_size = true;  // every activation a block of the largest size; else of its own
  bool weights = true;   // from the pool; else cudaMalloc
  bool pinned = true;  // clients' buffers and control data from the pinned pool; else cudaHostAlloc
};

class by_millpond final : public common {
 public:
  by_millpond(const char* name, const char* meaning, millpond_parts parts)
      : name_(name), meaning_(meaning), parts_(parts) {}
  std::string name() const override { return name_; }
  std::string meaning() const override { return meaning_; }
  bool by_name_only() const override {
    return !(parts_.activations && parts_.one_size && parts_.weights && parts_.pinned);
  }
  std::string begin(const surroundings& where) override {
    if (auto why = common::begin(where); !why.empty()) return why;
    // A server knows its largest batch: what it will need is taken before the first request, so
    // that none waits for growth. With one size for all activations, and caches that keep a
    // batch's, each stream has the same blocks again and again: no search, no event, and no more
    // memory than the largest batches need. With sizes of their own a quarter more is taken for
    // blocks that one stream has freed and another may not have yet.
    mp::pool_options options;
    if (parts_.activations)
      options.initial_bytes = where.most_bytes + (parts_.one_size ? 0 : where.most_bytes / 4);
    if (parts_.one_size) options.cache_large_bytes = blocks_a_cache * where.largest_bytes;
    auto device = mp::pool::create(where.gpu, std::move(options));
    if (!device) return device.error().message;
    device_ = std::move(*device);
    auto pinned = mp::make_pinned_pool(where.gpu);
    if (!pinned) return pinned.error().message;
    pinned_ = std::move(*pinned);
    for (const mp::stream_handle stream : where.streams) {
      caches_.emplace_back();
      const std::size_t caches =
          parts_.one_size ? (where.activations + blocks_a_cache - 1) / blocks_a_cache : 1;
      for (std::size_t i = 0; i < caches; ++i) caches_.back().of.push_back(device_->cache(stream));
    }
    if (!parts_.activations) {
      if (!where.gpu->info().memory_pools ||
          !where.gpu->pool_create(&pool_, mp::memory_location::device, 0).ok())
        return "the driver makes no pool";
      static_cast<void>(
          where.gpu->pool_set_release_threshold(pool_, std::numeric_limits<std::uint64_t>::max()));
    }
    if (const auto* simulated = dynamic_cast<mp::simulated_gpu*>(where.gpu.get())) {
      const auto& paths = simulated->profile().allocator_path_ns;
      const auto cost = [&](const char* path) {
        return paths.contains(path) ? paths.find(path)->second : 0.0;
      };
      own_ns_ = parts_.activations ? cost("thread_cache_hit") + cost("deallocation") : 0;
    }
    return {};
  }
  void end() override {
    static_cast<void>(at_.gpu->context_synchronize());
    caches_.clear();
    for (const auto& [at, bytes] : kept_) device_->deallocate(at, bytes, at_.streams[0]);
    for (const auto& [at, bytes] : kept_pinned_) pinned_->deallocate(at, bytes, at_.streams[0]);
    kept_.clear();
    kept_pinned_.clear();
    device_.reset();
    pinned_.reset();
    common::end();
    if (pool_ != nullptr) static_cast<void>(at_.gpu->pool_destroy(pool_));
    pool_ = nullptr;
  }
  device_address take(std::size_t stream, std::uint64_t bytes) override {
    device_address at = 0;
    if (pool_ != nullptr)
      return at_.gpu->pool_allocate(&at, bytes, pool_, at_.streams[stream]).ok() ? at : 0;
    try {
      stream_caches& caches = caches_[stream];
      return address(caches.next(caches.taken).allocate(size_of(bytes)));
    } catch (const std::exception&) {
      return 0;
    }
  }
  void give(std::size_t stream, device_address at, std::uint64_t bytes) override {
    if (pool_ != nullptr) {
      static_cast<void>(at_.gpu->pool_free(at, at_.streams[stream]));
      return;
    }
    stream_caches& caches = caches_[stream];
    caches.next(caches.given).deallocate(reinterpret_cast<void*>(at), size_of(bytes));
    if (caches.given == caches.taken) caches.given = caches.taken = 0;
  }
  device_address weights(std::uint64_t bytes) override {
    if (!parts_.weights) return device(bytes);
    auto got = device_->try_allocate(bytes, mp::default_alignment, at_.streams[0]);
    if (!got) return 0;
    kept_.emplace_back(*got, bytes);
    return address(*got);
  }
  void* client_buffer(std::uint64_t bytes) override {
    return parts_.pinned ? from_pinned_pool(bytes) : host(buffers::pinned, bytes);
  }
  control_data control(std::size_t) override {
    if (!parts_.pinned) return make_control(controls::mapped, buffers::pinned);
    auto* const at = static_cast<unsigned char*>(from_pinned_pool(control_bytes));
    return {at, address(at), false, false};
  }
  double own_ns() const override { return own_ns_; }
  std::string counted() const override {
    const mp::pool_statistics s = device_->statistics();
    const auto number = [](const char* what, std::uint64_t count) {
      return std::to_string(count) + " " + what;
    };
    return number("allocations", s.allocations) + ", " + number("by a cache", s.thread_cache_hits) +
           ", " + number("by a stream_cache", s.stream_cache_hits) + ", " +
           number("by the heap", s.heap_hits) + "; " + number("events", s.seals) + ", " +
           number("questions", s.fence_queries) + ", " + number("growths", s.growths) + ", " +
           number("stitches", s.stitches) + "; " + mp::format_bytes(s.peak_reserved_bytes) +
           " reserved";
  }

 private:
  // How many large blocks one cache keeps.
  static constexpr std::size_t blocks_a_cache = 8;
  // Enough caches for a batch's activations, which come back in the order in which they were taken.
  struct stream_caches {
    std::vector<mp::pool::cache_handle> of;
    std::size_t taken = 0, given = 0;
    mp::pool::cache_handle& next(std::size_t& counted) {
      return of[counted++ / blocks_a_cache % of.size()];
    }
  };
  std::uint64_t size_of(std::uint64_t bytes) const {
    return parts_.one_size ? std::max(bytes, at_.largest_bytes) : bytes;
  }

  void* from_pinned_pool(std::uint64_t bytes) {
    auto got = pinned_->try_allocate(bytes, mp::default_alignment, at_.streams[0]);
    if (!got) return nullptr;
    kept_pinned_.emplace_back(*got, bytes);
    return *got;
  }

  const char* name_;
  const char* meaning_;
  millpond_parts parts_;
  mp::pool_handle pool_ = nullptr;
  std::shared_ptr<mp::pool> device_, pinned_;
  std::vector<stream_caches> caches_;
  std::vector<std::pair<void*, std::uint64_t>> kept_, kept_pinned_;
  double own_ns_ = 0;
};

// Another allocator, from a plug-in; the rest as in the best of the driver's strategies.
class by_peer final : public common {
 public:
  explicit by_peer(const millpond_peer& of) : of_(of) {}
  std::string name() const override { return of_.name; }
  std::string meaning() const override {
    return "activations from this allocator; pinned buffers, control data in mapped pinned memory";
  }
  std::string begin(const surroundings& where) override {
    static_cast<void>(common::begin(where));
    if (where.gpu->simulated()) return "a plug-in needs a card";
    const char* why = "";
    self_ = of_.create(&why);
    return self_ != nullptr ? std::string() : std::string(why);
  }
  void end() override {
    common::end();
    if (self_ != nullptr) of_.destroy(self_);
    self_ = nullptr;
  }
  device_address take(std::size_t stream, std::uint64_t bytes) override {
    return address(of_.allocate(self_, bytes, at_.streams[stream]));
  }
  void give(std::size_t stream, device_address at, std::uint64_t bytes) override {
    of_.deallocate(self_, reinterpret_cast<void*>(at), bytes, at_.streams[stream]);
  }
  device_address weights(std::uint64_t bytes) override { return device(bytes); }
  void* client_buffer(std::uint64_t bytes) override { return host(buffers::pinned, bytes); }
  control_data control(std::size_t) override {
    return make_control(controls::mapped, buffers::pinned);
  }

 private:
  const millpond_peer& of_;
  void* self_ = nullptr;
};

}  // namespace

std::vector<std::unique_ptr<strategy>> own_strategies() {
  std::vector<std::unique_ptr<strategy>> all;
  const auto add = [&](const char* name, const char* meaning, activations a, buffers b, controls c,
                       weight_place w) {
    all.push_back(std::make_unique<by_driver>(name, meaning, a, b, c, w));
  };
  add("per-request", "cudaMalloc and cudaFree for each batch, pageable buffers", activations::plain,
      buffers::pageable, controls::copied, weight_place::device);
  add("managed", "cudaMallocManaged for everything, for each batch", activations::managed,
      buffers::managed, controls::managed, weight_place::as_activations);
  add("driver-pool", "cudaMallocAsync with the default threshold (0), pinned buffers",
      activations::driver_pool, buffers::pinned, controls::copied, weight_place::as_activations);
  add("driver-pool-kept", "cudaMallocAsync keeping its memory, pinned buffers",
      activations::driver_pool_kept, buffers::pinned, controls::copied,
      weight_place::as_activations);
  add("control-managed",
      "weights by cudaMalloc, activations from the kept driver pool, control data managed",
      activations::driver_pool_kept, buffers::pinned, controls::managed, weight_place::device);
  add("control-pinned", "the same with control data in mapped pinned memory",
      activations::driver_pool_kept, buffers::pinned, controls::mapped, weight_place::device);
  const auto add_millpond = [&](const char* name, const char* meaning, millpond_parts parts) {
    all.push_back(std::make_unique<by_millpond>(name, meaning, parts));
  };
  add_millpond("millpond",
               "weights and activations from the pool, activations as blocks of the largest one's "
               "size that their stream's caches keep; "
               "clients' buffers and control data from the pinned pool",
               {});
  add_millpond("millpond-exact", "the same with each activation a block of its own size",
               {.one_size = false});
  add_millpond("millpond-activations",
               "activations from the pool; the rest as the plug-ins have it",
               {.weights = false, .pinned = false});
  add_millpond("millpond-weights", "weights from the pool; the rest as control-pinned has it",
               {.activations = false, .pinned = false});
  add_millpond(
      "millpond-pinned",
      "clients' buffers and control data from the pinned pool; the rest as control-pinned has it",
      {.activations = false, .weights = false});
  return all;
}

bool add_peers(const std::string& file, std::vector<std::unique_ptr<strategy>>& to,
               std::string& why) {
  void* const loaded = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  const auto list =
      loaded != nullptr
          ? reinterpret_cast<millpond_peers_function>(::dlsym(loaded, "millpond_peers"))
          : nullptr;
  if (list == nullptr) {
    const char* said = ::dlerror();
    why = said != nullptr ? said : "it exports no millpond_peers";
    return false;
  }
  for (const millpond_peer* each = list(); each->name != nullptr; ++each)
    to.push_back(std::make_unique<by_peer>(*each));
  return true;
}

}  // namespace inference
