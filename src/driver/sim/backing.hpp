// The real memory behind the simulated one: an arena of addresses that only the simulator uses, and
// one sparse memory file. A physical range is a range of the file (or a file of its own where
// another process may get it), mapped wherever the simulated memory is mapped, so that two mappings
// are one memory.
#pragma once
#include <cstdint>
#include <memory>

namespace millpond::sim {

class backing {
 public:
  // Null where the system gives neither addresses nor a memory file.
  static std::unique_ptr<backing> create();
  ~backing();
  backing(const backing&) = delete;
  backing& operator=(const backing&) = delete;

  [[nodiscard]] std::uint64_t arena_begin() const noexcept { return begin_; }
  [[nodiscard]] std::uint64_t arena_end() const noexcept { return end_; }
  [[nodiscard]] bool in_arena(std::uint64_t address) const noexcept {
    return address >= begin_ && address < end_;
  }
  // Maps bytes of a file (`fd`, or the common file for -1) readable and writable. False when the
  // system refuses, most often because the process has too many mappings (vm.max_map_count).
  [[nodiscard]] bool attach(std::uint64_t address, std::uint64_t bytes, int fd,
                            std::uint64_t offset) noexcept;
  // The addresses stay reserved and become inaccessible.
  void detach(std::uint64_t address, std::uint64_t bytes) noexcept;
  // Gives the bytes of the common file back to the system; they read as zero from then on.
  void discard(std::uint64_t offset, std::uint64_t bytes) noexcept;
  // A memory file of its own that other processes may import; -1 when the system refuses.
  [[nodiscard]] static int make_shareable(std::uint64_t bytes) noexcept;
  // The size and a stable identity of a file made by make_shareable, by any process; false for
  // another file.
  struct file_facts {
    std::uint64_t bytes = 0;
    std::uint64_t inode = 0;
  };
  [[nodiscard]] static bool is_shareable(int fd, file_facts& facts) noexcept;

 private:
  backing() = default;
  std::uint64_t begin_ = 0, end_ = 0;
  int file_ = -1;
};

}  // namespace millpond::sim
