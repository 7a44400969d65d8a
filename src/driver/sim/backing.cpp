#include "driver/sim/backing.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string_view>

#include "base/bits.hpp"
#include "millpond/base/units.hpp"

namespace millpond::sim {
namespace {

constexpr std::uint64_t alignment = 2 * MiB;
// Offsets in the file are never used twice, so it is as large as a file may be; only touched pages
// exist.
constexpr std::uint64_t file_bytes = std::uint64_t{1} << 50;
constexpr const char* shareable_name = "millpond-shareable";

void* pointer(std::uint64_t address) noexcept {
  return reinterpret_cast<void*>(address);
}

constexpr std::uint64_t most_arena = GiB * 16 * 1024, least_arena = 64 * GiB;
// As many simulated GPUs as a comparison has at once (replay_all's workers and the first).
constexpr std::uint64_t at_once = 5;

void* take_addresses(std::uint64_t bytes) noexcept {
  void* const at =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? nullptr : at;
}

// The addresses that each simulated GPU of the process gets: sanitizers and limits leave less than
// the machine has. The same for all that live at once, since it shows in what they answer: a
// reservation that one of them serves, another would refuse, and which is which would be a matter
// of which thread made its GPU first.
std::uint64_t usual_arena() noexcept {
  static const std::uint64_t bytes = [] {
    for (std::uint64_t each = most_arena; each > least_arena; each /= 4) {
      void* const all = take_addresses(at_once * each);
      if (all == nullptr) continue;
      ::munmap(all, at_once * each);
      return each;
    }
    return least_arena;
  }();
  return bytes;
}

}  // namespace

std::unique_ptr<backing> backing::create() {
  std::unique_ptr<backing> out(new backing);
  // Less where more are alive than are counted on.
  for (std::uint64_t bytes = usual_arena(); bytes >= least_arena; bytes /= 4) {
    void* const at = take_addresses(bytes);
    if (at == nullptr) continue;
    ::madvise(at, bytes, MADV_DONTDUMP);
    out->begin_ = reinterpret_cast<std::uint64_t>(at);
    out->end_ = out->begin_ + bytes;
    break;
  }
  if (out->begin_ == 0) return nullptr;
  out->file_ = ::memfd_create("millpond-memory", MFD_CLOEXEC);
  if (out->file_ < 0) return nullptr;
  if (::ftruncate(out->file_, static_cast<off_t>(file_bytes)) != 0) return nullptr;
  return out;
}

backing::~backing() {
  if (begin_ != 0) ::munmap(pointer(begin_), end_ - begin_);
  if (file_ >= 0) ::close(file_);
}

bool backing::attach(std::uint64_t address, std::uint64_t bytes, int fd,
                     std::uint64_t offset) noexcept {
  return ::mmap(pointer(address), bytes, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd < 0 ? file_ : fd,
                static_cast<off_t>(offset)) != MAP_FAILED;
}

void backing::detach(std::uint64_t address, std::uint64_t bytes) noexcept {
  if (::mmap(pointer(address), bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED) {
    return;
  }
  // At the limit of mappings the range cannot be split off; it stays readable until the arena goes.
}

void backing::discard(std::uint64_t offset, std::uint64_t bytes) noexcept {
  ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
              static_cast<off_t>(bytes));
}

int backing::make_shareable(std::uint64_t bytes) noexcept {
  const int fd = ::memfd_create(shareable_name, MFD_CLOEXEC);
  if (fd >= 0 && ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    ::close(fd);
    return -1;
  }
  return fd;
}

bool backing::is_shareable(int fd, file_facts& facts) noexcept {
  struct stat status{};
  if (fd < 0 || ::fstat(fd, &status) != 0) return false;
  std::array<char, 64> link{};
  std::array<char, 128> name{};
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", fd);
  const auto length = ::readlink(link.data(), name.data(), name.size() - 1);
  if (length <= 0) return false;
  if (std::string_view(name.data(), static_cast<std::size_t>(length)).find(shareable_name) ==
      std::string_view::npos) {
    return false;
  }
  facts = {static_cast<std::uint64_t>(status.st_size), static_cast<std::uint64_t>(status.st_ino)};
  return facts.bytes > 0 && is_aligned(facts.bytes, alignment);
}

}  // namespace millpond::sim
