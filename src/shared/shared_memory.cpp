#include "millpond/shared/shared_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <new>

#include "base/bits.hpp"
#include "base/fork.hpp"
#include "driver/insist.hpp"
#include "driver/own_calls.hpp"
#include "millpond/base/units.hpp"
#include "millpond/memory/memory_resource.hpp"
#include "resource/wait.hpp"

namespace millpond {
unique_descriptor& unique_descriptor::operator=(unique_descriptor&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}
unique_descriptor::~unique_descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

result<shared_memory> shared_memory::create(std::shared_ptr<driver> gpu, std::uint64_t bytes,
                                            const std::shared_ptr<memory_budget>& budget) {
  if (gpu == nullptr || bytes == 0)
    return error{error_code::invalid_argument,
                 "shared_memory: a driver and at least one byte are needed"};
  if (bytes > max_bytes)
    return error{error_code::out_of_memory,
                 "shared_memory: " + std::to_string(bytes) + " bytes is more than any device has"};
  const device_info& info = gpu->info();
  if (!info.virtual_memory || !info.posix_fd_export) {
    return error{error_code::not_supported,
                 "shared_memory: " + info.name + " exports no memory as file descriptors"};
  }
  shared_memory made;
  made.gpu_ = std::move(gpu);
  made.born_in_fork_ = fork_count();
  made.mapped_ = align_up(bytes, info.granularity);
  if (budget != nullptr) {
    made.share_ = budget->join("shared memory", {});
    if (!made.share_->take_from_all(made.mapped_)) {
      return error{error_code::out_of_memory,
                   "shared memory of " + format_bytes(bytes) + ": the budget's limit of " +
                       format_bytes(budget->limits().hard_bytes) + " would be passed, " +
                       format_bytes(budget->used_bytes()) + " are in use by all its members"};
    }
  }
  const own_calls_scope own_calls(*made.gpu_);
  const auto make = [&] {
    return made.gpu_->physical_create(&made.handle_, made.mapped_, memory_location::device,
                                      driver::shareable::posix_fd);
  };
  call_result answer = make();
  if (answer.status == driver_status::out_of_memory && budget != nullptr &&
      budget->reclaim(made.mapped_, made.share_.get()) > 0) {
    answer = make();
  }
  if (!answer.ok()) {
    return to_error(answer, "creating " + format_bytes(made.mapped_) + " to be shared");
  }
  made.held_ = true;
  if (auto opened = made.open(bytes); !opened) return opened.error();
  return made;
}

result<shared_memory> shared_memory::import(std::shared_ptr<driver> gpu, int fd,
                                            std::uint64_t bytes) {
  if (gpu == nullptr || fd < 0 || bytes == 0 || bytes > max_bytes) {
    return error{
        error_code::invalid_argument,
        "shared_memory: a driver, a descriptor and the number of bytes behind it are needed"};
  }
  if (!gpu->info().virtual_memory)
    return error{error_code::not_supported,
                 "shared_memory: " + gpu->info().name + " has no virtual memory management"};
  shared_memory made;
  made.gpu_ = std::move(gpu);
  made.born_in_fork_ = fork_count();
  made.from_ = origin::imported;
  made.mapped_ = align_up(bytes, made.gpu_->info().granularity);
  const own_calls_scope own_calls(*made.gpu_);
  if (const call_result answer = made.gpu_->import_handle(&made.handle_, fd); !answer.ok()) {
    return to_error(answer,
                    "importing " + format_bytes(bytes) + " from descriptor " + std::to_string(fd));
  }
  made.held_ = true;
  if (auto opened = made.open(bytes); !opened) return opened.error();
  return made;
}

// Addresses and access. What fails is undone by the destructor.
result<void> shared_memory::open(std::uint64_t bytes) {
  bytes_ = bytes;
  if (const call_result answer = gpu_->address_reserve(&address_, mapped_, 0); !answer.ok()) {
    address_ = 0;
    return to_error(answer,
                    "reserving " + format_bytes(mapped_) + " of addresses for shared memory");
  }
  if (const call_result answer = gpu_->map(address_, mapped_, handle_); !answer.ok()) {
    error why = to_error(answer, "mapping " + format_bytes(mapped_) + " of shared memory");
    if (from_ == origin::imported) why.message += "; both sides must tell the same number of bytes";
    return why;
  }
  mapped_here_ = true;
  if (const call_result answer = gpu_->set_access(address_, mapped_, memory_location::device);
      !answer.ok()) {
    return to_error(answer, "giving access to " + format_bytes(mapped_) + " of shared memory");
  }
  return {};
}

shared_memory::shared_memory(shared_memory&& other) noexcept
    : gpu_(std::move(other.gpu_)),
      share_(std::move(other.share_)),
      handle_(other.handle_),
      held_(std::exchange(other.held_, false)),
      mapped_here_(std::exchange(other.mapped_here_, false)),
      address_(std::exchange(other.address_, 0)),
      bytes_(std::exchange(other.bytes_, 0)),
      mapped_(std::exchange(other.mapped_, 0)),
      from_(other.from_),
      born_in_fork_(other.born_in_fork_) {}

shared_memory& shared_memory::operator=(shared_memory&& other) noexcept {
  if (this != &other) {
    shared_memory taken(std::move(other));
    std::swap(gpu_, taken.gpu_);
    std::swap(share_, taken.share_);
    std::swap(handle_, taken.handle_);
    std::swap(held_, taken.held_);
    std::swap(mapped_here_, taken.mapped_here_);
    std::swap(address_, taken.address_);
    std::swap(bytes_, taken.bytes_);
    std::swap(mapped_, taken.mapped_);
    std::swap(from_, taken.from_);
    std::swap(born_in_fork_, taken.born_in_fork_);
  }
  return *this;
}

shared_memory::~shared_memory() {
  let_go();
}

void shared_memory::let_go() noexcept {
  if (gpu_ == nullptr || born_in_fork_ != fork_count() || !gpu_->alive()) return;
  const own_calls_scope own_calls(*gpu_);
  // Work may still read here, and unmapping asks nobody. Where the wait fails the memory is left
  // to the driver.
  if (mapped_here_ && insist([&] { return wait_for_device(*gpu_); }).ok() &&
      insist([&] { return gpu_->unmap(address_, mapped_); }).ok())
    mapped_here_ = false;
  if (!mapped_here_) {
    if (address_ != 0)
      static_cast<void>(insist([&] { return gpu_->address_free(address_, mapped_); }));
    if (held_ && insist([&] { return gpu_->physical_release(handle_); }).ok()) held_ = false;
  }
  if (!held_ || !gpu_->alive()) return;
  if (share_ != nullptr) share_->leave_to_driver(mapped_);
  try {
    default_error_sink()(
        {error_code::driver_failure,
         "shared memory leaves " + format_bytes(mapped_) +
             " to the driver, which refused twice to wait for the work on it or to take it back: "
             "they are in use until its context ends"});
  } catch (const std::bad_alloc&) {
    // No host memory to say it with.
  }
}

result<unique_descriptor> shared_memory::export_descriptor() const {
  if (gpu_ == nullptr || !held_)
    return error{error_code::not_permitted, "shared_memory: there is nothing to export"};
  if (born_in_fork_ != fork_count()) {
    return error{
        error_code::not_permitted,
        "shared_memory: this process was forked from the one that has the memory; import it here"};
  }
  const own_calls_scope own_calls(*gpu_);
  int fd = -1;
  if (const call_result answer = gpu_->export_handle(&fd, handle_); !answer.ok()) {
    return to_error(answer, "exporting " + format_bytes(mapped_));
  }
  return unique_descriptor(fd);
}

}  // namespace millpond
