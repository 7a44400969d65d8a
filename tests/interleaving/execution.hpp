// One execution of a small program of two or three threads: what each atomic has held, what each
// thread knows of it, and who runs. docs/internals/interleaving.md says what of the C++ memory
// model is here and what is not.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <source_location>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "interleaving/baton.hpp"
#include "interleaving/explore.hpp"

namespace interleaving {

inline constexpr unsigned most_threads = 4;  // with the one that sets up and looks at the end: 0
inline constexpr unsigned most_locations = 112;

// What an atomic object keeps of itself. Its history is the execution's that used it last.
struct location {
  std::uint64_t value = 0;            // the newest
  std::uint64_t run = 0;              // the execution that knows it
  std::uint32_t index = 0;            // there
  std::uint32_t maker = 0, made = 0;  // where a thread made it: a plain write
};

// What a plain field keeps: when each thread wrote and read it last.
struct plain_field {
  std::uint64_t run = 0;
  std::uint32_t writer = 0, written = 0;
  std::array<std::uint32_t, most_threads> read{};
};

// What a thread knows, or what a store carries: how far it has seen the other threads (happens
// before), and the oldest store of each location that may still be read (coherence).
struct knowledge {
  std::array<std::uint32_t, most_threads> seen{};
  // As `seen`, by every store that was read, in whatever order: what has led to here.
  std::array<std::uint32_t, most_threads> past{};
  std::array<std::uint16_t, most_locations> oldest{};
  void join(const knowledge& other) noexcept;
  void join_oldest(const knowledge& other) noexcept;
};

// Where the code makes an operation, and which: an order is weakened by it.
struct site {
  const char* operation;
  std::source_location at;
};

// The sites of an exploration, each named once.
class site_table {
 public:
  explicit site_table(const options& how) noexcept : how_(how) {}
  // What an operation's order is in this exploration.
  std::memory_order order_of(const site& at, std::memory_order order);
  // Whether one of these names it, without its order.
  [[nodiscard]] static bool is_one_of(const std::vector<std::string>& names, const site& at);
  [[nodiscard]] const std::set<std::string>& names() const noexcept { return names_; }

 private:
  const options& how_;
  std::unordered_map<std::uint64_t, std::memory_order> orders_;
  std::set<std::string> names_;
};

using batons = std::array<baton, most_threads>;

class execution {
 public:
  execution(const options& given, site_table& sites, std::vector<std::uint8_t> prefix, bool logs);
  execution(const execution&) = delete;
  execution& operator=(const execution&) = delete;

  // Of the thread that runs. nullptr where no program is explored.
  static execution* current() noexcept;

  // Memory.
  void make(location& of);
  std::uint64_t load(location& of, std::memory_order order, const site& at);
  void store(location& to, std::uint64_t value, std::memory_order order, const site& at);
  std::uint64_t modify(location& of, std::memory_order order, const site& at,
                       const std::function<std::uint64_t(std::uint64_t)>& change);
  enum class strength : std::uint8_t { strong, weak };
  bool compare_exchange(location& of, std::uint64_t* expected, std::uint64_t desired,
                        std::memory_order success, std::memory_order failure, strength how,
                        const site& at);
  void wait(location& on, std::uint64_t old, std::memory_order order, const site& at);
  void notify(location& on, std::size_t most, const site& at);
  void fence(std::memory_order order, const site& at);
  // Every other thread passes a full fence between two of its steps, this one before and after.
  void barrier_of_all();
  // Time passes: every other thread makes `steps` more steps, or ends, or waits. All that it stored
  // before is then seen by all.
  void let_pass(unsigned steps);
  void yield();
  void read_plain(plain_field& of);
  void write_plain(plain_field& of);
  struct mutex_state {
    std::uint64_t run = 0;
    bool held = false;
    knowledge released{};
  };
  void lock(mutex_state& of);
  bool try_lock(mutex_state& of);
  void unlock(mutex_state& of);

  // The thread that explores: makes the program, hands it to the threads and looks at its end.
  void begin_setup() noexcept;
  void run_threads(unsigned count, batons& theirs, baton& ended);
  void end() noexcept;
  // A thread of the program, from 1, which has got its baton for the first time.
  void run_thread(unsigned me, const std::function<void()>& body);
  // Does not come back in a thread of the program: that thread stays where it is for ever, since
  // the code under test may not throw.
  void fail(const std::string& why);

  [[nodiscard]] bool failed() const noexcept { return failed_; }
  [[nodiscard]] const std::string& message() const noexcept { return message_; }
  [[nodiscard]] const std::string& steps() const noexcept { return log_; }
  struct choice {
    std::uint8_t picked, count;
  };
  [[nodiscard]] const std::vector<choice>& choices() const noexcept { return choices_; }

 private:
  struct stored {
    std::uint64_t value = 0;
    knowledge carried{};  // by whoever acquires it
  };
  struct loaded {
    std::uint32_t thread, when;
    site at;
  };
  struct history {
    std::vector<stored> stores;
    std::vector<loaded> loads;  // each thread's since it stored here
  };
  struct thread_state {
    knowledge now{}, to_acquire{}, released{};
    std::function<bool()> waits_for;  // empty: it can run
    bool done = false;
    bool notified = false;
    const location* waits_on = nullptr;  // in wait(), until it is notified
    std::uint64_t steps = 0;
    std::uint32_t last_location = none, last_store = 0;  // that it read
  };

  static constexpr std::uint32_t none = ~std::uint32_t{0};
  static constexpr std::uint64_t most_steps = 20'000;  // of an execution: more has no end

  history& history_of(location& of);
  std::uint64_t take_in(location& of, std::uint32_t index, std::memory_order order);
  void put(location& to, std::uint64_t value, std::memory_order order, const knowledge* continued,
           const site& at);
  void note_load(location& of, std::uint32_t index, const site& at);
  void look_for_later_store(const history& of, const site& at);
  std::uint32_t pick_store(location& of, std::memory_order order);
  void end_of_step() noexcept;
  thread_state& self() noexcept;

  // A step begins: another thread may come before it.
  void step();
  void block(std::function<bool()> until);
  [[nodiscard]] unsigned choose(std::size_t count);
  [[nodiscard]] std::vector<unsigned> others() const;  // that can run
  void hand_over(unsigned to);
  void see_all();
  void log(const site& at, std::memory_order order, const location* of, std::uint64_t value,
           std::size_t newer = 0);

  const options& options_;
  site_table& sites_;
  std::vector<std::uint8_t> prefix_;
  std::vector<choice> choices_;
  const std::uint64_t run_;
  bool scheduling_ = false;
  bool failed_ = false;
  const bool logs_;
  std::uint64_t steps_ = 0;
  unsigned preemptions_ = 0, stale_ = 0, spurious_ = 0;
  std::vector<history> histories_;
  std::array<thread_state, most_threads> threads_{};
  unsigned count_ = 0;  // of the program's threads, which are 1 to count_
  knowledge total_;     // the total order of seq_cst: what it makes visible (oldest alone)
  std::string message_, log_;
  batons* batons_ = nullptr;
  baton* ended_ = nullptr;
};

// The text that names an operation, as options::weakened has it: "biased_lock::enter load acquire".
[[nodiscard]] std::string name_of(const site& at, std::memory_order order);
[[nodiscard]] std::string_view name_of(std::memory_order order) noexcept;

}  // namespace interleaving
