#include "bench/support/subjects.hpp"

#include <dlfcn.h>

#include <cstdio>

#include "bench/support/peer.h"

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

}  // namespace

void add_millpond(std::vector<std::unique_ptr<subject>>& to, const std::shared_ptr<driver>& gpu) {
  to.push_back(std::make_unique<millpond_subject>(gpu, way::cache));
  to.push_back(std::make_unique<millpond_subject>(gpu, way::plain));
}

// The plug-in stays loaded until the program ends.
void add_peers(std::vector<std::unique_ptr<subject>>& to, const std::string& file) {
  void* const plugin = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (plugin == nullptr) {
    std::fprintf(stderr, "peer left out: %s\n", ::dlerror());
    return;
  }
  const auto list = reinterpret_cast<millpond_peers_function>(::dlsym(plugin, "millpond_peers"));
  if (list == nullptr) stop_with(3, file + ": exports no millpond_peers");
  for (const millpond_peer* p = list(); p->name != nullptr; ++p)
    to.push_back(std::make_unique<peer_subject>(*p));
}

}  // namespace millpond::bench
