#include "bench/support/harness.hpp"

#include <dlfcn.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <thread>

#include "bench/support/peer.h"
#include "driver/null/null_driver.hpp"
#include "millpond/sim/simulated_gpu.hpp"
#include "millpond_commit.hpp"

namespace millpond::bench {
namespace {

enum class way : std::uint8_t { plain, cache };

class pool_session final : public session {
 public:
  pool_session(pool& of, stream_handle stream) : pool_(of), stream_(stream) {}
  void* allocate(std::uint64_t bytes) override { return pool_.allocate(bytes, stream_); }
  void deallocate(void* ptr, std::uint64_t bytes) override {
    pool_.deallocate(ptr, bytes, stream_);
  }

 private:
  pool& pool_;
  stream_handle stream_;
};
class cache_session final : public session {
 public:
  cache_session(pool& of, stream_handle stream) : cache_(of.cache(stream)) {}
  void* allocate(std::uint64_t bytes) override { return cache_.allocate(bytes); }
  void deallocate(void* ptr, std::uint64_t bytes) override { cache_.deallocate(ptr, bytes); }

 private:
  pool::cache_handle cache_;
};

class millpond_subject final : public subject {
 public:
  millpond_subject(std::shared_ptr<driver> gpu, way how) : gpu_(std::move(gpu)), how_(how) {}
  std::string name() const override {
    return how_ == way::plain ? "millpond" : "millpond cache handle";
  }
  bool start(std::string& why) override {
    auto made = pool::create(gpu_, {});
    if (!made) {
      why = made.error().message;
      return false;
    }
    pool_ = *made;
    return true;
  }
  void stop() override { pool_.reset(); }
  std::unique_ptr<session> open(stream_handle stream) override {
    if (how_ == way::plain) return std::make_unique<pool_session>(*pool_, stream);
    return std::make_unique<cache_session>(*pool_, stream);
  }
  std::uint64_t reserved() override { return pool_->statistics().peak_reserved_bytes; }
  pool* millpond_pool() override { return pool_.get(); }

 private:
  std::shared_ptr<driver> gpu_;
  way how_;
  std::shared_ptr<pool> pool_;
};

class peer_session final : public session {
 public:
  peer_session(const millpond_peer& of, void* self, stream_handle stream)
      : of_(of), self_(self), stream_(stream) {}
  void* allocate(std::uint64_t bytes) override { return of_.allocate(self_, bytes, stream_); }
  void deallocate(void* ptr, std::uint64_t bytes) override {
    of_.deallocate(self_, ptr, bytes, stream_);
  }

 private:
  const millpond_peer& of_;
  void* self_;
  stream_handle stream_;
};
class peer_subject final : public subject {
 public:
  explicit peer_subject(const millpond_peer& of) : of_(of) {}
  std::string name() const override { return of_.name; }
  bool start(std::string& why) override {
    const char* reason = "";
    self_ = of_.create(&reason);
    why = reason;
    return self_ != nullptr;
  }
  void stop() override {
    of_.destroy(self_);
    self_ = nullptr;
  }
  std::unique_ptr<session> open(stream_handle stream) override {
    return std::make_unique<peer_session>(of_, self_, stream);
  }
  std::uint64_t reserved() override { return of_.reserved(self_); }

 private:
  const millpond_peer& of_;
  void* self_ = nullptr;
};

[[noreturn]] void stop_with(int status, const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(status);
}

}  // namespace

harness::harness(const char* name, int count, char** arguments) {
  CLI::App app(std::string("millpond benchmark: ") + name);
  app.add_option("--peer", options_.peer_files,
                 "plug-in with peers (peer_cuda.so, peer_rmm.so, peer_torch.so)");
  app.add_option("--only", options_.only, "only allocators whose name holds this");
  app.add_option("--out", options_.out, "result file (JSON)");
  app.add_option("--gpu", options_.gpu,
                 "device number, sim, or null (calls that answer at once: the pool's own cost)")
      ->capture_default_str();
  app.add_option("--seed", options_.seed, "of random choices")->capture_default_str();
  app.add_option("--scale", options_.scale, "share of the full number of operations")
      ->capture_default_str();
  app.add_option("--seconds", options_.seconds, "how long, where the benchmark runs for a time");
  app.add_flag("--paced", options_.paced,
               "recordings keep their pauses, and a kernel writes each block on its stream");
  app.add_option("inputs", options_.inputs, "input files, where the benchmark takes some");
  try {
    app.parse(count, arguments);
  } catch (const CLI::ParseError& e) {
    std::exit(app.exit(e) == 0 ? 0 : 2);
  }
  if (options_.gpu == "sim") {
    auto made = simulated_gpu::create();
    if (!made) stop_with(4, made.error().message);
    gpu_ = *made;
  } else if (options_.gpu == "null") {
    gpu_ = std::make_shared<null_driver>();
  } else {
    auto made = open_cuda_driver(std::atoi(options_.gpu.c_str()));
    if (!made) stop_with(4, made.error().message);
    gpu_ = *made;
  }
  if (!gpu_->bind_thread().ok()) stop_with(4, "cannot bind the device");
  subjects_.push_back(std::make_unique<millpond_subject>(gpu_, way::cache));
  subjects_.push_back(std::make_unique<millpond_subject>(gpu_, way::plain));
  for (const std::string& file : options_.peer_files) {
    void* const plugin = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (plugin == nullptr) {
      std::fprintf(stderr, "peer left out: %s\n", ::dlerror());
      continue;
    }
    plugins_.push_back(plugin);
    const auto list = reinterpret_cast<millpond_peers_function>(::dlsym(plugin, "millpond_peers"));
    if (list == nullptr) stop_with(3, file + ": exports no millpond_peers");
    for (const millpond_peer* p = list(); p->name != nullptr; ++p)
      subjects_.push_back(std::make_unique<peer_subject>(*p));
  }
  std::erase_if(subjects_, [this](const auto& s) {
    return s->name().find(options_.only) == std::string::npos;
  });
  std::vector<float> cost;
  for (int i = 0; i < 20000; ++i) {
    const std::uint64_t a = now_ns();
    const std::uint64_t b = now_ns();
    cost.push_back(static_cast<float>(b - a));
  }
  clock_ns_ = percentile(cost, 0.5);
  result_ = {{"benchmark", name},
             {"gpu", {{"name", gpu_->info().name}, {"simulated", gpu_->simulated()}}},
             {"driver", gpu_->info().driver_version},
             {"commit", MILLPOND_COMMIT},
             {"compiler", MILLPOND_COMPILER},
             {"seed", options_.seed},
             {"scale", options_.scale},
             {"paced", options_.paced},
             {"host_threads", std::thread::hardware_concurrency()},
             {"clock_ns", clock_ns_},
             {"rows", nlohmann::json::array()}};
  if (gpu_->simulated())
    std::printf(
        "no card: the times below are of this host and of the simulator or the null driver\n");
  std::printf("%s on %s, commit %s, one reading of the clock %.1f ns\n", name,
              gpu_->info().name.c_str(), MILLPOND_COMMIT, clock_ns_);
}

harness::~harness() {
  save();
}

// After each row, so that a peer that ends the process takes nothing with it.
void harness::save() const {
  if (options_.out.empty()) return;
  std::ofstream file(options_.out);
  file << result_.dump(1) << '\n';
  if (!file) stop_with(3, options_.out + ": cannot be written");
}

std::uint64_t harness::operations(std::uint64_t full) const {
  return std::max<std::uint64_t>(
      1, static_cast<std::uint64_t>(static_cast<double>(full) * options_.scale));
}

void harness::add(nlohmann::json row) {
  std::string line;
  for (const auto& [key, value] : row.items())
    line += key + " " + (value.is_string() ? value.get<std::string>() : value.dump()) + "  ";
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  result_["rows"].push_back(std::move(row));
  save();
}

double percentile(std::vector<float>& values, double share) {
  if (values.empty()) return 0;
  const auto at = static_cast<std::size_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return static_cast<double>(values[at]);
}

void on_threads(driver& gpu, unsigned threads, const std::function<void(unsigned)>& work) {
  std::vector<std::thread> all;
  for (unsigned t = 0; t < threads; ++t) {
    all.emplace_back([&gpu, &work, t] {
      static_cast<void>(gpu.bind_thread());
      work(t);
    });
  }
  for (std::thread& t : all) t.join();
}

}  // namespace millpond::bench
