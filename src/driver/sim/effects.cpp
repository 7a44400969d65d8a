// What operations do to memory when they complete.
#include <cstring>

#include "driver/identity.hpp"
#include "driver/sim/state.hpp"

namespace millpond {
namespace {

void* pointer(std::uint64_t address) noexcept {
  return reinterpret_cast<void*>(address);
}

// Whether the program's own bytes are behind all of it.
bool real(const std::vector<sim::piece>& pieces) noexcept {
  for (const sim::piece& p : pieces) {
    if (p.in != nullptr && !p.in->memory->real && p.in->kind != sim::region_kind::registered)
      return false;
  }
  return true;
}

}  // namespace

// In bytes mode effects are on bytes; in tags mode on tags, and on bytes as well where memory has
// them (pinned, managed, the program's own) unless identity kernels own the contents.
void simulated_gpu::state::apply(sim::work& what, std::uint64_t number) {
  const bool bytes_mode = memory->real();
  // The memory may be gone by now, unmapped under running work: on the card that is the end of the
  // context.
  const auto there = [&](std::uint64_t at, std::uint64_t bytes, std::vector<sim::piece>& out) {
    out.clear();
    if (memory->pieces_of(at, bytes, out)) return true;
    lose_device(driver_status::illegal_address);
    return false;
  };
  if (auto* kernel = std::get_if<sim::kernel_work>(&what)) {
    for (const kernel_access& a : kernel->kernel->accesses) {
      if (a.bytes == 0) continue;
      if (!there(a.address, a.bytes, pieces_)) return;
      if (!bytes_mode && a.kind != access_kind::read) contents.write_unknown(pieces_, number);
    }
    if (kernel->kernel->body) {
      body_thread.store(std::this_thread::get_id(), std::memory_order_relaxed);
      kernel->kernel->body();
      body_thread.store(std::thread::id(), std::memory_order_relaxed);
    }
  } else if (const auto* copy = std::get_if<sim::copy_work>(&what)) {
    if (!there(copy->from, copy->bytes, pieces_) || !there(copy->to, copy->bytes, other_pieces_))
      return;
    if (bytes_mode || (real(pieces_) && real(other_pieces_))) {
      std::memmove(pointer(copy->to), pointer(copy->from), copy->bytes);
    }
    if (!bytes_mode) contents.copy(other_pieces_, pieces_, number);
  } else if (const auto* fill = std::get_if<sim::fill_work>(&what)) {
    if (!there(fill->at, fill->bytes, pieces_)) return;
    if (real(pieces_)) std::memset(pointer(fill->at), fill->value, fill->bytes);
    if (!bytes_mode) contents.fill(pieces_, fill->value);
  } else if (const auto* write = std::get_if<sim::identity_write_work>(&what)) {
    for (const identity_block& b : write->blocks) {
      if (!there(b.address, b.bytes, pieces_)) return;
      if (bytes_mode) {
        fill_identity(pointer(b.address), b.bytes, b.identity);
      } else {
        contents.write_identity(pieces_, b);
      }
    }
  } else if (const auto* check_work = std::get_if<sim::identity_check_work>(&what)) {
    for (const identity_block& b : check_work->blocks) {
      if (!there(b.address, b.bytes, pieces_)) return;
      if (bytes_mode) {
        verify_identity(pointer(b.address), b.bytes, b.identity, check_work->report);
      } else {
        contents.check_identity(pieces_, b, *check_work->report);
      }
    }
  } else if (const auto* release = std::get_if<sim::release_work>(&what)) {
    memory->free_region(release->at);
  }
}

}  // namespace millpond
