// A mutex that the compiler knows: Clang's thread-safety analysis (-Wthread-safety) then refuses to
// compile a member that is touched without the lock that guards it. Other compilers see plain code.
// https://clang.llvm.org/docs/ThreadSafetyAnalysis.html
#pragma once
#include <mutex>
#include <shared_mutex>

#if defined(__clang__)
#define MILLPOND_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define MILLPOND_THREAD_SAFETY(attribute)
#endif
// The member may be touched only under the lock.
#define MILLPOND_GUARDED_BY(lock) MILLPOND_THREAD_SAFETY(guarded_by(lock))
// The function is called under the lock.
#define MILLPOND_REQUIRES(lock) MILLPOND_THREAD_SAFETY(requires_capability(lock))

namespace millpond {

class MILLPOND_THREAD_SAFETY(capability("mutex")) mutex {
 public:
  void lock() MILLPOND_THREAD_SAFETY(acquire_capability()) { in_.lock(); }
  void unlock() MILLPOND_THREAD_SAFETY(release_capability()) { in_.unlock(); }

 private:
  std::mutex in_;
};

// One that several readers may hold at once.
class MILLPOND_THREAD_SAFETY(capability("mutex")) shared_mutex {
 public:
  void lock() MILLPOND_THREAD_SAFETY(acquire_capability()) { in_.lock(); }
  void unlock() MILLPOND_THREAD_SAFETY(release_capability()) { in_.unlock(); }
  void lock_shared() MILLPOND_THREAD_SAFETY(acquire_shared_capability()) { in_.lock_shared(); }
  void unlock_shared() MILLPOND_THREAD_SAFETY(release_shared_capability()) { in_.unlock_shared(); }

 private:
  std::shared_mutex in_;
};

// std::lock_guard for either.
template <class Mutex>
class MILLPOND_THREAD_SAFETY(scoped_lockable) scoped_mutex_lock {
 public:
  explicit scoped_mutex_lock(Mutex& of) MILLPOND_THREAD_SAFETY(acquire_capability(of)) : of_(of) {
    of_.lock();
  }
  ~scoped_mutex_lock() MILLPOND_THREAD_SAFETY(release_capability()) { of_.unlock(); }
  scoped_mutex_lock(const scoped_mutex_lock&) = delete;
  scoped_mutex_lock& operator=(const scoped_mutex_lock&) = delete;

 private:
  Mutex& of_;
};
using mutex_lock = scoped_mutex_lock<mutex>;
using exclusive_mutex_lock = scoped_mutex_lock<shared_mutex>;

// std::shared_lock for the second.
class MILLPOND_THREAD_SAFETY(scoped_lockable) shared_mutex_lock {
 public:
  explicit shared_mutex_lock(shared_mutex& of) MILLPOND_THREAD_SAFETY(acquire_shared_capability(of))
      : of_(of) {
    of_.lock_shared();
  }
  ~shared_mutex_lock() MILLPOND_THREAD_SAFETY(release_generic_capability()) { of_.unlock_shared(); }
  shared_mutex_lock(const shared_mutex_lock&) = delete;
  shared_mutex_lock& operator=(const shared_mutex_lock&) = delete;

 private:
  shared_mutex& of_;
};

}  // namespace millpond
