// Virtual memory management: reservations, handles, mappings, and the rules between them.
#include <fcntl.h>
#include <unistd.h>

#include "driver/sim/memory.hpp"

namespace millpond::sim {
namespace {

bool whole_pages(std::uint64_t bytes) noexcept {
  return bytes != 0 && is_aligned(bytes, page_bytes);
}

}  // namespace

driver_status memory::reserve(std::uint64_t bytes, std::uint64_t alignment,
                              std::uint64_t& address) {
  if (!whole_pages(bytes) || (alignment != 0 && !is_power_of_two(alignment)))
    return driver_status::invalid_value;
  if (bytes > absurd || alignment > absurd) return driver_status::out_of_memory;
  const auto at = addresses_.take(bytes, std::max(alignment, page_bytes));
  if (!at) return driver_status::out_of_memory;
  reservations_.emplace(*at, bytes);
  address = *at;
  return driver_status::success;
}

driver_status memory::free_reservation(std::uint64_t address, std::uint64_t bytes) {
  const auto it = reservations_.find(address);
  if (it == reservations_.end() || it->second != bytes) return driver_status::invalid_value;
  const auto mapped = regions_.lower_bound(address);
  if (mapped != regions_.end() && mapped->first < address + bytes)
    return driver_status::invalid_value;
  reservations_.erase(it);
  addresses_.give(address, address + bytes);
  return driver_status::success;
}

driver_status memory::create_handle(std::uint64_t bytes, memory_location location,
                                    driver::shareable share, physical_handle& handle) {
  if (!whole_pages(bytes)) return driver_status::invalid_value;
  const driver_status status = take(bytes, location);
  if (status != driver_status::success) return status;
  const auto p = make_physical(bytes, location);
  p->share = share;
  // With tags alone, a file is made when somebody asks for it: most shareable memory is never
  // exported.
  if (share == driver::shareable::posix_fd && p->real) {
    p->fd = backing::make_shareable(bytes);
    backing::file_facts facts;
    if (p->fd < 0 || !backing::is_shareable(p->fd, facts)) {
      if (p->fd >= 0) ::close(p->fd);
      give(bytes, location);
      return driver_status::operating_system;
    }
    p->inode = facts.inode;
  }
  p->handles = 1;
  handle = next_handle_++;
  handles_.emplace(handle, named_handle{p});
  return driver_status::success;
}

driver_status memory::release_handle(physical_handle handle) {
  const auto it = handles_.find(handle);
  if (it == handles_.end()) return driver_status::invalid_value;
  const auto p = it->second.memory;
  handles_.erase(it);
  --p->handles;
  drop_physical(p);
  return driver_status::success;
}

const physical* memory::find_handle(physical_handle handle) const {
  const auto it = handles_.find(handle);
  return it == handles_.end() ? nullptr : it->second.memory.get();
}

driver_status memory::map(std::uint64_t address, std::uint64_t bytes, physical_handle handle) {
  const auto named = handles_.find(handle);
  if (named == handles_.end() || !whole_pages(bytes) || !is_aligned(address, page_bytes)) {
    return driver_status::invalid_value;
  }
  const auto& p = named->second.memory;
  // A part of a handle cannot be mapped: the card answers CUDA_ERROR_NOT_SUPPORTED or an invalid
  // value.
  if (bytes != p->bytes) return driver_status::invalid_value;
  auto reservation = reservations_.upper_bound(address);
  if (reservation == reservations_.begin()) return driver_status::invalid_value;
  --reservation;
  if (address - reservation->first > reservation->second ||
      reservation->second - (address - reservation->first) < bytes) {
    return driver_status::invalid_value;
  }
  const auto next = regions_.lower_bound(address);
  if (next != regions_.end() && next->first < address + bytes) return driver_status::invalid_value;
  if (next != regions_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second.bytes > address) return driver_status::invalid_value;
  }
  if (!show(address, *p)) return driver_status::operating_system;
  ++p->mappings;
  region r;
  r.bytes = bytes;
  r.memory = p;
  r.kind = region_kind::mapping;
  r.accessible = false;
  add_region(address, std::move(r));
  return driver_status::success;
}

std::vector<std::pair<std::uint64_t, region*>> memory::mappings_in(std::uint64_t address,
                                                                   std::uint64_t bytes) {
  std::vector<std::pair<std::uint64_t, region*>> out;
  const std::uint64_t end = address + bytes;
  if (end < address) return {};
  for (auto it = regions_.find(address); address < end; ++it) {
    if (it == regions_.end() || it->first != address || it->second.kind != region_kind::mapping ||
        it->second.bytes > end - address) {
      return {};
    }
    out.emplace_back(address, &it->second);
    address += it->second.bytes;
  }
  return out;
}

void memory::unmap(std::uint64_t address) {
  const auto it = regions_.find(address);
  MILLPOND_CHECK(it != regions_.end() && it->second.kind == region_kind::mapping, address);
  const region r = std::move(it->second);
  regions_.erase(it);
  --counts_[static_cast<std::size_t>(region_kind::mapping)];
  if (r.memory->real) backing_->detach(address, r.bytes);
  --r.memory->mappings;
  drop_physical(r.memory);
}

driver_status memory::export_handle(physical_handle handle, int& fd) {
  const auto it = handles_.find(handle);
  if (it == handles_.end()) return driver_status::invalid_value;
  physical& p = *it->second.memory;
  if (p.share != driver::shareable::posix_fd) return driver_status::not_supported;
  if (p.fd < 0) {
    const int made = backing::make_shareable(p.bytes);
    backing::file_facts facts;
    if (made < 0 || !backing::is_shareable(made, facts)) {
      if (made >= 0) ::close(made);
      return driver_status::operating_system;
    }
    p.fd = made;
    p.inode = facts.inode;
  }
  fd = ::fcntl(p.fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return driver_status::operating_system;
  p.host_written = true;  // from here on others may write it
  return driver_status::success;
}

driver_status memory::import_handle(int fd, physical_handle& handle) {
  backing::file_facts facts;
  if (!backing::is_shareable(fd, facts)) return driver_status::invalid_value;
  // Our own memory coming back: the same physical range under one more name.
  for (const auto& [id, named] : handles_) {
    if (named.memory->fd >= 0 && named.memory->inode == facts.inode) {
      const auto p = named.memory;
      ++p->handles;
      handle = next_handle_++;
      handles_.emplace(handle, named_handle{p});
      return driver_status::success;
    }
  }
  const int own = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return driver_status::operating_system;
  // Another process's memory: it has counted it, so here it takes none.
  const auto p = make_physical(facts.bytes, memory_location::device);
  p->counted = false;
  p->share = driver::shareable::posix_fd;
  p->fd = own;
  p->inode = facts.inode;
  p->host_written = true;
  p->handles = 1;
  handle = next_handle_++;
  handles_.emplace(handle, named_handle{p});
  return driver_status::success;
}

}  // namespace millpond::sim
