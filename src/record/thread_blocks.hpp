// Memory that a thread keeps from call to call, too large for the static storage of a library that
// is loaded late. A thread that ends leaves its block to the next one, so that there are never more
// than threads at one time.
#pragma once
#include <pthread.h>

#include <mutex>
#include <new>
#include <vector>

namespace millpond::record {

// `slot` gives the calling thread's own pointer, which this alone sets.
template <class Block, Block*& (*slot)() noexcept>
class thread_blocks {
 public:
  // Null where there is no memory for one.
  static Block* mine() noexcept {
    Block*& at = slot();
    return at != nullptr ? at : take(at);
  }

 private:
  struct spare_blocks {
    std::mutex mutex;
    std::vector<Block*> blocks;
    pthread_key_t key{};
    bool has_key = false;
    spare_blocks() noexcept { has_key = pthread_key_create(&key, give_back) == 0; }
  };
  // Never destroyed: threads may end after everything else.
  static spare_blocks& spare() {
    static auto* made = new spare_blocks();
    return *made;
  }
  __attribute__((noinline)) static Block* take(Block*& at) noexcept {
    try {
      spare_blocks& from = spare();
      {
        const std::lock_guard lock(from.mutex);
        if (!from.blocks.empty()) {
          at = from.blocks.back();
          from.blocks.pop_back();
        }
      }
      if (at == nullptr) at = new Block();
      if (from.has_key) pthread_setspecific(from.key, at);
    } catch (...) {
      // The caller goes without.
    }
    return at;
  }
  static void give_back(void* block) {
    slot() = nullptr;
    try {
      const std::lock_guard lock(spare().mutex);
      spare().blocks.push_back(static_cast<Block*>(block));
    } catch (...) {
      delete static_cast<Block*>(block);
    }
  }
};

}  // namespace millpond::record
